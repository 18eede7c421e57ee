"""The Delta sink on S3: a real server over HTTP, whose conditional put decides between two commits."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.delta.conftest import Bucket
from tests.support.http_proxy import Changed, HttpProxy, Lost, s3_error
from tests.support.s3_server import S3Server
from twopc import Round
from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)
from twopc_delta.commit import TableLog
from twopc_delta.log_files import LogFiles
from twopc_delta.options import DeltaOptions
from twopc_delta.storage import Storage

OVERWRITES = Changed(without_headers=frozenset({"if-none-match"}))
SECRET = "a-secret-that-nobody-sees"  # noqa: S105  # of the test


@pytest.fixture
def bucket(s3_server: S3Server) -> Bucket:
    """A table of one column."""
    return Bucket.created({**s3_server.storage_options, "secret": SECRET})


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[HttpProxy]:
    with HttpProxy(s3_server.endpoint_url) as proxy:
        yield proxy


def test_batches_are_in_the_table_once(bucket: Bucket) -> None:
    for batch_id, value in enumerate("ab"):
        committable = bucket.pre_commit([value], Round(1, batch_id))
        for _ in range(2):
            bucket.sink().commit_batch(batch_id, [committable])
    assert bucket.values() == ["a", "b"]
    assert list(bucket.sink().recover()) == []


@pytest.mark.long
def test_no_secret_is_in_a_committable_a_note_a_repr_an_error_or_the_log(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="twopc_delta"):
        committable = bucket.pre_commit(["a"])
    bucket.sink().commit_batch(0, [committable])
    fs = bucket.fs
    objects = [fs.cat_file(path) for path in fs.find(bucket.folder)]
    errors = []
    for wrong in ({"path": "s3://none/orders"}, {"storage_options": {**bucket.storage, "x": SECRET}}):
        with pytest.raises(TwoPhaseCommitError) as raised:
            bucket.sink(**wrong)
        errors.append(str(raised.value))
    told = [repr(committable), repr(bucket.sink()), repr(DeltaOptions.parse(bucket.options)), caplog.text, *errors]
    assert not any(SECRET in text for text in told)
    assert not any(SECRET.encode() in data for data in objects)


@pytest.mark.advice("is in a store that the sink can't use")
def test_a_store_that_replaces_an_object_that_is_to_be_created_is_refused_and_another_one_taken(
    bucket: Bucket, proxy: HttpProxy
) -> None:
    """delta-io/delta#1410, #1830: of two commits of one version the later replaced the earlier."""
    proxy.disturb_all("PUT", OVERWRITES)
    with pytest.raises(ConfigurationError, match=r"is in a store that the sink can't use: .*overwrites"):
        bucket.through(proxy).sink()
    bucket.sink().commit_batch(0, [bucket.pre_commit(["a"])])
    assert bucket.values() == ["a"]


@pytest.mark.long
@pytest.mark.parametrize("lost", [Lost.REPLY, pytest.param(Lost.REQUEST, marks=pytest.mark.long)])
def test_a_lost_request_or_reply_of_the_entry_does_not_lose_or_double_the_batch(
    bucket: Bucket, proxy: HttpProxy, lost: Lost
) -> None:
    committable = bucket.pre_commit(["a"])
    repeating = bucket.through(proxy)
    proxy.disturb_next("PUT", lost, "_delta_log/00000000000000000001.json")
    while True:
        with contextlib.suppress(Retriable):
            repeating.sink().commit_batch(0, [committable])
            break
    assert proxy.is_done
    assert bucket.values() == ["a"]


@pytest.mark.long
def test_a_server_that_is_away_is_repeated_and_the_batch_is_there_once(bucket: Bucket, tmp_path: Path) -> None:
    committable = bucket.pre_commit(["a"])
    unreachable = replace(bucket, storage={**bucket.storage, "endpoint_url": "http://127.0.0.1:9"}).bound()
    with pytest.raises((Retriable, OperatorRequired)) as raised:
        unreachable.commit_batch(0, [committable])
    assert isinstance(raised.value, Retriable)
    bucket.sink().commit_batch(0, [committable])
    assert bucket.values() == ["a"]


