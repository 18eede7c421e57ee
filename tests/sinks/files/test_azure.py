"""Uncommitted blocks and their markers, on Azurite, with a proxy in front that loses and changes replies."""

import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from azure.storage.blob._shared.constants import READ_TIMEOUT

from tests.sinks.files.conftest import Place
from tests.sinks.files.uploads import (
    ID,
    TARGET,
    RemovalContract,
    Secrets,
    UploadContract,
    run_one_batch,
    the_file,
    upload,
)
from tests.support.azurite_server import AzuriteServer, repeat
from tests.support.http_proxy import Answer, HttpProxy, Lost, azure_error
from twopc import Participant, Round
from twopc.errors import ConfigurationError, OperatorRequired, OutcomeUnknown, Refused, Retriable, TransactionLost
from twopc_files.file_names import FileHandle
from twopc_files.stores.azure import MARK, Azure, block_id


@pytest.fixture(scope="module")
def one_proxy(azurite: AzuriteServer) -> Iterator[HttpProxy]:
    with HttpProxy(azurite.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def proxied(azure: Place, azurite: AzuriteServer, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The folder as it is reached through the proxy, by a client that repeats nothing by itself."""
    repeat(monkeypatch, is_repeated=False)
    return Place(azure.url, {"connection_string": azurite.connection_string(proxy.url)})


@pytest.fixture
def repeating(proxied: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    repeat(monkeypatch, is_repeated=True)
    return proxied


@pytest.fixture
def gone(proxied: Place, azurite: AzuriteServer, tmp_path: Path) -> Place:
    return Place(proxied.url, {"connection_string": azurite.connection_string(AzuriteServer(tmp_path).endpoint_url)})


@pytest.fixture
def absent(azure: Place) -> Place:
    return Place("abfs://nobody-made-it/orders", azure.storage_options)


@pytest.fixture
def secrets(azure: Place, azurite: AzuriteServer, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> Secrets:
    """By the key of the account, and by a signature."""
    repeat(monkeypatch, is_repeated=False)
    signature = azurite.signature("rwdlac")
    whole = [azurite.connection_string(proxy.url, each) for each in (None, f"SharedAccessSignature={signature}")]
    places = [Place(f"{azure.url}{n}", {"connection_string": each}) for n, each in enumerate(whole)]
    return places, [azurite.key, signature.rpartition("sig=")[2], whole[0]]


class TestUploadsOfAzure(UploadContract, RemovalContract):
    publication = ("PUT", "comp=blocklist")
    part = ("PUT", "comp=block&")
    creation = ("PUT", ".staged")
    busy = azure_error(503, "ServerBusy")
    accepted = Answer(201)
    denied = azure_error(403, "AuthorizationPermissionMismatch", "not for you")
    unauthenticated = azure_error(403, "AuthenticationFailed", "who are you")
    parts_of_nothing = ()
    absent_is = "ContainerNotFound"
    sends_lost = 2
    replies = (
        (Lost.REQUEST, Retriable),
        (Lost.REPLY, Retriable),
        (busy, Retriable),
        (azure_error(500, "InternalError"), Retriable),
        (azure_error(500, "OperationTimedOut"), Retriable),
        (azure_error(501, "NotImplemented"), OperatorRequired),
        (Answer(502, b"bad gateway"), Retriable),
        (Answer(404, b"not of Azure"), Retriable),
        (azure_error(400, "InvalidBlockList"), Retriable),
        (azure_error(409, "BlobAlreadyExists"), Retriable),
        (azure_error(412, "ConditionNotMet"), Retriable),
        (denied, OperatorRequired),
        (azure_error(401, "InvalidAuthenticationInfo"), OperatorRequired),
        (azure_error(404, "ContainerNotFound"), OutcomeUnknown),
        (azure_error(412, "LeaseIdMissing"), OutcomeUnknown),
        (azure_error(400, "InvalidInput"), OutcomeUnknown),
    )
    questions = (
        (Lost.REPLY, Retriable),
        (busy, Retriable),
        (denied, OperatorRequired),
        (Answer(404, b"not of Azure"), Retriable),
    )
    removals = ((busy, Retriable), (azure_error(500, "InternalError"), Retriable), (denied, OperatorRequired))

    def put(self, place: Place, target: str, contents: bytes, owner: str) -> None:
        azure_of(place).call(target, "upload_blob", contents, metadata={MARK: owner}, overwrite=True)


def azure_of(place: Place) -> Azure:
    store = place.store
    assert isinstance(store, Azure)
    return store


def test_a_folder_may_be_the_top_of_a_container(azure: Place) -> None:
    top = Place(azure.url.removesuffix("/data/orders"), azure.storage_options)
    committable = top.pre_commit()
    assert top.files() == [f"_twopc/{the_file(committable).pending}"]
    top.sink().commit(committable)
    assert (top.files(), top.values()) == ([the_file(committable).target], ["a", "b"])


def test_ids_of_blocks_have_one_length_that_azure_takes() -> None:
    handle = FileHandle(ID, f".{ID}-0.staged", TARGET)
    assert {len(block_id(handle, number)) for number in (0, 49_999)} <= set(range(65))


def test_blocks_of_another_writer_of_the_name_are_neither_counted_nor_published(azure: Place) -> None:
    store = azure_of(azure)
    foreign = block_id(FileHandle("another", ".another-0.staged", TARGET), 0)
    store.call(TARGET, "stage_block", foreign, b"before")
    handle = upload(azure, b"abc")
    store.call(TARGET, "stage_block", foreign.replace("-000000", "-000001"), b"after")
    seen = store.look(handle)
    assert (seen.pending_bytes, len(seen.parts)) == (3, 1)
    store.publish(handle, seen)
    assert azure.fs.cat_file(azure.path(TARGET)) == b"abc"


def test_a_commit_looks_at_the_marker_again_right_before_the_list_and_then_at_the_blob(
    proxied: Place, proxy: HttpProxy
) -> None:
    committable = proxied.pre_commit()
    proxy.requests.clear()
    proxied.sink().commit(committable)
    assert [request.method for request in proxy.requests] == [
        *("HEAD", "GET", "HEAD"),
        *("HEAD", "PUT", "HEAD"),
        "DELETE",
    ]
    assert ".staged" in proxy.requests[3].target


def test_the_list_of_blocks_is_put_only_where_there_is_no_blob(proxied: Place, proxy: HttpProxy) -> None:
    proxied.sink().commit(proxied.pre_commit())
    [request] = proxy.sent("PUT", "comp=blocklist")
    assert request.headers["If-None-Match"] == "*"


def test_a_marker_whose_blocks_azure_has_removed_is_lost(azure: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    committable = azure.pre_commit()
    monkeypatch.setattr(Azure, "_blocks", lambda *_: [])
    with pytest.raises(TransactionLost, match="2 records"):
        azure.sink().commit(committable)


def test_a_file_that_is_rolled_back_after_the_look_is_not_published(azure: Place) -> None:
    handle = upload(azure, b"abc")
    store = azure_of(azure)
    seen = store.look(handle)
    store.discard(handle)
    with pytest.raises(OSError, match="has not appeared"):
        store.publish(handle, seen)
    assert azure.targets() == []


def test_a_foreign_blob_that_comes_between_look_and_publication_is_not_overwritten(azure: Place) -> None:
    handle = upload(azure, b"abc")
    store = azure_of(azure)
    seen = store.look(handle)
    store.call(TARGET, "upload_blob", b"xyz", overwrite=True)
    with pytest.raises(OSError, match="has not appeared as this transaction's file"):
        store.publish(handle, seen)
    assert store.look(handle).is_foreign
    assert azure.fs.cat_file(azure.path(TARGET)) == b"xyz"


def test_credentials_that_azure_refuses_are_refused_before_anything_is_written(
    azure: Place, azurite: AzuriteServer, tmp_path: Path
) -> None:
    for credentials in (
        "AccountKey=d3Jvbmcga2V5IQ==",
        "AccountKey=malformed",
        f"SharedAccessSignature={azurite.signature('rwdlac', -60)}",
        f"SharedAccessSignature={azurite.signature('rw')}",
    ):
        refused = Place(azure.url, {"connection_string": azurite.connection_string(credentials=credentials)})
        with pytest.raises(ConfigurationError, match=r"(Auth|AzureSigningError).*'storage_options'"):
            run_one_batch(refused, tmp_path / "log")


def test_no_credentials_at_all_are_refused_before_anything_is_written(
    azure: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "CONNECTION_STRING", "SAS_TOKEN", "CLIENT_ID"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    with pytest.raises(ConfigurationError, match=r"client can't be made.*'storage_options'"):
        run_one_batch(Place(azure.url, {}), tmp_path / "log")


def test_a_sweep_removes_its_own_markers_and_never_another_one(azure: Place) -> None:
    own = azure.pre_commit()
    azure.pre_commit(log_id="log2")
    store = azure_of(azure)
    for below in (
        f"_twopc/{ID}-0.staged",
        f"_twopc/.{ID}-0.staged.bak",
        f"_twopc/sub/.{ID}-0.staged",
        f".{ID}-0.staged",
    ):
        store.call(below, "upload_blob", b"")
    others = [path for path in azure.files() if path != f"_twopc/{the_file(own).pending}"]
    sink = azure.sink()
    [found] = sink.recover()
    assert found.is_same_transaction(own)
    sink.abort(found)
    assert azure.files() == others


def test_a_task_that_goes_on_after_its_file_was_swept_is_vetoed(azure: Place) -> None:
    zombie = Participant({"orders": azure.sink()}, Round(1, 0), partition=0)
    zombie.write("orders", pa.record_batch({"value": ["a"]}))
    for found in azure.sink().recover():
        azure.sink().abort(found)
    vote = zombie.pre_commit()
    with pytest.raises(Refused, match="does not find the pending file"):
        azure.sink().seal([vote["orders"]], age_s=0)
    assert azure.files() == []


def test_the_trial_object_of_a_killed_process_is_removed_from_the_folder_of_a_batch_log(
    azure: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """adlfs must not take an object that it has just written for absent."""
    monkeypatch.setattr("twopc.stores.folder.ASIDE_LIVES_S", -1)
    azure.fs.pipe_file(azure.path("_manifest/.0.probe"), b"")
    azure.sink(batch_logs="manifest").open()
    assert azure.files() == []


def test_a_server_that_accepts_and_stays_silent_is_waited_for_as_the_options_say(
    azure: Place, azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat(monkeypatch, is_repeated=False)
    committable = azure.pre_commit()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        place = Place(azure.url, {"connection_string": azurite.connection_string(url), "read_timeout": 1})
        began_s = time.monotonic()
        for ask in (place.sink().open, partial(place.sink().commit, committable)):
            with pytest.raises(Retriable):
                ask()
        assert time.monotonic() - began_s < READ_TIMEOUT
    azure.sink().commit(committable)
    assert azure.values() == ["a", "b"]
