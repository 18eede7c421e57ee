"""The commit log on Azure Blob Storage: put-if-absent by conditional writes, and stores that can't be used."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import twopc
from tests.cli.conftest import twopc_here
from tests.stores.conftest import Container
from tests.stores.network_log import FIRST, ObjectLogContract
from tests.support.azurite_server import AzuriteServer, install, repeat
from tests.support.commit_log import CommitLog
from tests.support.http_proxy import Answer, Changed, azure_error
from tests.support.racing_writers import race
from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.log.commit_log import read_tail
from twopc.log.entry_json import entry_name
from twopc.log.store import LogStore
from twopc.replay import ReplayCopies
from twopc.stores.places import file_system

ALL_RIGHTS = "rwdlac"


def open_store(container: Container, **options: Any) -> LogStore:
    return twopc.open_store(container.url("log"), **(options or container.storage_options))


class TestLogOnAzure(ObjectLogContract):
    busy = (Answer(500), azure_error(500, "InternalError"), azure_error(503, "ServerBusy"))
    denied = azure_error(403, "AuthenticationFailed", "not for you")
    unknown = azure_error(418, "Teapot", "a teapot")
    ignoring = Changed(without_headers=frozenset({"if-none-match"}))  # a signature, unlike a key, does not sign it
    writers = 2

    @pytest.fixture(autouse=True)
    def own_container(self, container: Container) -> None:
        self.bucket: Container = container
        self.proxy = container.proxy

    def make_store(self) -> LogStore:
        """Without the proxy, which would let requests through one by one."""
        return open_store(self.bucket, **self.bucket.server.storage_options)

    def store(self) -> LogStore:
        return open_store(self.bucket, **self.bucket.signed(ALL_RIGHTS))

    def store_that_repeats(self, monkeypatch: pytest.MonkeyPatch) -> LogStore:
        repeat(monkeypatch, is_repeated=True)
        return self.store()

    def store_at(self, server: str) -> LogStore:
        return open_store(self.bucket, connection_string=self.bucket.server.connection_string(f"http://{server}"))

    def race(self) -> list[str]:
        environment = {"AZURE_STORAGE_CONNECTION_STRING": self.bucket.server.connection_string()}
        return race(self.writers, self.bucket.url("log"), environment)


def test_a_url_that_names_the_account_is_the_same_place(container: Container) -> None:
    open_store(container).put_if_absent(0, b"x")
    url = f"abfss://{container.name}@account.dfs.core.windows.net/log"
    for same in (url, f"az://{container.name}/log", f"abfss://{container.name}/log"):
        assert twopc.open_store(same, **container.storage_options).slots() == [0]


@pytest.mark.parametrize("beside", ["log", "log-old/00000000000000000007.json", "log.bak"])
def test_blobs_beside_the_folder_with_names_that_begin_like_it_are_no_part_of_it(
    beside: str, container: Container
) -> None:
    open_store(container).put_if_absent(0, b"x")
    file_system(container.url(""), **container.storage_options)[0].pipe_file(f"{container.name}/{beside}", b"?")
    assert open_store(container).slots() == [0]


def test_a_log_is_listed_by_its_folder_and_a_slash(container: Container) -> None:
    open_store(container).slots()
    [listed] = container.proxy.sent("GET", "comp=list")
    assert parse_qs(urlsplit(listed.target).query)["prefix"] == ["log/"]


# The other files at the store. ------------------------------------------------------------------------------------


def test_replay_copies_and_checkpoints_raise_errors_of_the_store_as_oserrors(container: Container) -> None:
    url, options = container.url("data"), container.storage_options
    fs, folder = file_system(url, use_listings_cache=False, **options)
    copies = ReplayCopies(url, options)
    with fs.open(f"{folder}/whole", "wb") as file:
        file.write(b"abc")
    assert fs.open(f"{folder}/whole", "rb").read() == b"abc"
    assert (fs.size(f"{folder}/whole"), fs.isdir(folder), fs.isdir(f"{folder}/sub")) == (3, True, False)
    assert fs.cat_file(f"{folder}/whole", start=1) == b"bc"
    assert fs.find(folder) == [f"{folder}/whole"]

    def write() -> None:
        with fs.open(f"{folder}/new", "wb") as file:
            file.write(b"abc")

    def ask(path: str) -> list[Callable[[], object]]:
        return [partial(call, path) for call in (fs.ls, fs.find, fs.isdir, fs.exists, fs.info, fs.cat_file, fs.open)]

    for answer in (azure_error(503, "ServerBusy"), Answer(404, b"of a proxy")):
        container.proxy.disturb_all("GET", answer)
        container.proxy.disturb_all("HEAD", answer)
        container.proxy.disturb_all("PUT", answer)
        for asked in (*ask(folder), *ask(f"{folder}/whole"), copies.names, write):
            with pytest.raises(OSError, match=r"ServerBusy|ResourceNotFoundError|HttpResponseError") as raised:
                asked()
            assert raised.value.errno == errno.EBUSY
        container.proxy.heal()


# Credentials. -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AZURE_STORAGE_CONNECTION_STRING", "FSSPEC_ABFS_CONNECTION_STRING"])
def test_options_that_are_not_given_come_from_the_environment(name: str, container: Container) -> None:
    environment = {**os.environ, name: container.server.connection_string()}
    script = "import sys; from twopc import open_store; open_store(sys.argv[1]).put_if_absent(0, b'x')"
    subprocess.run([sys.executable, "-c", script, container.url("log")], env=environment, check=True)
    assert container.objects() == [f"log/{entry_name(0)}"]


def test_a_signature_with_the_rights_to_read_list_write_and_delete_is_enough(container: Container) -> None:
    log = CommitLog.open(open_store(container, **container.signed("rwdl")), "query")
    log.decide(FIRST)
    assert read_tail(open_store(container)) == (1, log.tail)


def test_a_url_with_a_signature_is_refused_and_not_repeated(container: Container) -> None:
    signature = container.server.signature(ALL_RIGHTS)
    with pytest.raises(ConfigurationError, match="holds a password") as refused:
        twopc.open_store(f"{container.url('log')}?{signature}")
    assert signature.rpartition("sig=")[2] not in str(refused.value)


def test_a_client_without_credentials_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "CONNECTION_STRING", "SAS_TOKEN", "CLIENT_ID"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    with pytest.raises(ConfigurationError, match=r"client for 'abfs://container/log' can't be made"):
        twopc.open_store("abfs://container/log")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (lambda container: container.signed("l"), "Authorization"),
        (lambda container: container.signed(ALL_RIGHTS, -60), "AuthorizationFailure"),
        (
            lambda container: {
                "connection_string": container.server.connection_string(credentials="AccountKey=d3Jvbmcga2V5IQ==")
            },
            "AuthorizationFailure",
        ),
        (
            lambda container: {
                "connection_string": container.server.connection_string(credentials="AccountKey=malformed")
            },
            "AzureSigningError",
        ),
    ],
    ids=["no right", "expired signature", "wrong key", "malformed key"],
)
def test_refused_credentials_are_told_with_what_the_server_says(options: Any, told: str, container: Container) -> None:
    with pytest.raises(ConfigurationError, match=rf"{container.url('log')}: nothing may be written there \(.*{told}"):
        open_store(container, **options(container)).put_if_absent(0, b"x")
    assert container.objects() == []


@pytest.mark.parametrize("options", [lambda c: c.signed("w"), lambda c: c.signed(ALL_RIGHTS, -60)])
def test_a_log_that_may_not_be_read_is_not_asked_again(options: Any, container: Container) -> None:
    with pytest.raises(ConfigurationError, match=r"not let this process read it \(.* Auth.*credentials"):
        CommitLog.open(open_store(container, **options(container)), "query")


def test_the_doctor_tries_a_log_and_a_sink_on_azure(container: Container, tmp_path: Path) -> None:
    sinks = tmp_path / "sinks.toml"
    sinks.write_text(f'[orders]\nbackend = "files"\npath = "{container.url("orders")}"\n')
    log = container.url("log")
    CommitLog.open(open_store(container), "query").close()
    before = container.objects()

    def examined(credentials: str | None = None) -> tuple[int, str]:
        known = container.server.connection_string(container.proxy.url, credentials)
        done = twopc_here("doctor", "--sinks", sinks, "--log", log, AZURE_STORAGE_CONNECTION_STRING=known)
        return done.code, done.out

    assert examined()[0] == 0
    assert container.objects() == before
    code, text = examined("AccountKey=d3Jvbmcga2V5IQ==")
    assert (code, "AuthorizationFailure" in text, "d3Jvbmcga2V5IQ==" in text) == (4, True, False)


def test_no_secret_is_in_what_is_shown_or_written(container: Container, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="twopc")
    signed = container.signed(ALL_RIGHTS)
    secrets = [
        container.server.key,
        container.server.connection_string(container.proxy.url),
        signed["connection_string"].rpartition("sig=")[2].partition(";")[0],
    ]
    shown: list[object] = []
    for number, options in enumerate((container.storage_options, signed)):
        url = container.url(f"log{number}")
        store = twopc.open_store(url, **options)
        log = CommitLog.open(store, "query")
        shown += [store, vars(store), twopc.replay.ReplayCopies(url, options), store.read(0).decode()]
        container.proxy.disturb_all("PUT", azure_error(403, "AuthenticationFailed", "the signature does not match"))
        other = twopc.open_store(container.url("other"), **options)
        for refused in (lambda log=log: log.decide(FIRST), lambda other=other: CommitLog.open(other, "query")):
            with pytest.raises(TwoPhaseCommitError) as told:
                refused()
            shown += [told.value, told.value.__cause__, told.getrepr(style="native")]
        container.proxy.heal()
    text = "\n".join([*map(repr, shown), *map(str, shown), caplog.text])
    assert "AuthenticationFailed" in text
    assert [secret for secret in secrets if secret in text] == []


# Replies that get lost. -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.crash
def test_a_decision_survives_a_kill_of_a_server_that_keeps_what_it_has_acknowledged(tmp_path: Path) -> None:
    """As the campaign that kills needs it: by itself, Azurite saves every five seconds."""
    if obstacle := install():
        pytest.skip(obstacle)
    with AzuriteServer(tmp_path, is_durable=True) as server:
        url = f"abfs://{server.make_container()}/log"
        log = CommitLog.open(twopc.open_store(url, **server.storage_options), "query")
        log.decide(FIRST)
        server.kill()
        server.start()
        assert read_tail(twopc.open_store(url, **server.storage_options)) == (1, log.tail)


# Stores that can't be used. ---------------------------------------------------------------------------------------


def test_a_conflict_that_says_nothing_of_the_slot_is_not_taken_for_an_entry(container: Container) -> None:
    store = open_store(container)
    store.put_if_absent(0, b"x")
    container.proxy.disturb_next("PUT", azure_error(409, "ContainerBeingDeleted"))
    with pytest.raises(OSError, match="ContainerBeingDeleted") as raised:
        store.put_if_absent(1, b"x")
    assert not isinstance(raised.value, FileExistsError)


def test_a_large_entry_is_one_request_too(container: Container) -> None:
    """Two writers would replace each other's blocks, as the client names them by their offsets."""
    store = open_store(container)
    store.put_if_absent(0, bytes(65 * 1024 * 1024))
    assert len(container.proxy.sent("PUT", entry_name(0))) == 1
