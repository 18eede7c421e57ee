"""The commit log on S3: put-if-absent by conditional writes, replies that get lost, and servers that can't be used."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import twopc
from tests.stores.conftest import Bucket
from tests.stores.network_log import FIRST, ObjectLogContract
from tests.support.commit_log import CommitLog
from tests.support.http_proxy import FRAMED, Answer, Changed, s3_error
from tests.support.racing_writers import race
from tests.support.s3_server import without_credentials
from twopc import Participant
from twopc.errors import ConfigurationError, InDoubt, Retriable, TwoPhaseCommitError
from twopc.log.commit_log import read_tail
from twopc.log.entry_json import entry_name
from twopc.log.store import LogStore, ObjectStore
from twopc.transaction import Vote


def open_store(bucket: Bucket) -> LogStore:
    return twopc.open_store(bucket.url("log"), **bucket.storage_options)


class TestLogOnS3(ObjectLogContract):
    busy = (
        Answer(500),
        s3_error(500, "InternalError"),
        s3_error(503, "SlowDown"),
        s3_error(409, "ConditionalRequestConflict"),  # of two conditional writes at the same moment, AWS
        s3_error(409, "OperationAborted"),
    )
    denied = s3_error(403, "AccessDenied", "not for you")
    unknown = s3_error(418, "Teapot", "a teapot")
    ignoring = Changed(without_headers=frozenset({"if-none-match"}))

    @pytest.fixture(autouse=True)
    def own_bucket(self, bucket: Bucket) -> None:
        self.bucket: Bucket = bucket
        self.proxy = bucket.proxy

    def make_store(self) -> LogStore:
        return self.store()

    def store_that_repeats(self, monkeypatch: pytest.MonkeyPatch) -> LogStore:  # of other clients
        return twopc.open_store(self.bucket.url("log"), **self.bucket.repeating)

    def store_at(self, server: str) -> LogStore:
        return twopc.open_store(
            "s3://bucket/log", **{**self.bucket.storage_options, "endpoint_url": f"http://{server}"}
        )

    def race(self) -> list[str]:
        return race(self.writers, self.bucket.url("log"), **self.bucket.repeating)


@pytest.mark.long
def test_headers_that_a_bucket_asks_for_come_with_each_object_of_log_and_files(bucket: Bucket) -> None:
    asked = {"ServerSideEncryption": "AES256", "ACL": "bucket-owner-full-control"}
    options = {**bucket.storage_options, "s3_additional_kwargs": asked}
    files = {"path": bucket.url("out"), "format": "json", "storage_options": json.dumps(options)}
    sinks = {"out": twopc.create_sink("files", files)}

    def phase_one(round: twopc.Round) -> list[Vote]:
        with Participant(sinks, round, partition=0) as participant:
            participant.write("out", pa.record_batch({"value": ["a"]}))
            return [participant.pre_commit()]

    with twopc.Coordinator(sinks, twopc.open_store(bucket.url("log"), **options), owner="query") as coordinator:
        coordinator.run(0, phase_one)
    created = [sent for sent in bucket.proxy.sent("PUT") if "partNumber" not in sent.target]  # parts take neither
    created += bucket.proxy.sent("POST", "?uploads")
    assert any("/log/" in sent.target for sent in created)
    assert any("/out/" in sent.target for sent in created)
    for sent in created:
        assert {"x-amz-server-side-encryption", "x-amz-acl"} <= {name.lower() for name in sent.headers}, sent.target


@pytest.mark.long
def test_options_that_are_not_given_come_from_fsspecs_environment(bucket: Bucket) -> None:
    environment = {
        **os.environ,
        "FSSPEC_S3_ENDPOINT_URL": bucket.proxy.url,
        "FSSPEC_S3_KEY": "test",
        "FSSPEC_S3_SECRET": "test",
    }
    script = "import sys; from twopc import open_store; open_store(sys.argv[1]).put_if_absent(0, b'x')"
    subprocess.run([sys.executable, "-c", script, bucket.url("log")], env=environment, check=True)
    assert bucket.objects() == [f"log/{entry_name(0)}"]


# Replies that get lost. -------------------------------------------------------------------------------------------


@pytest.mark.variants
@pytest.mark.parametrize("body", [b"", b"default backend - 404"])
def test_a_404_of_a_gateway_is_taken_neither_for_an_empty_log_nor_for_a_newer_coordinator(
    body: bytes, bucket: Bucket
) -> None:
    log = CommitLog.open(open_store(bucket), "query")
    bucket.proxy.disturb_all("GET", Answer(404, body))
    with pytest.raises(Retriable, match="a 404 that is not of S3"):
        log.verify()
    with pytest.raises(Retriable, match="a 404 that is not of S3"):
        read_tail(open_store(bucket))
    with pytest.raises(InDoubt, match="a 404 that is not of S3"):
        log.decide(FIRST)
    bucket.proxy.heal()
    assert CommitLog.open(open_store(bucket), "query").tail.decided == 0


def test_a_404_of_a_gateway_refuses_no_new_log_and_removes_no_entry(bucket: Bucket) -> None:
    store, of_a_gateway = open_store(bucket), Answer(404, b"default backend - 404")
    bucket.proxy.disturb_all("PUT", of_a_gateway)
    with pytest.raises(InDoubt, match="a 404 that is not of S3"):
        CommitLog.open(store, "query")
    bucket.proxy.heal()
    CommitLog.open(store, "query")
    bucket.proxy.disturb_all("DELETE", of_a_gateway)
    with pytest.raises(OSError, match="a 404 that is not of S3"):
        store.delete(0)


def test_a_refusal_that_does_not_name_its_condition_means_that_the_slot_is_taken(bucket: Bucket) -> None:
    """So answer MinIO and others; s3fs makes it an OSError of another meaning."""
    store = open_store(bucket)
    store.put_if_absent(0, b"x")
    bucket.proxy.disturb_next("PUT", s3_error(412, "PreconditionFailed"))
    with pytest.raises(FileExistsError):
        store.put_if_absent(0, b"y")


# Stores that can't be used. ---------------------------------------------------------------------------------------


def test_a_server_that_keeps_the_framing_as_contents_is_refused_with_the_option_that_helps(bucket: Bucket) -> None:
    bucket.proxy.disturb_all("PUT", FRAMED)
    with pytest.raises(ConfigurationError, match=r"request_checksum_calculation.*when_required"):
        CommitLog.open(open_store(bucket), "query")
    assert bucket.objects() == []


def test_a_server_that_does_not_know_the_condition_is_refused(bucket: Bucket) -> None:
    bucket.proxy.disturb_all("PUT", s3_error(501, "NotImplemented", "a header implies what is not implemented"))
    with pytest.raises(ConfigurationError, match=r"exclusive create .*not implemented"):
        open_store(bucket).put_if_absent(0, b"x")


def test_a_client_without_credentials_is_not_asked_again(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_credentials(monkeypatch, tmp_path)
    store = twopc.open_store(bucket.url("log"), endpoint_url=bucket.proxy.url)
    for ask in (store.slots, lambda: CommitLog.open(store, "query")):
        with pytest.raises(
            ConfigurationError, match=r"not let this process read it .*NoCredentialsError.*twopc.open_store"
        ):
            ask()
    assert bucket.proxy.requests == []


@pytest.mark.long
def test_no_secret_is_in_what_is_shown_or_written(bucket: Bucket) -> None:
    options = {**bucket.storage_options, "key": "the-key-id", "secret": "the-secret"}
    store = twopc.open_store(bucket.url("log"), **options)
    CommitLog.open(store, "query")
    shown = [
        repr(store),
        str(store),
        repr(twopc.replay.ReplayCopies("s3://bucket/stage", options)),
        store.read(0).decode(),
    ]
    bucket.proxy.disturb_all("PUT", s3_error(403, "SignatureDoesNotMatch", "the signature does not match"))
    other = twopc.open_store(bucket.url("other"), **options)
    with pytest.raises(TwoPhaseCommitError) as told:
        CommitLog.open(other, "query")
    shown.append(str(told.value))
    assert not any("the-secret" in text or "the-key-id" in text for text in shown)


def test_each_log_has_a_client_of_its_own_even_with_the_same_options(bucket: Bucket) -> None:
    one, other = open_store(bucket), open_store(bucket)
    assert isinstance(one, ObjectStore)
    assert isinstance(other, ObjectStore)
    assert one._folder.fs is not other._folder.fs
