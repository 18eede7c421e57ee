"""The commit log on Google Cloud Storage: put-if-absent by generation, lost replies, buckets that can't be used.

The emulator checks no credentials, so the proxy refuses them in Google's words.
"""

import errno
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gcsfs.credentials  # type: ignore[import-untyped]
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
from tests.stores.network_log import ObjectLogContract
from tests.support.commit_log import CommitLog
from tests.support.gcs_repeats import repeat_at_once
from tests.support.gcs_server import BUILD_AT_MOST_S
from tests.support.http_proxy import Answer, gcs_error
from tests.support.racing_writers import race
from tests.support.raising import raising
from twopc.errors import ConfigurationError, Retriable, TwoPhaseCommitError
from twopc.log.entry_json import entry_name
from twopc.log.store import LogStore
from twopc.stores.gcs import GcsClient
from twopc.stores.places import file_system

pytestmark = pytest.mark.timeout(BUILD_AT_MOST_S)

CREATES = "ifGenerationMatch=0"
"""In the target of a conditional write. The name of the object is in the body."""

FORBIDDEN = gcs_error(403, "reader@project does not have storage.objects.create access")


def open_store(bucket: GcsBucket) -> LogStore:
    return twopc.open_store(bucket.url("log"), **bucket.storage_options)


class TestLogOnGcs(ObjectLogContract):
    method = "POST"
    busy = (*map(gcs_error, (503, 408, 429, 502, 504)), gcs_error(403, "Rate Limit Exceeded"), Answer(500))
    denied = gcs_error(403, "not for you")
    unknown = gcs_error(418, "a teapot")
    ignoring = Answer(200, b'{"size": "0"}')

    @pytest.fixture(autouse=True)
    def own_bucket(self, gcs_bucket: GcsBucket) -> None:
        self.bucket: GcsBucket = gcs_bucket
        self.proxy = gcs_bucket.proxy

    def make_store(self) -> LogStore:
        """Without the proxy, which would send one request at a time."""
        return twopc.open_store(self.bucket.url("log"), **self.bucket.server.storage_options)

    def store_at(self, server: str) -> LogStore:
        return twopc.open_store("gs://bucket/log", token="anon", endpoint_url=f"http://{server}")  # noqa: S106

    def race(self) -> list[str]:
        return race(self.writers, self.bucket.url("log"), **self.bucket.server.storage_options)

    def creates(self, name: str) -> Callable[[str], bool]:  # it is in the body
        return lambda target: CREATES in target

    def test_a_trial_without_an_answer_is_repeated_with_the_entry(self) -> None:
        pytest.skip("gcsfs itself repeats the trial's request")


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


# Stores that can't be used. ---------------------------------------------------------------------------------------


def test_a_gateway_that_refuses_every_conditional_write_is_refused_before_the_first_entry(
    gcs_bucket: GcsBucket,
) -> None:
    """Otherwise every entry would seem to be another coordinator's."""
    gcs_bucket.proxy.disturb_all("POST", gcs_error(412, "conditionNotMet"), CREATES)
    with pytest.raises(ConfigurationError, match=f"{gcs_bucket.url('log')}.*even where there is none"):
        open_store(gcs_bucket).put_if_absent(0, b"x")


@pytest.mark.parametrize("is_given", [False, True], ids=["by default", "as an option"])
def test_a_server_that_accepts_and_stays_silent_may_be_asked_again(
    is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option with a limit in all raises an error of another class, which gcsfs does not repeat."""
    repeat_at_once(monkeypatch)
    monkeypatch.setattr("twopc.stores.gcs.TIMEOUTS", ClientTimeout(sock_connect=10, sock_read=0.1))
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
    with pytest.raises(ConfigurationError, match=r"Invalid JWT Signature.*twopc.open_store") as refused:
        store.slots()
    assert account["private_key"].splitlines()[1] not in shown(refused.value)


def test_credentials_that_gcsfs_can_not_use_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="the client for 'gs://bucket/log' can't be made") as refused:
        twopc.open_store("gs://bucket/log", token={"type": "service_account", "private_key": SECRET})
    assert SECRET not in shown(refused.value)


@pytest.mark.skipif(
    not hasattr(gcsfs.credentials, "_get_creds_from_raw_token"), reason="this gcsfs asks Google about no access token"
)
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
    find_none = raising(DefaultCredentialsError("Your default credentials were not found"))  # type: ignore[no-untyped-call]
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr("google.auth.default", find_none)
    with pytest.raises(ConfigurationError, match="Your default credentials were not found"):
        twopc.open_store("gs://bucket/log")
    twopc.open_store("gs://bucket/log", endpoint_url="http://127.0.0.1:1")
