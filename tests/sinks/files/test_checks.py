"""What the file sink finds out about its store before the first batch."""

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.files.conftest import ON_HDFS
from twopc import CheckResult, Round
from twopc.checks import CheckStatus
from twopc_files.stores.s3 import S3

LISTED = "list of open uploads in bucket "
SHOWN = "metadata of an object in s3://"
LIFECYCLE = "lifecycle rules of bucket "


def examined(place: Any, result: CheckStatus, **options: str) -> list[CheckResult]:
    return [finding for finding in place.sink(**options).check() if finding.result is result]


def test_every_store_passes_and_is_as_it_was(place: Any) -> None:
    logs = {} if place.url.startswith("hdfs:") else {"batch_logs": "spark,manifest"}
    for values in ([], ["a"]):
        for value in values:
            place.pre_commit(value)
        before = place.files()
        assert {check.result for check in place.sink(**logs).check()} == {CheckStatus.PASSED}
        assert place.files() == before


@pytest.mark.parametrize("store", ["local", "memory", "renaming"])
def test_what_a_killed_rehearsal_left_is_removed(store: str, request: pytest.FixtureRequest) -> None:
    place = request.getfixturevalue(store)
    transaction_id = place.sink().transactional_ids.allocate(Round(0, 0), 0).exact
    place.fs.makedirs(place.path(""), exist_ok=True)
    place.fs.pipe_file(place.path(f".{transaction_id}-0.staged"), b"doctor")
    assert examined(place, CheckStatus.FAILED) == []
    assert place.files() == []


@pytest.mark.parametrize("store", ["local", "renaming", ON_HDFS])
def test_folders_that_are_not_there_are_not_left_behind(store: str, request: pytest.FixtureRequest) -> None:
    place = request.getfixturevalue(store)
    assert examined(place, CheckStatus.FAILED) == []
    assert not place.fs.exists(place.path("").rsplit("/", 2)[0])


def test_a_folder_that_can_not_be_made_fails_by_its_name(tmp_path: Path, make_sink: Any) -> None:
    (tmp_path / "file").touch()
    [failed] = make_sink(path=str(tmp_path / "file" / "orders")).check()
    assert failed.result is CheckStatus.FAILED
    assert f"{tmp_path}/file" in failed.found
    assert "'path'" in failed.found


def test_a_bucket_that_is_not_there_fails(s3: Any) -> None:
    missing = type(s3)("s3://nobody-made-this-bucket/orders", s3.storage_options)
    [failed] = examined(missing, CheckStatus.FAILED)
    assert "NoSuchBucket" in failed.found


@pytest.mark.parametrize(
    ("rule", "warns"),
    [
        ({"Filter": {"Prefix": ""}, "days": 1}, True),
        ({"Filter": {"Prefix": "data/"}, "days": 6}, True),
        ({"Filter": {"Prefix": "data/orders/day=1/"}, "days": 1}, True),
        ({"Filter": {"Prefix": "data/"}, "days": 7}, False),
        ({"Filter": {"Prefix": "logs/"}, "days": 1}, False),
        ({"Filter": {"Prefix": ""}, "days": 1, "Status": "Disabled"}, False),
    ],
)
def test_a_lifecycle_rule_that_would_take_decided_uploads_is_warned_of(rule: Any, warns: bool, s3: Any) -> None:
    days = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": rule.pop("days")}}
    store: S3 = s3.store
    rules = [{"ID": "tidy", "Status": "Enabled", **rule, **days}]
    store.call("put_bucket_lifecycle_configuration", LifecycleConfiguration={"Rules": rules})
    found = [finding for finding in s3.sink().check() if finding.check.startswith(LIFECYCLE)]
    assert [finding.result for finding in found] == [CheckStatus.WARNING if warns else CheckStatus.PASSED]


def test_a_server_that_does_not_list_what_a_killed_writer_leaves_open_is_warned_of(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [finding.result for finding in s3.sink().check() if finding.check.startswith(LISTED)] == [CheckStatus.PASSED]
    call, asked = S3.call, list[str]()

    def by_the_exact_key(store: S3, method: str, **arguments: Any) -> dict[str, Any]:  # as MinIO does
        asked.append(method)
        answer = call(store, method, **arguments)
        if method == "list_multipart_uploads":
            answer["Uploads"] = [found for found in answer.get("Uploads", ()) if found["Key"] == arguments["Prefix"]]
        return answer

    monkeypatch.setattr(S3, "call", by_the_exact_key)
    [warned] = examined(s3, CheckStatus.WARNING)
    assert warned.check.startswith(LISTED)
    assert "MINIO_API_STALE_UPLOADS_EXPIRY" in warned.found
    assert asked.count("create_multipart_upload") == asked.count("abort_multipart_upload")


@pytest.mark.parametrize(
    ("errno_", "result"),
    [(None, CheckStatus.PASSED), (errno.EACCES, CheckStatus.FAILED), (errno.ETIMEDOUT, CheckStatus.WARNING)],
    ids=["shown", "refused", "no answer"],
)
def test_an_object_of_the_folder_that_may_not_be_looked_at_fails(
    errno_: int | None, result: CheckStatus, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.fs.pipe_file(s3.path("part-0.json"), b"")
    call = S3.call

    def refusing(store: S3, method: str, **arguments: Any) -> dict[str, Any]:
        if method == "head_object" and arguments["Key"].endswith("part-0.json") and errno_:
            raise OSError(errno_, "HeadObject: as the test asked")
        return call(store, method, **arguments)

    monkeypatch.setattr(S3, "call", refusing)
    [found] = [finding for finding in s3.sink().check() if finding.check.startswith(SHOWN)]
    assert found.result is result
    assert ("s3:GetObject" in found.found) is (result is CheckStatus.FAILED)


def test_a_store_that_can_keep_no_log_of_complete_batches_fails(renaming: Any) -> None:
    [failed] = examined(renaming, CheckStatus.FAILED, batch_logs="manifest")
    assert "leave the log out of 'batch_logs'" in failed.found
