"""The commit log on Google Cloud Storage: put-if-absent by generation, lost replies, buckets that can't be used.

The emulator checks no credentials, so the proxy refuses them in Google's words.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import traceback
import uuid
from pathlib import Path
from typing import Any

import pytest
import requests
from aiohttp import ClientTimeout
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from fsspec import get_filesystem_class
from google.auth.credentials import Credentials
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

import twopc
from tests.stores.conftest import GcsBucket
from tests.support.gcs_repeats import repeat_at_once
from tests.support.gcs_server import BUILD_AT_MOST_S
from tests.support.http_proxy import Answer, Lost, gcs_error
from tests.support.racing_writers import race
from twopc import Committable, Round
from twopc.errors import ConfigurationError, Fenced, InDoubt, Retriable, TwoPhaseCommitError
from twopc.gcs import GcsClient
from twopc.log.commit_log import CommitLog, read_tail
from twopc.log.entries import Decision
from twopc.log.store import LogStore, entry_name
from twopc.places import file_system
from twopc.testing import LogStoreContract

pytestmark = pytest.mark.timeout(BUILD_AT_MOST_S)

CREATES = "ifGenerationMatch=0"
"""In the target of a conditional write. The name of the object is in the body."""

FIRST = Decision(Round(1, 0), {"sink": (Committable("t0", {}, 1),)})

ANONYMOUS = gcs_error(401, "Anonymous caller does not have storage.objects.create access")
FORBIDDEN = gcs_error(403, "reader@project does not have storage.objects.create access")
INVALID = gcs_error(401, "Request had invalid authentication credentials. Expected OAuth 2 access token.")


def open_store(bucket: GcsBucket) -> LogStore:
    return twopc.open_store(bucket.url("log"), **bucket.storage_options)


class TestObjectStoreOnGcs(LogStoreContract):
    """Without the proxy, which would send one request at a time."""

    races = 5

    @pytest.fixture(autouse=True)
    def own_bucket(self, gcs_bucket: GcsBucket) -> None:
        self.bucket = gcs_bucket

    def make_store(self) -> LogStore:
        return twopc.open_store(self.bucket.url("log"), **self.bucket.server.storage_options)


def test_one_of_the_processes_that_race_for_a_slot_wins(gcs_bucket: GcsBucket) -> None:
    outcomes = race(4, gcs_bucket.url("log"), **gcs_bucket.server.storage_options)
    assert sorted(outcomes) == ["refused", "refused", "refused", "won"]
    assert open_store(gcs_bucket).read(0) == str(outcomes.index("won")).encode()


def test_nothing_but_entries_is_left_in_the_folder(gcs_bucket: GcsBucket) -> None:
    CommitLog.open(open_store(gcs_bucket), "query").close()
    assert gcs_bucket.objects() == [f"log/{entry_name(0)}", f"log/{entry_name(1)}"]


def test_a_log_at_the_top_of_a_bucket_is_fine(gcs_bucket: GcsBucket) -> None:
    store = twopc.open_store(f"gcs://{gcs_bucket.name}/", **gcs_bucket.storage_options)
    CommitLog.open(store, "query")
    assert gcs_bucket.objects() == [entry_name(0)]


def test_an_entry_of_any_size_is_written_by_one_conditional_request_and_read_by_one(gcs_bucket: GcsBucket) -> None:
    """gcsfs would send 50 MiB in parts, and would check the condition when it begins."""
    store, large = open_store(gcs_bucket), bytes(51 * 2**20)
    store.put_if_absent(0, b"small")
    gcs_bucket.proxy.requests.clear()
    store.put_if_absent(1, large)
    assert len(gcs_bucket.proxy.sent("POST", CREATES)) == len(gcs_bucket.proxy.requests) == 1
    assert store.read(1) == large
    assert len(gcs_bucket.proxy.requests) == 2


def test_the_client_is_the_one_that_sends_every_condition_in_every_bucket(gcs_bucket: GcsBucket) -> None:
    """fsspec's own class for ``gs://`` ignores it in zonal buckets, and asks Google which these are."""
    fs, path = file_system(gcs_bucket.url("log"), **gcs_bucket.storage_options)
    assert (type(fs), path) == (GcsClient, f"{gcs_bucket.name}/log")
    assert not isinstance(fs, get_filesystem_class("gs"))


