"""The Delta sink in a container of Azure: Azurite, whose conditional put decides between two commits."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sinks.delta.conftest import Bucket, Container
from tests.sinks.delta.stores_contract import StoreContract, TableContract, require_exact_through_kills
from tests.support.azurite_server import ACCOUNT, AzuriteServer, repeat
from tests.support.http_proxy import HttpProxy, azure_error
from tests.support.struck_server import STRIKES, StruckServer, Way
from tests.support.typed_records import typed
from twopc.errors import ConfigurationError
from twopc_delta.storage import Storage


@pytest.fixture
def bucket(azurite: AzuriteServer) -> Container:
    """A table of one column."""
    return Container.on(azurite)


@pytest.fixture
def proxy(azurite: AzuriteServer) -> Iterator[HttpProxy]:
    with HttpProxy(azurite.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def proxied(bucket: Container, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """The table as a client that repeats nothing by itself reaches it through the proxy."""
    repeat(monkeypatch, is_repeated=False)
    return bucket.through(proxy)


@pytest.fixture
def absent(bucket: Container) -> Bucket:
    return replace(bucket, name="nobody-made-it")


@pytest.fixture
def gone(bucket: Container, tmp_path: Path, azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    repeat(monkeypatch, is_repeated=False)
    return bucket.reached_by(connection_string=azurite.connection_string(AzuriteServer(tmp_path).endpoint_url))


@pytest.fixture
def secrets(azurite: AzuriteServer) -> list[str]:
    return [azurite.key]


class TestOnAzure(StoreContract):
    creation = "PUT"
    busy = azure_error(503, "ServerBusy")
    refused = azure_error(403, "AuthenticationFailed", "who are you")
    strange = "credential"


@pytest.mark.long
class TestContractOnAzure(TableContract):
    @pytest.fixture
    def typed_bucket(self, azurite: AzuriteServer) -> Bucket:
        return Container.on(azurite, typed().schema)


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("way", "lost"), STRIKES)
def test_a_server_that_is_killed_at_any_request_neither_loses_nor_doubles_a_record(
    azurite: AzuriteServer,  # whoever needs it first installs it
    way: Way,
    lost: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repeat(monkeypatch, is_repeated=True)
    with AzuriteServer(tmp_path / "azurite", is_durable=True) as server, StruckServer(server) as proxy:
        bucket = Container.on(server)
        require_exact_through_kills(proxy, bucket, bucket.through(proxy), tmp_path / "log", way, lost)


def test_a_table_is_reached_with_a_signature_whose_value_no_message_has(
    azurite: AzuriteServer, bucket: Container
) -> None:
    signature = azurite.signature("rwdlac")
    signed = bucket.reached_by(
        connection_string=azurite.connection_string(credentials=f"SharedAccessSignature={signature}")
    )
    signed.sink().commit_batch(0, [signed.pre_commit(["a"])])
    assert bucket.values() == ["a"]
    value = signature.rpartition("sig=")[2]
    assert value not in signed.reached.without_secrets(f"GET https://host/x?sv=1&sig={value}")


def test_wrong_keys_are_refused(azurite: AzuriteServer, bucket: Container, tmp_path: Path) -> None:
    other = AzuriteServer(tmp_path).key
    with pytest.raises(ConfigurationError, match="the store refuses"):
        bucket.reached_by(connection_string=azurite.connection_string(credentials=f"AccountKey={other}")).sink()


@pytest.mark.parametrize(
    ("url", "options", "reached"),
    [
        (
            "abfss://lake@account.dfs.core.windows.net/t",
            {"account_key": "k"},
            {"azure_storage_account_name": "account", "azure_storage_account_key": "k"},
        ),
        (
            "az://lake/t",
            {"account_name": "account", "tenant_id": "t", "client_id": "c", "client_secret": "s", "read_timeout": 9},
            {
                "azure_storage_account_name": "account",
                "azure_storage_tenant_id": "t",
                "azure_storage_client_id": "c",
                "azure_storage_client_secret": "s",
            },
        ),
        (
            "abfs://lake/t",
            {"account_name": "account", "account_host": "account.blob.core.chinacloudapi.cn", "anon": True},
            {
                "azure_storage_account_name": "account",
                "azure_storage_endpoint": "https://account.blob.core.chinacloudapi.cn",
                "azure_skip_signature": "true",
            },
        ),
        (
            "abfs://lake/t",
            {
                "connection_string": "DefaultEndpointsProtocol=https;AccountName=account;AccountKey=a==;"
                "EndpointSuffix=core.windows.net"
            },
            {
                "azure_storage_account_name": "account",
                "azure_storage_account_key": "a==",
                "azure_storage_endpoint": "https://account.blob.core.windows.net",
            },
        ),
        (
            "az://lake/t",
            {
                "connection_string": "BlobEndpoint=https://account.blob.core.windows.net/;"
                "SharedAccessSignature=sv=1&sig=s%3D"
            },
            {
                "azure_storage_account_name": "account",
                "azure_storage_sas_token": "sv=1&sig=s%3D",
                "azure_storage_endpoint": "https://account.blob.core.windows.net/",
            },
        ),
    ],
)
def test_both_clients_reach_the_same_account(url: str, options: dict[str, object], reached: dict[str, str]) -> None:
    storage = Storage.at(url, options)
    assert storage.delta_options() == reached
    assert (storage.url, storage.path, storage.delta_url) == (url, "lake/t", "az://lake/t")


def test_a_connection_string_in_the_environment_reaches_delta_rs_too(
    azurite: AzuriteServer, bucket: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string())
    of_environment = replace(bucket, storage={})
    of_environment.sink().commit_batch(0, [of_environment.pre_commit(["a"])])
    assert bucket.values() == ["a"]
    assert of_environment.reached.delta_options()["azure_storage_account_name"] == ACCOUNT


def test_a_table_of_another_account_than_its_url_names_is_refused() -> None:
    for options in ({"account_name": "other"}, {"connection_string": "accountname=other;AccountKey=a=="}):
        with pytest.raises(ConfigurationError, match="names the account 'account'"):
            Storage.at("abfss://lake@account.dfs.core.windows.net/t", options)
