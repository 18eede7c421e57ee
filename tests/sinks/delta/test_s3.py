"""The Delta sink on S3: a real server over HTTP, whose conditional put decides between two commits."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import s3fs
from deltalake import DeltaTable, QueryBuilder, Schema

from tests.support.http_proxy import Changed, HttpProxy, Lost, s3_error
from tests.support.s3_server import S3Server
from twopc import Committable, Participant, Round
from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)
from twopc_delta import DeltaSink
from twopc_delta.commit import TableLog
from twopc_delta.log_files import LogFiles
from twopc_delta.options import DeltaOptions
from twopc_delta.storage import Storage

BUCKET = f"lake-{uuid.uuid4().hex[:8]}"
URL = f"s3://{BUCKET}/orders"
OVERWRITES = Changed(without_headers=frozenset({"if-none-match"}))
SECRET = "a-secret-that-nobody-sees"  # noqa: S105  # of the test


@pytest.fixture
def options(s3_server: S3Server) -> Iterator[dict[str, Any]]:
    """A table of one column."""
    storage = {**s3_server.storage_options, "secret": SECRET, "client_kwargs": {"region_name": "us-east-1"}}
    fs = s3fs.S3FileSystem(**s3_server.storage_options, use_listings_cache=False)
    fs.mkdir(BUCKET)
    options = {"path": URL, "storage_options": storage}
    create(options)
    yield options
    fs.rm(BUCKET, recursive=True)


def create(options: dict[str, Any]) -> None:
    translated = DeltaOptions.parse(options).storage.delta_options()
    DeltaTable.create(URL, Schema.from_arrow(pa.schema({"value": pa.string()})), storage_options=translated)


def through(proxy: HttpProxy, options: dict[str, Any]) -> dict[str, Any]:
    """The same table, reached through a proxy."""
    return {**options, "storage_options": {**options["storage_options"], "endpoint_url": proxy.url}}


def sink(options: dict[str, Any]) -> DeltaSink:
    sink = DeltaSink(options)
    sink.bind("orders", "log")
    sink.open()
    return sink


def pre_commit(options: dict[str, Any], value: str, batch_id: int = 0) -> Committable:
    with Participant({"orders": sink(options)}, Round(1, batch_id), partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": [value]}))
        vote = participant.pre_commit()["orders"]
    [sealed] = sink(options).seal([vote], 0.0)
    return Committable.from_json(json.loads(json.dumps(sealed.to_json())))


def values(options: dict[str, Any]) -> list[str]:
    table = DeltaTable(URL, storage_options=DeltaOptions.parse(options).storage.delta_options())
    found = QueryBuilder().register("t", table).execute("SELECT value FROM t").read_all()
    return sorted(row["value"] for row in pa.table(found).to_pylist())


def test_batches_are_in_the_table_once(options: dict[str, Any]) -> None:
    for batch_id, value in enumerate("ab"):
        committable = pre_commit(options, value, batch_id)
        for _ in range(2):
            sink(options).commit_batch(batch_id, [committable])
    assert values(options) == ["a", "b"]
    assert list(sink(options).recover()) == []


@pytest.mark.long
def test_an_undecided_transaction_is_recovered_and_leaves_no_object(options: dict[str, Any]) -> None:
    bound = sink(options)
    transaction = bound.begin(bound.transactional_ids.allocate(Round(1, 0), 0))
    bound.write(transaction, pa.record_batch({"value": ["a"]}))
    assert transaction.files is not None
    transaction.files.finish()
    [found] = sink(options).recover()
    sink(options).abort(found)
    assert list(sink(options).recover()) == []
    left = s3fs.S3FileSystem(**options["storage_options"], use_listings_cache=False).find(f"{BUCKET}/orders")
    assert [path for path in left if "_delta_log" not in path] == []


@pytest.mark.long
def test_coordinators_that_commit_at_once_put_the_batch_once(options: dict[str, Any]) -> None:
    committable = pre_commit(options, "a")
    threads = [
        threading.Thread(target=lambda: sink(options).commit_batch(0, [committable]), daemon=True) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(options) == ["a"]


@pytest.mark.long
def test_no_secret_is_in_a_committable_a_note_a_repr_an_error_or_the_log(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="twopc_delta"):
        committable = pre_commit(options, "a")
    sink(options).commit_batch(0, [committable])
    fs = s3fs.S3FileSystem(**options["storage_options"], use_listings_cache=False)
    objects = [fs.cat_file(path) for path in fs.find(f"{BUCKET}/orders")]
    errors = []
    for wrong in ({"path": "s3://none/orders"}, {"storage_options": {**options["storage_options"], "x": SECRET}}):
        with pytest.raises(TwoPhaseCommitError) as raised:
            sink({**options, **wrong})
        errors.append(str(raised.value))
    told = [repr(committable), repr(sink(options)), repr(DeltaOptions.parse(options)), caplog.text, *errors]
    assert not any(SECRET in text for text in told)
    assert not any(SECRET.encode() in data for data in objects)


def test_a_store_that_replaces_an_object_that_is_to_be_created_is_refused(
    options: dict[str, Any], s3_server: S3Server
) -> None:
    """delta-io/delta#1410, #1830: of two commits of one version the later replaced the earlier."""
    with HttpProxy(s3_server.endpoint_url) as proxy:
        proxy.disturb_all("PUT", OVERWRITES)
        with pytest.raises(ConfigurationError, match="overwrites"):
            sink(through(proxy, options))