def test_a_store_travels_to_another_process_with_its_options(gcs_bucket: GcsBucket) -> None:
    open_store(gcs_bucket).put_if_absent(0, b"x")
    assert pickle.loads(pickle.dumps(open_store(gcs_bucket))).read(0) == b"x"  # noqa: S301  # our own bytes


def test_a_forked_process_opens_a_store_of_its_own_and_so_can_its_parent(gcs_bucket: GcsBucket) -> None:
    """As Spark's Python workers do, whose parent may have used the client."""
    store = open_store(gcs_bucket)
    store.put_if_absent(0, b"of the parent")
    child = multiprocessing.get_context("fork").Process(target=lambda: open_store(gcs_bucket).put_if_absent(1, b"x"))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    store.put_if_absent(2, b"of the parent")
    assert store.slots() == [0, 1, 2]


@pytest.mark.parametrize("variable", ["STORAGE_EMULATOR_HOST", "FSSPEC_GS_ENDPOINT_URL", "FSSPEC_GCS_ENDPOINT_URL"])
def test_options_that_are_not_given_come_from_the_environment(variable: str, gcs_bucket: GcsBucket) -> None:
    environment = {**os.environ, variable: gcs_bucket.proxy.url, "FSSPEC_GS_TOKEN": "anon"}
    script = "import sys; from twopc import open_store; open_store(sys.argv[1]).put_if_absent(0, b'x')"
    subprocess.run([sys.executable, "-c", script, gcs_bucket.url("log")], env=environment, check=True)
    assert gcs_bucket.objects() == [f"log/{entry_name(0)}"]


