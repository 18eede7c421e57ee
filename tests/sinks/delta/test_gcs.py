"""The Delta sink on Google Cloud Storage: fake-gcs-server, whose conditional upload decides between two commits."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.sinks.delta.conftest import Bucket, GcsBucket
from tests.sinks.delta.stores_contract import StoreContract, TableContract, require_exact_through_kills
from tests.support.gcs_repeats import repeat_at_once
from tests.support.gcs_server import BUILD_AT_MOST_S, GcsServer
from tests.support.gcs_server import gcs_server as new_server
from tests.support.gcs_xml_api import GcsXmlApi
from tests.support.http_proxy import HttpProxy, gcs_error
from tests.support.s3_server import free_port
from tests.support.struck_server import STRIKES, StruckServer, Way
from tests.support.typed_records import typed
from twopc.errors import ConfigurationError
from twopc_delta.storage import Storage
from twopc_delta.stores import STORES

pytestmark = pytest.mark.timeout(BUILD_AT_MOST_S)

KEY = {"type": "service_account", "client_email": "a@b", "private_key": "a-secret-that-nobody-sees"}


@pytest.fixture(scope="module")
def api(gcs_server: GcsServer) -> Iterator[GcsXmlApi]:
    with GcsXmlApi(gcs_server.endpoint_url) as api:
        yield api


@pytest.fixture
def storage(gcs_server: GcsServer, api: GcsXmlApi) -> dict[str, Any]:
    """The options to reach the server."""
    return {**gcs_server.storage_options, "endpoint_url": api.url}


@pytest.fixture
def bucket(storage: dict[str, Any]) -> GcsBucket:
    """A table of one column."""
    return GcsBucket.on(storage)


@pytest.fixture
def proxy(api: GcsXmlApi) -> Iterator[HttpProxy]:
    with HttpProxy(api.url) as proxy:
        yield proxy


@pytest.fixture
def proxied(bucket: GcsBucket, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """The table as it is reached through the proxy."""
    repeat_at_once(monkeypatch)
    return bucket.through(proxy)


@pytest.fixture
def absent(bucket: GcsBucket) -> Bucket:
    return replace(bucket, name="nobody-made-it")


@pytest.fixture
def gone(bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    repeat_at_once(monkeypatch)
    return bucket.reached_by(endpoint_url=f"http://127.0.0.1:{free_port()}")


@pytest.fixture
def secrets() -> list[str]:
    return []


class TestOnGcs(StoreContract):
    creation = "POST"
    entry = "ifGenerationMatch=0"
    busy = gcs_error(503)
    refused = gcs_error(403, "writer@project does not have storage.objects access")
    strange = "requester_pays"


@pytest.mark.long
class TestContractOnGcs(TableContract):
    @pytest.fixture
    def typed_bucket(self, storage: dict[str, Any]) -> Bucket:
        return GcsBucket.on(storage, typed().schema)


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.parametrize(("way", "lost"), STRIKES)
def test_a_server_that_is_killed_at_any_request_neither_loses_nor_doubles_a_record(
    way: Way, lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat_at_once(monkeypatch)
    with (
        new_server(tmp_path / "gcs") as server,
        StruckServer(server) as proxy,
        GcsXmlApi(proxy.url) as api,
    ):
        bucket = GcsBucket.on({**server.storage_options, "endpoint_url": api.url})
        require_exact_through_kills(proxy, bucket, bucket, tmp_path / "log", way, lost)


def test_both_clients_take_the_same_credentials(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.write_text(json.dumps(KEY))
    for token, reached in (
        (KEY, {"google_service_account_key": json.dumps(KEY, separators=(",", ":"))}),
        (str(file), {"google_application_credentials": str(file)}),
        ("google_default", {}),
    ):
        storage = Storage.at("gcs://lake/t", {"token": token, "project": "p"})
        assert storage.delta_options() == reached
        assert (storage.url, storage.path, storage.delta_url) == ("gs://lake/t", "lake/t", "gs://lake/t")
    assert KEY["private_key"] not in Storage.at("gs://lake/t", {"token": KEY}).without_secrets(KEY["private_key"])


@pytest.mark.parametrize("token", ["cloud", "ya29.an-access-token"])
def test_a_token_that_delta_rs_does_not_take_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ConfigurationError, match="takes as 'token'") as raised:
        Storage.at("gs://lake/t", {"token": token})
    assert token not in str(raised.value)


def test_an_emulator_in_the_environment_reaches_delta_rs_too(
    bucket: GcsBucket, api: GcsXmlApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", api.url)
    of_environment = replace(bucket, storage={"token": "anon", "project": "test"})
    of_environment.sink().commit_batch(0, [of_environment.pre_commit(["a"])])
    assert bucket.values() == ["a"]


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        ("127.0.0.1:4443", "http://127.0.0.1:4443"),
        ("https://127.0.0.1:4443", "https://127.0.0.1:4443"),
        ("default", None),
    ],
)
def test_an_emulator_may_be_named_without_a_scheme(
    given: str, reached: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", given)
    assert Storage.at("gs://lake/t", {}).delta_options().get("google_base_url") == reached


@pytest.mark.parametrize("char", ["\t", "\x01"])
def test_a_path_of_which_delta_rs_leaves_a_part_out_is_refused(char: str) -> None:
    for path in (f"gs://lake/a{char}b", "gs://lake/a/../b", "gs://lake/."):
        with pytest.raises(ConfigurationError, match="two different folders"):
            Storage.at(path, {"token": "anon"})


def test_a_listing_goes_on_after_a_page_that_has_nothing() -> None:
    class Client:
        pages: ClassVar[list[dict[str, object]]] = [
            {"nextPageToken": "1"},
            {"items": [{"name": "t/1"}, {"name": "t/2"}]},
        ]

        def split_path(self, path: str) -> tuple[str, str, None]:
            return "lake", path.removeprefix("lake/"), None

        def call(self, *_: object, **page: object) -> dict[str, object]:
            return self.pages["pageToken" in page]

    store = STORES["gs"]
    assert store.listed(Client(), "lake/t", "0", 10) == (["1", "2"], False)
    assert store.listed(Client(), "lake/t", "0", 1) == (["1"], True)