@pytest.mark.long
@pytest.mark.parametrize("lost", [Lost.REPLY, pytest.param(Lost.REQUEST, marks=pytest.mark.long)])
def test_a_lost_request_or_reply_of_the_entry_does_not_lose_or_double_the_batch(
    options: dict[str, Any], s3_server: S3Server, lost: Lost
) -> None:
    committable = pre_commit(options, "a")
    with HttpProxy(s3_server.endpoint_url) as proxy:
        repeating = through(proxy, options)
        proxy.disturb_next("PUT", lost, "_delta_log/00000000000000000001.json")
        while True:
            with contextlib.suppress(Retriable):
                sink(repeating).commit_batch(0, [committable])
                break
        assert proxy.is_done
    assert values(options) == ["a"]


@pytest.mark.long
def test_a_server_that_is_away_is_repeated_and_the_batch_is_there_once(options: dict[str, Any], tmp_path: Path) -> None:
    committable = pre_commit(options, "a")
    away = {**options["storage_options"], "endpoint_url": "http://127.0.0.1:9"}
    unreachable = DeltaSink({**options, "storage_options": away})
    unreachable.bind("orders", "log")
    with pytest.raises((Retriable, OperatorRequired)) as raised:
        unreachable.commit_batch(0, [committable])
    assert isinstance(raised.value, Retriable)
    sink(options).commit_batch(0, [committable])
    assert values(options) == ["a"]