def test_the_doctor_tries_the_store_and_leaves_nothing(gcs_bucket: GcsBucket, tmp_path: Path) -> None:
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": gcs_bucket.server.endpoint_url, "FSSPEC_GS_TOKEN": "anon"}
    sinks = tmp_path / "sinks.toml"
    options = json.dumps(gcs_bucket.server.storage_options)
    sinks.write_text(f"[orders]\nbackend = 'files'\npath = '{gcs_bucket.url('data')}'\nstorage_options = '{options}'\n")
    command = [sys.executable, "-m", "twopc.cli", "doctor", "--sinks", str(sinks), "--log", gcs_bucket.url("log")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("5 passed, 0 warning, 0 failed\n")
    assert gcs_bucket.objects() == []


# Replies that get lost. -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", Lost)
def test_a_decision_whose_request_or_reply_is_lost_is_in_the_log_once(lost: Lost, gcs_bucket: GcsBucket) -> None:
    log = CommitLog.open(open_store(gcs_bucket), "query")
    gcs_bucket.proxy.disturb_next("POST", lost, CREATES)
    log.decide(FIRST)
    assert gcs_bucket.proxy.is_done
    assert read_tail(open_store(gcs_bucket)) == (1, log.tail)
    assert log.tail.decided == 0


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_request_whose_answer_does_not_report_the_outcome_is_repeated(status: int, gcs_bucket: GcsBucket) -> None:
    log = CommitLog.open(open_store(gcs_bucket), "query")
    gcs_bucket.proxy.requests.clear()
    gcs_bucket.proxy.disturb_next("POST", gcs_error(status), CREATES)
    log.decide(FIRST)
    assert gcs_bucket.proxy.is_done
    assert len(gcs_bucket.proxy.sent("POST", CREATES)) == 2
    assert read_tail(open_store(gcs_bucket)) == (1, log.tail)


@pytest.mark.parametrize("answer", [gcs_error(503, "try later"), gcs_error(403, "Rate Limit Exceeded"), Answer(500)])
def test_a_store_that_never_reports_the_outcome_leaves_the_decision_in_doubt(
    answer: Answer, gcs_bucket: GcsBucket
) -> None:
    log = CommitLog.open(open_store(gcs_bucket), "query")
    gcs_bucket.proxy.disturb_all("POST", answer, CREATES)
    with pytest.raises(InDoubt, match=gcs_bucket.url("log")):
        log.decide(FIRST)
    gcs_bucket.proxy.heal()
    assert CommitLog.open(open_store(gcs_bucket), "query").tail.decided is None


def test_a_decision_that_cannot_be_read_back_is_in_doubt_and_found_by_the_next_coordinator(
    gcs_bucket: GcsBucket,
) -> None:
    log = CommitLog.open(open_store(gcs_bucket), "query")
    gcs_bucket.proxy.disturb_next("POST", Lost.REPLY, CREATES)
    gcs_bucket.proxy.disturb_all("GET", Answer(500))
    with pytest.raises(InDoubt):
        log.decide(FIRST)
    gcs_bucket.proxy.heal()
    assert CommitLog.open(open_store(gcs_bucket), "query").tail.decided == 0


def test_a_lost_request_whose_slot_a_newer_coordinator_took_is_fenced(gcs_bucket: GcsBucket) -> None:
    log = CommitLog.open(open_store(gcs_bucket), "query")
    newer = CommitLog.open(twopc.open_store(gcs_bucket.url("log"), **gcs_bucket.server.storage_options), "query")
    gcs_bucket.proxy.disturb_next("POST", Lost.REQUEST, CREATES)
    with pytest.raises(Fenced):
        log.decide(FIRST)
    newer.verify()


# Stores that can't be used. ---------------------------------------------------------------------------------------


def test_a_server_that_ignores_the_condition_is_refused_before_the_first_entry(gcs_bucket: GcsBucket) -> None:
    gcs_bucket.proxy.disturb_all("POST", Answer(200, b'{"size": "0"}'), CREATES)
    with pytest.raises(ConfigurationError, match=f"{gcs_bucket.url('log')}.*overwrites"):
        open_store(gcs_bucket).put_if_absent(0, b"x")
    assert gcs_bucket.objects() == []


def test_a_gateway_that_refuses_every_conditional_write_is_refused_before_the_first_entry(
    gcs_bucket: GcsBucket,
) -> None:
    """Otherwise every entry would seem to be another coordinator's."""
    gcs_bucket.proxy.disturb_all("POST", gcs_error(412, "conditionNotMet"), CREATES)
    with pytest.raises(ConfigurationError, match=f"{gcs_bucket.url('log')}.*even where there is none"):
        open_store(gcs_bucket).put_if_absent(0, b"x")


def test_a_store_is_tried_once_and_only_where_something_is_written(gcs_bucket: GcsBucket) -> None:
    store = open_store(gcs_bucket)
    assert store.slots() == []
    assert gcs_bucket.proxy.sent("POST") == []
    log = CommitLog.open(store, "query")
    log.decide(FIRST)
    assert len(gcs_bucket.proxy.sent("POST", CREATES)) == 2 + 2
    assert len(gcs_bucket.proxy.sent("DELETE", ".probe")) == 1


def test_a_trial_whose_reply_is_lost_is_not_taken_for_a_refusal(gcs_bucket: GcsBucket) -> None:
    gcs_bucket.proxy.disturb_next("POST", Lost.REPLY, CREATES)
    open_store(gcs_bucket).put_if_absent(0, b"x")
    assert gcs_bucket.objects() == [f"log/{entry_name(0)}"]


def test_a_trial_that_cannot_be_removed_does_not_stop_the_log(gcs_bucket: GcsBucket) -> None:
    gcs_bucket.proxy.disturb_all("DELETE", FORBIDDEN)
    open_store(gcs_bucket).put_if_absent(0, b"x")
    assert open_store(gcs_bucket).slots() == [0]


def test_a_bucket_that_is_not_there_is_named(gcs_bucket: GcsBucket) -> None:
    absent = f"gs://{uuid.uuid4().hex}/log"
    store = twopc.open_store(absent, **gcs_bucket.storage_options)
    assert store.slots() == []
    with pytest.raises(ConfigurationError, match=f"{absent}: there is no such bucket"):
        store.put_if_absent(0, b"x")
    with pytest.raises(TwoPhaseCommitError, match="there is no such bucket"):
        CommitLog.open(store, "query")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ANONYMOUS, "Anonymous caller does not have"),
        (FORBIDDEN, "reader@project does not have"),
        (INVALID, "invalid authentication credentials"),
    ],
)
def test_refused_rights_and_credentials_are_reported_with_the_servers_message(
    answer: Answer, message: str, gcs_bucket: GcsBucket
) -> None:
    gcs_bucket.proxy.disturb_all("POST", answer)
    with pytest.raises(ConfigurationError, match=f"nothing may be written there.*{message}"):
        open_store(gcs_bucket).put_if_absent(0, b"x")
    gcs_bucket.proxy.disturb_all("GET", answer)
    with pytest.raises(ConfigurationError, match=rf"not let this process read it.*{message}.*credentials"):
        CommitLog.open(open_store(gcs_bucket), "query")