def test_a_store_that_does_not_list_names_in_order_is_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directory buckets of S3 heed no start of a listing. A batch was decided there, and never seen to be committed."""
    listed = LogFiles._listed_after
    monkeypatch.setattr(LogFiles, "_listed_after", lambda log, _, *limit: listed(log, "", *limit))
    with pytest.raises(ConfigurationError, match="does not list names in order"):
        bucket.sink()
    fs = bucket.fs
    assert [path for path in fs.find(bucket.folder) if "probe" in path] == []


@pytest.mark.long
def test_parts_of_a_large_file_have_one_size(bucket: Bucket, proxy: HttpProxy) -> None:
    """Cloudflare R2 refuses others, when the upload is completed."""
    storage = bucket.through(proxy).reached
    file = storage.create("large.parquet")
    for _ in range(4):
        file.write(b"x" * (5 * 1024 * 1024 + 1))
    file.close()
    parts = {
        int(each.target.partition("partNumber=")[2].partition("&")[0]): len(each.body)
        for each in proxy.sent("PUT", "partNumber=")
    }
    *whole, last = [parts[number] for number in sorted(parts)]
    assert len(whole) == 2
    assert {*whole} == {8 * 1024 * 1024}
    assert last <= whole[0]


@pytest.mark.long
def test_headers_that_a_bucket_asks_for_are_sent_and_one_that_is_missing_is_told(
    bucket: Bucket, proxy: HttpProxy
) -> None:
    asked = {"ServerSideEncryption": "AES256", "ACL": "bucket-owner-full-control"}
    own = replace(
        bucket, storage={**bucket.storage, "s3_additional_kwargs": asked, "config_kwargs": {"read_timeout": 30}}
    )
    behind = own.through(proxy)
    behind.sink().commit_batch(0, [behind.pre_commit(["a"])])
    for sent in proxy.sent("PUT"):
        names = {name.lower() for name in sent.headers}
        assert {"x-amz-server-side-encryption", "x-amz-acl"} <= names, sent.target
    proxy.disturb_all("PUT", s3_error(403, "AccessDenied"))
    with pytest.raises(ConfigurationError, match="s3_additional_kwargs") as raised:
        behind.sink()
    assert "could both win" not in str(raised.value)
    assert own.values() == ["a"]


@pytest.mark.parametrize("name", ["endpoint", "config_kwarg", "aws_access_key_id"])
def test_an_option_that_delta_rs_has_no_counterpart_of_is_refused(bucket: Bucket, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        bucket.unbound(storage_options={name: "x"})


def requests_of_a_batch(bucket: Bucket, proxy: HttpProxy, batch_id: int, tasks: int) -> int:
    """The driver's requests for one batch, from the votes to the sweep."""
    writing, driving = bucket.sink(), bucket.through(proxy).sink()
    votes = [bucket.vote([f"{batch_id}.{n}"], Round(1, batch_id), n, writing) for n in range(tasks)]
    before = len(proxy.requests)
    driving.commit_batch(batch_id, driving.seal(votes, 0.0))
    assert list(driving.recover()) == []
    sent = proxy.requests[before:]
    assert [each.target for each in sent if "prefix=orders%2F&" in each.target] == []  # all files of the table
    return len(sent)


@pytest.mark.long
def test_the_driver_sends_as_many_requests_for_many_tasks_as_for_few(bucket: Bucket, proxy: HttpProxy) -> None:
    few, many = requests_of_a_batch(bucket, proxy, 0, 3), requests_of_a_batch(bucket, proxy, 1, 30)
    assert many <= few
    assert len(bucket.values()) == 33


