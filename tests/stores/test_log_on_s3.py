"""The commit log on S3: put-if-absent by conditional writes, replies that get lost, and servers that can't be used."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import twopc
from tests.stores.conftest import Bucket
from tests.support.http_proxy import Answer, Changed, Lost, s3_error
from tests.support.racing_writers import race
from tests.support.s3_server import without_credentials
from twopc import Committable, Round
from twopc.errors import ConfigurationError, Fenced, InDoubt, Retriable, TwoPhaseCommitError
from twopc.log.commit_log import CommitLog, read_tail
from twopc.log.entries import Decision
from twopc.log.store import LogStore, ObjectStore, entry_name
from twopc.testing import LogStoreContract

OVERWRITES = Changed(without_headers=frozenset({"if-none-match"}))
"""Makes the server one of those that take the condition and overwrite all the same."""

FIRST = Decision(Round(1, 0), {"sink": (Committable("t0", {}, 1),)})


def open_store(bucket: Bucket) -> LogStore:
    return twopc.open_store(bucket.url("log"), **bucket.storage_options)


class TestObjectStoreOnS3(LogStoreContract):
    races = 5

    @pytest.fixture(autouse=True)
    def own_bucket(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def make_store(self) -> LogStore:
        return open_store(self.bucket)


def test_of_processes_that_race_for_a_slot_one_wins(bucket: Bucket) -> None:
    outcomes = race(4, bucket.url("log"), **bucket.repeating)
    assert sorted(outcomes) == ["refused", "refused", "refused", "won"]
    assert open_store(bucket).read(0) == str(outcomes.index("won")).encode()


def test_nothing_but_entries_is_left_in_the_folder(bucket: Bucket) -> None:
    CommitLog.open(open_store(bucket), "query").close()
    assert bucket.objects() == [f"log/{entry_name(0)}", f"log/{entry_name(1)}"]


def test_a_log_at_the_top_of_a_bucket_is_fine(bucket: Bucket) -> None:
    store = twopc.open_store(f"s3://{bucket.name}/", **bucket.storage_options)
    CommitLog.open(store, "query")
    assert bucket.objects() == [entry_name(0)]


def test_a_store_travels_to_another_process_with_its_options(bucket: Bucket) -> None:
    open_store(bucket).put_if_absent(0, b"x")
    assert pickle.loads(pickle.dumps(open_store(bucket))).read(0) == b"x"  # noqa: S301  # our own bytes


def test_a_coordinator_takes_a_store_with_options_in_the_place_of_a_url(bucket: Bucket) -> None:
    sink = twopc.testing.MemorySink(twopc.testing.MemoryTarget())
    with twopc.Coordinator({"sink": sink}, open_store(bucket), owner="query") as coordinator:
        coordinator.run(0, lambda _: [])
    tail = read_tail(open_store(bucket))
    assert tail is not None
    assert (tail[1].kind, tail[1].decided) == ("close", 0)


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


@pytest.mark.parametrize("repeats_by_itself", [False, True])
@pytest.mark.parametrize("lost", Lost)
def test_a_decision_whose_request_or_reply_is_lost_is_in_the_log_once(
    lost: Lost, repeats_by_itself: bool, bucket: Bucket
) -> None:
    options = bucket.repeating if repeats_by_itself else bucket.storage_options
    log = CommitLog.open(twopc.open_store(bucket.url("log"), **options), "query")
    bucket.proxy.disturb_next("PUT", lost, entry_name(1))
    log.decide(FIRST)
    assert bucket.proxy.is_done
    assert read_tail(open_store(bucket)) == (1, log.tail)
    assert log.tail.decided == 0


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500),
        s3_error(500, "InternalError"),
        s3_error(503, "SlowDown"),
        s3_error(409, "ConditionalRequestConflict"),  # of two conditional writes at the same moment, AWS
        s3_error(409, "OperationAborted"),
    ],
    ids=lambda answer: str(answer.status) + answer.body.decode()[-30:],
)
def test_an_answer_that_tells_nothing_of_the_entry_is_asked_again(answer: Answer, bucket: Bucket) -> None:
    log = CommitLog.open(open_store(bucket), "query")
    bucket.proxy.disturb_next("PUT", answer, entry_name(1))
    log.decide(FIRST)
    assert bucket.proxy.is_done
    assert len(bucket.proxy.sent("PUT", entry_name(1))) >= 2
    assert read_tail(open_store(bucket)) == (1, log.tail)


def test_a_store_that_goes_on_telling_nothing_leaves_the_decision_in_doubt(bucket: Bucket) -> None:
    log = CommitLog.open(open_store(bucket), "query")
    bucket.proxy.disturb_all("PUT", s3_error(409, "ConditionalRequestConflict"), entry_name(1))
    with pytest.raises(InDoubt, match=f"{bucket.url('log')}.*ConditionalRequestConflict"):
        log.decide(FIRST)
    bucket.proxy.heal()
    assert CommitLog.open(open_store(bucket), "query").tail.decided is None


def test_a_decision_that_cannot_be_read_back_is_in_doubt_and_found_by_the_next_coordinator(bucket: Bucket) -> None:
    log = CommitLog.open(open_store(bucket), "query")
    bucket.proxy.disturb_next("PUT", Lost.REPLY, entry_name(1))
    bucket.proxy.disturb_all("GET", Answer(500))
    with pytest.raises(InDoubt):
        log.decide(FIRST)
    bucket.proxy.heal()
    assert CommitLog.open(open_store(bucket), "query").tail.decided == 0


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


def test_a_lost_request_whose_slot_a_newer_coordinator_took_is_fenced(bucket: Bucket) -> None:
    log = CommitLog.open(open_store(bucket), "query")
    bucket.proxy.disturb_next("PUT", Lost.REQUEST, entry_name(1))
    newer = CommitLog.open(twopc.open_store(bucket.url("log"), **bucket.server.storage_options), "query")
    with pytest.raises(Fenced):
        log.decide(FIRST)
    newer.verify()


def test_a_refusal_that_does_not_name_its_condition_means_that_the_slot_is_taken(bucket: Bucket) -> None:
    """So answer MinIO and others; s3fs makes it an OSError of another meaning."""
    store = open_store(bucket)
    store.put_if_absent(0, b"x")
    bucket.proxy.disturb_next("PUT", s3_error(412, "PreconditionFailed"))
    with pytest.raises(FileExistsError):
        store.put_if_absent(0, b"y")


# Stores that can't be used. ---------------------------------------------------------------------------------------


def test_a_server_that_ignores_the_condition_is_refused_before_the_first_entry(bucket: Bucket) -> None:
    bucket.proxy.disturb_all("PUT", OVERWRITES)
    with pytest.raises(ConfigurationError, match=f"{bucket.url('log')}.*overwrites"):
        open_store(bucket).put_if_absent(0, b"x")
    assert bucket.objects() == []


def test_a_server_that_does_not_know_the_condition_is_refused(bucket: Bucket) -> None:
    bucket.proxy.disturb_all("PUT", s3_error(501, "NotImplemented", "a header implies what is not implemented"))
    with pytest.raises(ConfigurationError, match=r"exclusive create .*not implemented"):
        open_store(bucket).put_if_absent(0, b"x")


def test_no_coordinator_opens_a_log_that_can_be_overwritten(bucket: Bucket) -> None:
    bucket.proxy.disturb_all("PUT", OVERWRITES)
    with pytest.raises(
        TwoPhaseCommitError, match="overwrites an object that it was asked to create only where there is none"
    ):
        CommitLog.open(open_store(bucket), "query")
    assert bucket.objects() == []


def test_a_store_is_tried_once_and_only_where_something_is_written(bucket: Bucket) -> None:
    store = open_store(bucket)
    assert store.slots() == []
    assert bucket.proxy.sent("PUT") == []
    log = CommitLog.open(store, "query")
    log.decide(FIRST)
    CommitLog.open(store, "query")
    assert len(bucket.proxy.sent("PUT", ".probe")) == 2
    assert len(bucket.proxy.sent("DELETE", ".probe")) == 1


def test_a_trial_whose_reply_is_lost_is_not_taken_for_a_refusal(bucket: Bucket) -> None:
    store = twopc.open_store(bucket.url("log"), **bucket.repeating)
    bucket.proxy.disturb_next("PUT", Lost.REPLY, ".probe")
    store.put_if_absent(0, b"x")
    assert bucket.objects() == [f"log/{entry_name(0)}"]


def test_a_trial_without_an_answer_is_repeated_with_the_entry(bucket: Bucket) -> None:
    bucket.proxy.disturb_next("PUT", Answer(500), ".probe")
    assert CommitLog.open(open_store(bucket), "query").incarnation == 1
    assert bucket.proxy.is_done


def test_a_trial_that_cannot_be_removed_does_not_stop_the_log(bucket: Bucket) -> None:
    bucket.proxy.disturb_all("DELETE", s3_error(403, "AccessDenied"))
    open_store(bucket).put_if_absent(0, b"x")
    assert open_store(bucket).slots() == [0]


def test_a_bucket_that_is_not_there_is_named(bucket: Bucket) -> None:
    absent = f"s3://{uuid.uuid4().hex}/log"
    store = twopc.open_store(absent, **bucket.storage_options)
    assert store.slots() == []
    with pytest.raises(ConfigurationError, match=f"{absent}: there is no such bucket"):
        store.put_if_absent(0, b"x")
    with pytest.raises(TwoPhaseCommitError, match="there is no such bucket"):
        CommitLog.open(store, "query")


def test_rights_that_are_missing_are_told_with_what_the_server_says(bucket: Bucket) -> None:
    denied = s3_error(403, "AccessDenied", "not for you")
    bucket.proxy.disturb_all("PUT", denied)
    with pytest.raises(ConfigurationError, match=r"nothing may be written there.*not for you"):
        open_store(bucket).put_if_absent(0, b"x")
    bucket.proxy.disturb_all("GET", denied)
    with pytest.raises(ConfigurationError, match=r"not let this process read it.*not for you.*credentials"):
        CommitLog.open(open_store(bucket), "query")


def test_rights_that_are_lost_later_leave_a_decision_in_doubt(bucket: Bucket) -> None:
    log = CommitLog.open(open_store(bucket), "query")
    bucket.proxy.disturb_all("PUT", s3_error(403, "ExpiredToken", "your token"))
    with pytest.raises(InDoubt, match="your token"):
        log.decide(FIRST)


def test_a_server_that_is_not_there_may_be_asked_again() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens
        store = twopc.open_store(
            "s3://bucket/log",
            key="test",
            secret="test",  # noqa: S106  # of nothing
            endpoint_url=f"http://127.0.0.1:{nobody.getsockname()[1]}",
            config_kwargs={"retries": {"max_attempts": 0}},
        )
        with pytest.raises(Retriable, match=r"s3://bucket/log gave no answer \(EndpointConnectionError.*Is it up"):
            CommitLog.open(store, "query")


def test_a_client_without_credentials_is_not_asked_again(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_credentials(monkeypatch, tmp_path)
    store = twopc.open_store(bucket.url("log"), endpoint_url=bucket.proxy.url)
    for ask in (store.slots, lambda: CommitLog.open(store, "query")):
        with pytest.raises(ConfigurationError, match=r"finds no credentials.*docs/stores.md"):
            ask()
    assert bucket.proxy.requests == []


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