def test_rights_that_are_lost_later_leave_a_decision_in_doubt(gcs_bucket: GcsBucket) -> None:
    log = CommitLog.open(open_store(gcs_bucket), "query")
    gcs_bucket.proxy.disturb_all("POST", FORBIDDEN, CREATES)
    with pytest.raises(InDoubt, match="reader@project"):
        log.decide(FIRST)


def test_a_server_that_is_not_there_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    repeat_at_once(monkeypatch)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens
        nowhere = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        store = twopc.open_store("gs://bucket/log", token="anon", endpoint_url=nowhere)  # noqa: S106
        with pytest.raises(Retriable, match=r"gs://bucket/log gave no answer .*Connect.*Is it up"):
            CommitLog.open(store, "query")


@pytest.mark.parametrize("is_given", [False, True], ids=["by default", "as an option"])
def test_a_server_that_accepts_and_stays_silent_may_be_asked_again(
    is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option with a limit in all raises an error of another class, which gcsfs does not repeat."""
    repeat_at_once(monkeypatch)
    monkeypatch.setattr("twopc.gcs.TIMEOUTS", ClientTimeout(sock_connect=10, sock_read=0.1))
    options = {"requests_timeout": ClientTimeout(total=0.1)} if is_given else {}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = twopc.open_store("gs://bucket/log", token="anon", endpoint_url=endpoint, **options)  # noqa: S106
        with pytest.raises(Retriable, match=r"gs://bucket/log gave no answer .*Timeout") as error:
            CommitLog.open(store, "query")
    assert isinstance(error.value.__cause__, OSError)
    assert error.value.__cause__.errno == errno.ETIMEDOUT


# Credentials. -----------------------------------------------------------------------------------------------------

SECRET = "ya29.the-secret"  # noqa: S105  # of nothing


def service_account(token_uri: str) -> dict[str, str]:
    """What the file of a service account's key has in it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {
        "type": "service_account",
        "project_id": "project",
        "private_key_id": "the-key-id",
        "private_key": pem,
        "client_email": "writer@project.iam.gserviceaccount.com",
        "token_uri": token_uri,
    }


def shown(error: BaseException) -> str:
    """Everything of an error that a log of the process shows."""
    return "".join(traceback.format_exception(error)) + repr(error)