@pytest.mark.long
@pytest.mark.parametrize("step", ["the removal of many", pytest.param("a listing", marks=pytest.mark.long)])
def test_a_server_without_a_request_for_many_objects_gets_one_for_each(
    bucket: Bucket, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Also where a listing lacks what was written just now."""
    if step == "the removal of many":
        proxy.disturb_all("POST", s3_error(501, "NotImplemented"), "delete")
    else:
        monkeypatch.setattr(Storage, "_listed", lambda *_: {})
    requests_of_a_batch(bucket, proxy, 0, 5)
    assert len(proxy.sent("DELETE", "_twopc/twopc.")) == (5 if step == "the removal of many" else 0)
    assert len(bucket.values()) == 5


@pytest.mark.long
def test_a_file_of_many_that_is_gone_at_the_store_is_noticed(bucket: Bucket) -> None:
    bound = bucket.sink()
    votes = [bucket.vote(["a"], partition=partition, sink=bound) for partition in range(3)]
    bucket.fs.rm_file(next(path for path in bucket.objects() if path.endswith(".parquet")))
    with pytest.raises(RoundAborted, match="not there as it was written"):
        bound.seal(votes, 0.0)


@pytest.mark.long
def test_partitions_of_any_name_are_read_back_from_the_store(bucket: Bucket) -> None:
    parted = replace(bucket, below="/parted")
    parted.create(pa.schema({"value": pa.string(), "day": pa.string()}), ["day"])
    days = ["50 % = x/y", "ü?*[", "plain", None]
    parted.sink().commit_batch(0, [parted.pre_commit({"value": [*"abcd"], "day": days})])
    assert sorted(str(row["day"]) for row in parted.rows()) == sorted(map(str, days))


@pytest.mark.long
def test_the_root_of_a_bucket_is_a_table(s3_server: S3Server) -> None:
    bucket = Bucket.created(s3_server.storage_options, below="")
    bound = bucket.sink()
    for batch_id in range(3):  # the second one and the third begin with a kept look
        bound.commit_batch(batch_id, bound.seal([bucket.vote(["a"], Round(1, batch_id), sink=bound)], 0.0))
    assert bucket.table().version() == 3


@pytest.mark.variants
@pytest.mark.parametrize("name", ["a%20b", "50%", "a#b", "a?b", "a//b"])
def test_a_url_that_two_clients_read_differently_is_refused(bucket: Bucket, name: str) -> None:
    """The sink's entries would go to a folder in which delta-rs sees none."""
    with pytest.raises(ConfigurationError, match="percent-encoded"):
        bucket.unbound(path=f"s3://{bucket.name}/{name}")


@pytest.mark.long
def test_a_long_entry_is_created_by_one_request_as_the_trial_was(bucket: Bucket, proxy: HttpProxy) -> None:
    """A store may heed the condition there, and not where an object of several parts is completed."""
    log = LogFiles(bucket.through(proxy).reached)
    log.put(1, b" " * (101 * 1024 * 1024))
    assert len(proxy.sent("PUT", "_delta_log/00000000000000000001.json")) == 1
    assert proxy.sent("POST", "uploads") == []


@pytest.mark.long
@pytest.mark.parametrize("is_made_again", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_table_that_is_dropped_between_look_and_commit_leaves_no_entry_behind(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    """A store makes no folder, so a put succeeds where the log is gone. No table could be made there any more."""
    bucket.sink().commit_batch(0, [bucket.pre_commit(["a"])])
    committable = bucket.pre_commit(["b"], Round(1, 1))
    fs = bucket.fs
    put = TableLog._put

    def drop(log: TableLog, *arguments: Any) -> None:
        fs.rm(f"{bucket.folder}/_delta_log", recursive=True)
        if is_made_again:
            bucket.create()
        put(log, *arguments)

    monkeypatch.setattr(TableLog, "_put", drop)
    with pytest.raises(OutcomeUnknown):
        bucket.sink().commit_batch(1, [committable])
    left = [path.rpartition("/")[2] for path in fs.find(f"{bucket.folder}/_delta_log")]
    assert left == (["00000000000000000000.json"] if is_made_again else [])


@pytest.mark.long
def test_the_store_is_tried_in_the_log_and_among_the_notes_alone(bucket: Bucket, proxy: HttpProxy) -> None:
    """A trial that is killed leaves an object, which is removed where it is looked for."""
    committable = bucket.pre_commit(["a"])
    bucket.through(proxy).sink().commit_batch(0, [committable])
    folders = {each.target.partition("?")[0].rpartition("/")[0] for each in proxy.sent("PUT", ".probe")}
    assert folders == {f"/{bucket.folder}/_twopc", f"/{bucket.folder}/_delta_log"}