def test_a_store_that_does_not_list_names_in_order_is_refused(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directory buckets of S3 heed no start of a listing. A batch was decided there, and never seen to be committed."""
    listed = LogFiles._listed_after
    monkeypatch.setattr(LogFiles, "_listed_after", lambda log, _, **limits: listed(log, "", **limits))
    with pytest.raises(ConfigurationError, match="does not list names in order"):
        sink(options)
    fs = s3fs.S3FileSystem(**options["storage_options"], use_listings_cache=False)
    assert [path for path in fs.find(f"{BUCKET}/orders") if "probe" in path] == []


@pytest.mark.long
def test_parts_of_a_large_file_have_one_size(options: dict[str, Any], s3_server: S3Server) -> None:
    """Cloudflare R2 refuses others, when the upload is completed."""
    with HttpProxy(s3_server.endpoint_url) as proxy:
        storage = DeltaOptions.parse(through(proxy, options)).storage
        file = storage.create("large.parquet")
        for _ in range(4):
            file.write(b"x" * (5 * 1024 * 1024 + 1))
        storage.close(file, "large.parquet")
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
    options: dict[str, Any], s3_server: S3Server
) -> None:
    asked = {"ServerSideEncryption": "AES256", "ACL": "bucket-owner-full-control"}
    own = {**options["storage_options"], "s3_additional_kwargs": asked, "config_kwargs": {"read_timeout": 30}}
    with HttpProxy(s3_server.endpoint_url) as proxy:
        sink(options := through(proxy, {**options, "storage_options": own})).commit_batch(0, [pre_commit(options, "a")])
        for sent in proxy.sent("PUT"):
            names = {name.lower() for name in sent.headers}
            assert {"x-amz-server-side-encryption", "x-amz-acl"} <= names, sent.target
        proxy.disturb_all("PUT", s3_error(403, "AccessDenied"))
        with pytest.raises(ConfigurationError, match="s3_additional_kwargs") as raised:
            sink(options)
        assert "could both win" not in str(raised.value)
    assert values(options={**options, "storage_options": {**own, "endpoint_url": s3_server.endpoint_url}}) == ["a"]


@pytest.mark.parametrize("name", ["endpoint", "config_kwarg", "aws_access_key_id"])
def test_an_option_that_delta_rs_has_no_counterpart_of_is_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        DeltaSink({**options, "storage_options": {name: "x"}})


def requests_of_a_batch(options: dict[str, Any], proxy: HttpProxy, batch_id: int, tasks: int) -> int:
    """The driver's requests for one batch, from the votes to the sweep."""
    writing, driving = sink(options), sink(through(proxy, options))
    votes = []
    for partition in range(tasks):
        with Participant({"orders": writing}, Round(1, batch_id), partition=partition) as participant:
            participant.write("orders", pa.record_batch({"value": [f"{batch_id}.{partition}"]}))
            votes.append(participant.pre_commit()["orders"])
    before = len(proxy.requests)
    driving.commit_batch(batch_id, driving.seal(votes, 0.0))
    assert list(driving.recover()) == []
    sent = proxy.requests[before:]
    assert [each.target for each in sent if "prefix=orders%2F&" in each.target] == []  # all files of the table
    return len(sent)


@pytest.mark.long
def test_the_driver_sends_as_many_requests_for_many_tasks_as_for_few(
    options: dict[str, Any], s3_server: S3Server
) -> None:
    with HttpProxy(s3_server.endpoint_url) as proxy:
        few, many = requests_of_a_batch(options, proxy, 0, 3), requests_of_a_batch(options, proxy, 1, 30)
        assert many <= few
    assert len(values(options)) == 33


@pytest.mark.long
@pytest.mark.parametrize("step", ["the removal of many", pytest.param("a listing", marks=pytest.mark.long)])
def test_a_server_without_a_request_for_many_objects_gets_one_for_each(
    options: dict[str, Any], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Also where a listing lacks what was written just now."""
    with HttpProxy(s3_server.endpoint_url) as proxy:
        if step == "the removal of many":
            proxy.disturb_all("POST", s3_error(501, "NotImplemented"), "delete")
        else:
            monkeypatch.setattr(Storage, "_listed", lambda *_: {})
        requests_of_a_batch(options, proxy, 0, 5)
        assert len(proxy.sent("DELETE", "_twopc/twopc.")) == (5 if step == "the removal of many" else 0)
    assert len(values(options)) == 5


@pytest.mark.long
def test_a_file_of_many_that_is_gone_at_the_store_is_noticed(options: dict[str, Any]) -> None:
    fs = s3fs.S3FileSystem(**options["storage_options"], use_listings_cache=False)
    bound, votes = sink(options), []
    for partition in range(3):
        with Participant({"orders": bound}, Round(1, 0), partition=partition) as participant:
            participant.write("orders", pa.record_batch({"value": ["a"]}))
            votes.append(participant.pre_commit()["orders"])
    fs.rm_file(next(path for path in fs.find(f"{BUCKET}/orders") if path.endswith(".parquet")))
    with pytest.raises(RoundAborted, match="not there as it was written"):
        bound.seal(votes, 0.0)


@pytest.mark.long
def test_partitions_of_any_name_are_read_back_from_the_store(options: dict[str, Any]) -> None:
    url = f"s3://{BUCKET}/parted"
    translated = DeltaOptions.parse(options).storage.delta_options()
    schema = Schema.from_arrow(pa.schema({"value": pa.string(), "day": pa.string()}))
    DeltaTable.create(url, schema, partition_by=["day"], storage_options=translated)
    bound = sink({**options, "path": url})
    days = ["50 % = x/y", "ü?*[", "plain", None]
    with Participant({"orders": bound}, Round(1, 0), partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": [*"abcd"], "day": days}))
        votes = [participant.pre_commit()["orders"]]
    bound.commit_batch(0, bound.seal(votes, 0.0))
    table = DeltaTable(url, storage_options=translated)
    found = QueryBuilder().register("t", table).execute("SELECT day FROM t").read_all()
    assert sorted(str(row["day"]) for row in pa.table(found).to_pylist()) == sorted(map(str, days))


@pytest.mark.long
def test_the_root_of_a_bucket_is_a_table(options: dict[str, Any], s3_server: S3Server) -> None:
    bucket = f"whole-{BUCKET}"
    url = f"s3://{bucket}"
    fs = s3fs.S3FileSystem(**s3_server.storage_options, use_listings_cache=False)
    fs.mkdir(bucket)
    translated = DeltaOptions.parse(options).storage.delta_options()
    DeltaTable.create(url, Schema.from_arrow(pa.schema({"value": pa.string()})), storage_options=translated)
    bound = sink({**options, "path": url})
    for batch_id in range(3):  # the second one and the third begin with a kept look
        with Participant({"orders": bound}, Round(1, batch_id), partition=0) as participant:
            participant.write("orders", pa.record_batch({"value": ["a"]}))
            vote = participant.pre_commit()["orders"]
        bound.commit_batch(batch_id, bound.seal([vote], 0.0))
    assert DeltaTable(url, storage_options=translated).version() == 3


@pytest.mark.variants
@pytest.mark.parametrize("name", ["a%20b", "50%", "a#b", "a?b", "a//b"])
def test_a_url_that_two_clients_read_differently_is_refused(options: dict[str, Any], name: str) -> None:
    """The sink's entries would go to a folder in which delta-rs sees none."""
    with pytest.raises(ConfigurationError, match="percent-encoded"):
        DeltaSink({**options, "path": f"s3://{BUCKET}/{name}"})


@pytest.mark.long
def test_a_long_entry_is_created_by_one_request_as_the_trial_was(options: dict[str, Any], s3_server: S3Server) -> None:
    """A store may heed the condition there, and not where an object of several parts is completed."""
    with HttpProxy(s3_server.endpoint_url) as proxy:
        log = LogFiles(DeltaOptions.parse(through(proxy, options)).storage)
        log.put(1, b" " * (101 * 1024 * 1024))
        assert len(proxy.sent("PUT", "_delta_log/00000000000000000001.json")) == 1
        assert proxy.sent("POST", "uploads") == []


@pytest.mark.long
@pytest.mark.parametrize("is_made_again", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_table_that_is_dropped_between_look_and_commit_leaves_no_entry_behind(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    """A store makes no folder, so a put succeeds where the log is gone. No table could be made there any more."""
    sink(options).commit_batch(0, [pre_commit(options, "a")])
    committable = pre_commit(options, "b", 1)
    fs = s3fs.S3FileSystem(**options["storage_options"], use_listings_cache=False)
    put = TableLog._put

    def drop(log: TableLog, *arguments: Any) -> None:
        fs.rm(f"{BUCKET}/orders/_delta_log", recursive=True)
        if is_made_again:
            create(options)
        put(log, *arguments)

    monkeypatch.setattr(TableLog, "_put", drop)
    with pytest.raises(OutcomeUnknown):
        sink(options).commit_batch(1, [committable])
    left = [path.rpartition("/")[2] for path in fs.find(f"{BUCKET}/orders/_delta_log")]
    assert left == (["00000000000000000000.json"] if is_made_again else [])


@pytest.mark.long
def test_the_store_is_tried_in_the_log_and_among_the_notes_alone(options: dict[str, Any], s3_server: S3Server) -> None:
    """A trial that is killed leaves an object, which is removed where it is looked for."""
    with HttpProxy(s3_server.endpoint_url) as proxy:
        committable = pre_commit(options, "a")
        sink(through(proxy, options)).commit_batch(0, [committable])
        folders = {each.target.partition("?")[0].rpartition("/")[0] for each in proxy.sent("PUT", ".probe")}
    assert folders == {f"/{BUCKET}/orders/_twopc", f"/{BUCKET}/orders/_delta_log"}