def test_a_key_of_a_service_account_is_used_and_shown_nowhere(
    gcs_bucket: GcsBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    account = service_account(f"{gcs_bucket.proxy.url}/token")
    line = account["private_key"].splitlines()[1]
    key = tmp_path / "key.json"
    key.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    granted = Answer(200, json.dumps({"access_token": SECRET, "expires_in": 3600}).encode())
    gcs_bucket.proxy.disturb_all("POST", granted, "/token")
    texts: list[str] = []
    for token in (account, str(key), "google_default"):
        options = {"token": token, "endpoint_url": gcs_bucket.proxy.url}
        store = twopc.open_store(gcs_bucket.url(f"log-{len(texts)}"), **options)
        CommitLog.open(store, "query")
        texts += [repr(store), store.read(0).decode(), repr(twopc.replay.ReplayCopies("gs://bucket/copies", options))]
    sent = gcs_bucket.proxy.sent("POST", CREATES)
    assert {request.headers["authorization"] for request in sent} == {f"Bearer {SECRET}"}
    gcs_bucket.proxy.disturb_all("POST", FORBIDDEN, CREATES)
    with pytest.raises(ConfigurationError) as refused:
        twopc.open_store(gcs_bucket.url("other"), token=account, endpoint_url=gcs_bucket.proxy.url).put_if_absent(
            0, b""
        )
    texts += [shown(refused.value), caplog.text]
    assert not any(secret in text for text in texts for secret in (SECRET, line, "the-key-id"))


def test_a_key_that_was_deleted_is_refused_with_googles_message(gcs_bucket: GcsBucket) -> None:
    account = service_account(f"{gcs_bucket.proxy.url}/token")
    deleted = json.dumps({"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
    gcs_bucket.proxy.disturb_all("POST", Answer(400, deleted.encode()), "/token")
    store = twopc.open_store(gcs_bucket.url("log"), token=account, endpoint_url=gcs_bucket.proxy.url)
    with pytest.raises(ConfigurationError, match=r"Invalid JWT Signature.*docs/stores.md") as refused:
        store.slots()
    assert account["private_key"].splitlines()[1] not in shown(refused.value)


def test_credentials_that_gcsfs_can_not_use_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="the client for 'gs://bucket/log' can't be made") as refused:
        twopc.open_store("gs://bucket/log", token={"type": "service_account", "private_key": SECRET})
    assert SECRET not in shown(refused.value)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (requests.ConnectionError(f"Max retries exceeded with url: /tokeninfo?access_token={SECRET}"), Retriable),
        (503, Retriable),
        (404, ConfigurationError),
    ],
    ids=["no answer", "busy", "refused"],
)
def test_an_access_token_that_google_can_not_be_asked_about_may_be_asked_about_again(
    answer: Any, expected: type[TwoPhaseCommitError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(url: str, params: Any, **_: Any) -> requests.Response:
        if isinstance(answer, Exception):
            raise answer
        response = requests.Response()
        response.status_code, response.url = answer, f"{url}?access_token={params['access_token']}"
        return response

    monkeypatch.setattr("gcsfs.credentials.requests.get", ask)
    with pytest.raises(TwoPhaseCommitError, match=r"the client for 'gs://bucket/log' can't be made.*'token'") as error:
        twopc.open_store("gs://bucket/log", token=SECRET)
    assert type(error.value) is expected
    assert SECRET not in shown(error.value)


class OfMetadataServer(Credentials):
    """The credentials of a machine or pod, whose metadata server is not there at the moment."""

    def refresh(self, request: object) -> None:
        try:
            raise TransportError("Failed to retrieve http://metadata.google.internal/: timed out")  # type: ignore[no-untyped-call]
        except TransportError as error:
            raise RefreshError(error) from error  # type: ignore[no-untyped-call]


def test_a_metadata_server_that_gives_no_answer_may_be_asked_again(
    gcs_bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat_at_once(monkeypatch)
    token = OfMetadataServer()  # type: ignore[no-untyped-call]
    store = twopc.open_store(gcs_bucket.url("log"), **{**gcs_bucket.storage_options, "token": token})
    with pytest.raises(Retriable, match=r"metadata\.google\.internal"):
        CommitLog.open(store, "query")


def test_a_machine_whose_metadata_server_is_not_ready_is_asked_again_for_its_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("google.auth.compute_engine.Credentials", OfMetadataServer)
    with pytest.raises(Retriable, match="can't be made at this moment"):
        twopc.open_store("gs://bucket/log", token="cloud")  # noqa: S106  # a method


def test_without_credentials_no_anonymous_request_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """gcsfs would send them to Google for the rest of the process."""

    def find_none(**_: Any) -> None:
        raise DefaultCredentialsError("Your default credentials were not found")  # type: ignore[no-untyped-call]

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr("google.auth.default", find_none)
    with pytest.raises(ConfigurationError, match="Your default credentials were not found"):
        twopc.open_store("gs://bucket/log")
    twopc.open_store("gs://bucket/log", endpoint_url="http://127.0.0.1:1")


def test_default_credentials_that_are_missing_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    with pytest.raises(ConfigurationError, match=r"absent\.json"):
        twopc.open_store("gs://bucket/log", token="google_default")  # noqa: S106  # a method
