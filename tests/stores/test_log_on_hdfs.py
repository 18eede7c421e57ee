"""The commit log on HDFS: put-if-absent by a rename, replies that get lost, and nodes that are away."""

import socket
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fsspec
import pytest

import twopc
from tests.stores.network_log import FIRST, NetworkLogContract
from tests.support.commit_log import CommitLog
from tests.support.hdfs_server import HOME, TEST_AT_MOST_S, USER, HdfsServer
from tests.support.http_proxy import Answer, HttpProxy, Lost, Repeated, hdfs_error
from tests.support.racing_writers import race
from tests.support.waiting import until
from twopc import Round
from twopc.errors import ConfigurationError, Fenced, InDoubt, Retriable, TwoPhaseCommitError
from twopc.log.commit_log import read_tail
from twopc.log.entries import Decision
from twopc.log.entry_json import entry_name
from twopc.log.store import LogStore

pytestmark = [pytest.mark.long, pytest.mark.timeout(TEST_AT_MOST_S)]  # a cluster takes seconds to start


@dataclass(frozen=True)
class Folder:
    """A folder of the current test, and the proxy on the way to its NameNode."""

    path: str
    server: HdfsServer
    proxy: HttpProxy

    @property
    def url(self) -> str:
        return self.server.url(self.path)

    @property
    def behind_proxy(self) -> str:
        return f"webhdfs://{self.proxy.url.removeprefix('http://')}{self.path}"

    def store(self, **options: Any) -> LogStore:
        return twopc.open_store(self.behind_proxy, **{"user": USER, **options})

    @property
    def fs(self) -> Any:
        """A client that shares nothing with the one under test."""
        return fsspec.filesystem("webhdfs", host="127.0.0.1", port=self.server.port, user=USER)

    def names(self) -> list[str]:
        try:
            return [path.rsplit("/", 1)[1] for path in self.fs.ls(self.path)]
        except FileNotFoundError:
            return []


@pytest.fixture
def folder(hdfs_server: HdfsServer) -> Iterator[Folder]:
    hdfs_server.start()  # what an earlier test has killed
    with HttpProxy(f"http://127.0.0.1:{hdfs_server.port}") as proxy:
        yield Folder(f"{HOME}/{uuid.uuid4().hex}/log", hdfs_server, proxy)


def renames(name: str = "") -> Callable[[str], bool]:
    """Return what recognizes a rename to ``name``."""
    return lambda target: "op=RENAME" in target and name in target


class TestLogOnHdfs(NetworkLogContract):
    busy = (
        Answer(503),
        hdfs_error(403, "SafeModeException"),
        hdfs_error(403, "StandbyException"),
        hdfs_error(403, "IOException", "Failed to find datanode"),
        hdfs_error(500, "NullPointerException"),
        hdfs_error(404, "FileNotFoundException", "rename source is not found"),
    )
    denied = hdfs_error(403, "AccessControlException", "not for you")
    ignoring = Answer(200)

    @pytest.fixture(autouse=True)
    def own_folder(self, folder: Folder) -> None:
        self.folder = folder
        self.proxy = folder.proxy

    def make_store(self) -> LogStore:
        return twopc.open_store(self.folder.url, user=USER)

    def store(self) -> LogStore:
        return self.folder.store()

    def store_at(self, server: str) -> LogStore:
        return twopc.open_store(f"webhdfs://{server}/log", user=USER)

    def race(self) -> list[str]:
        return race(self.writers, self.folder.url, user=USER)

    def names(self) -> list[str]:
        return self.folder.names()

    def creates(self, name: str) -> Callable[[str], bool]:
        return renames(name)


def test_a_trial_leaves_no_folder_behind(folder: Folder) -> None:
    store = folder.store()
    store.try_put_if_absent()  # type: ignore[attr-defined]  # of the stores that open_store returns
    assert not folder.fs.exists(folder.path.rpartition("/")[0])


def test_what_a_killed_writer_left_aside_is_removed_when_it_is_old(folder: Folder) -> None:
    folder.store().put_if_absent(0, b"x")
    for name, age_s in ((".old.aside", 7200), (".young.aside", 60)):
        folder.fs.pipe_file(f"{folder.path}/{name}", b"half")
        written_ms = str(int((time.time() - age_s) * 1000))
        folder.server.ask("PUT", f"{folder.path}/{name}", "SETTIMES", user=USER, modificationtime=written_ms)
    store = folder.store()
    assert store.slots() == [0]
    store.put_if_absent(1, b"y")
    assert folder.names() == [".young.aside", entry_name(0), entry_name(1)]


def test_a_folder_of_the_name_of_an_entry_takes_no_entry_in(folder: Folder) -> None:
    """Hadoop's older rename would move the entry into it, and answer with success."""
    folder.fs.mkdir(f"{folder.path}/{entry_name(0)}")
    with pytest.raises(OSError, match="must both be directories"):
        folder.store().put_if_absent(0, b"x")
    assert folder.fs.ls(f"{folder.path}/{entry_name(0)}") == []


# Replies that get lost. -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["CREATE", "RENAME"])
def test_a_request_that_a_gateway_repeats_decides_once(operation: str, folder: Folder) -> None:
    data_node = f"127.0.0.1:{folder.server.data_node.port}"
    with HttpProxy(f"http://{data_node}") as gateway:
        store = folder.store(data_proxy={data_node: gateway.url.removeprefix("http://")})
        log = CommitLog.open(store, "query")
        repeating = gateway if operation == "CREATE" else folder.proxy  # the DataNode creates, the NameNode renames
        repeating.disturb_next("PUT", Repeated(), f"op={operation}")
        log.decide(FIRST)
        assert repeating.is_done
    assert read_tail(folder.store()) == (1, log.tail)
    assert folder.names() == [entry_name(0), entry_name(1)]


@pytest.mark.parametrize("operation", ["CREATE", "RENAME"])
def test_a_request_that_a_gateway_repeats_is_neither_a_taken_slot_nor_a_refusal(operation: str, folder: Folder) -> None:
    store = folder.store()
    store.put_if_absent(0, b"x")
    name = "FileAlreadyExistsException" if operation == "CREATE" else "FileNotFoundException"
    folder.proxy.disturb_next("PUT", hdfs_error(403, name), f"op={operation}")
    with pytest.raises(BlockingIOError, match="as the test asked"):
        store.put_if_absent(1, b"y")


def test_a_name_node_that_may_edit_no_more_fences_a_writer_and_not_a_reader(folder: Folder) -> None:
    """A former NameNode that is cut off from its journal serves reads, until it must write."""
    log = CommitLog.open(folder.store(), "query")
    for method in ("PUT", "POST", "DELETE"):
        folder.proxy.disturb_all(method, Lost.REQUEST)
    with pytest.raises(Retriable, match="gave no answer"):
        log.verify()
    with pytest.raises(Retriable, match="gave no answer"):
        CommitLog.resume(folder.store(), log.tail.log_id, log.incarnation)
    assert read_tail(folder.store()) == (0, log.tail)


def test_an_edit_changes_no_entry_and_a_reader_makes_none(folder: Folder) -> None:
    log = CommitLog.open(folder.store(), "query")
    folder.proxy.requests.clear()
    read_tail(folder.store())
    assert folder.proxy.sent("PUT") == []
    log.verify()
    assert len(folder.proxy.sent("PUT", "op=SETTIMES")) == len(folder.proxy.sent("PUT")) == 1
    assert folder.names() == [entry_name(0)]


def test_a_log_that_was_removed_fences_its_writer(folder: Folder) -> None:
    log = CommitLog.open(folder.store(), "query")
    folder.fs.rm(folder.path, recursive=True)
    with pytest.raises(Fenced):
        log.verify()


def test_an_entry_is_synced_without_a_setting_of_the_cluster(folder: Folder) -> None:
    """The DataNode of the tests has ``dfs.datanode.synconclose`` off: it syncs nothing that it is not asked to."""
    folder.store().put_if_absent(0, b"x")
    until(folder.server.data_node_syncs)  # it shows its metrics some seconds late


def test_httpfs_which_only_answers_that_it_did_not_rename_means_that_the_slot_is_taken(folder: Folder) -> None:
    store = folder.store()
    store.put_if_absent(0, b"x")
    folder.proxy.disturb_next("PUT", Answer(200, b'{"boolean":false}'), renames(entry_name(0)))
    with pytest.raises(FileExistsError):
        store.put_if_absent(0, b"y")
    assert store.read(0) == b"x"


def test_httpfs_which_did_not_rename_to_a_free_name_leaves_the_entry_in_doubt(folder: Folder) -> None:
    store = folder.store()
    store.put_if_absent(0, b"x")
    folder.proxy.disturb_next("PUT", Answer(200, b'{"boolean":false}'), renames(entry_name(1)))
    with pytest.raises(BlockingIOError, match=entry_name(1)):
        store.put_if_absent(1, b"y")
    assert store.slots() == [0]


def test_an_error_of_a_data_node_is_not_taken_for_an_entry(folder: Folder) -> None:
    data_node = f"127.0.0.1:{folder.server.data_node.port}"
    folder.store().put_if_absent(0, b"x")
    with HttpProxy(f"http://{data_node}") as proxy:
        store = folder.store(data_proxy={data_node: proxy.url.removeprefix("http://")})
        proxy.disturb_next("GET", hdfs_error(403, "IOException", "Could not obtain block"))
        with pytest.raises(Retriable, match="Could not obtain block"):
            store.read(0)
        assert store.read(0) == b"x"


# Stores that can't be used. ---------------------------------------------------------------------------------------


def test_a_server_that_is_no_webhdfs_is_asked_again_and_not_taken_for_an_empty_log(folder: Folder) -> None:
    CommitLog.open(folder.store(), "query")
    folder.proxy.disturb_all("GET", Answer(404, b"<html>nothing here</html>"))
    with pytest.raises(Retriable, match="404, not an answer of WebHDFS"):
        CommitLog.open(folder.store(), "query")


def test_a_user_who_may_not_write_is_refused(folder: Folder) -> None:
    store = folder.store(user="stranger")
    assert store.slots() == []
    with pytest.raises(ConfigurationError, match=r"nothing may be written there.*AccessControlException.*stranger"):
        store.put_if_absent(0, b"x")
    with pytest.raises(TwoPhaseCommitError, match="nothing may be written there"):
        CommitLog.open(store, "query")


def test_a_user_who_may_not_read_is_refused(folder: Folder) -> None:
    CommitLog.open(folder.store(), "query")
    folder.fs.chmod(folder.path, "700")
    with pytest.raises(ConfigurationError, match=r"not let this process read it.*stranger"):
        CommitLog.open(folder.store(user="stranger"), "query")


def test_a_file_in_the_place_of_the_folder_is_refused(folder: Folder) -> None:
    folder.fs.pipe_file(folder.path, b"a file")
    with pytest.raises(TwoPhaseCommitError, match="nothing may be written there"):
        CommitLog.open(folder.store(), "query")


def test_a_server_that_never_answers_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twopc.stores.webhdfs.TIMEOUTS_S", (1.0, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = twopc.open_store(f"webhdfs://127.0.0.1:{silent.getsockname()[1]}/log", user=USER)
        with pytest.raises(Retriable, match=r"gave no answer.*TimeoutError"):
            CommitLog.open(store, "query")


# Nodes that are away. ---------------------------------------------------------------------------------------------


@pytest.mark.crash
def test_a_log_goes_on_after_its_name_node_was_killed_and_started_again(folder: Folder) -> None:
    log = CommitLog.open(folder.store(), "query")
    log.decide(FIRST)
    folder.server.name_node.kill()
    with pytest.raises(Retriable, match="gave no answer"):
        CommitLog.open(folder.store(), "query")
    folder.server.start()
    log.decide(Decision(Round(1, 1), {"sink": ()}))
    assert read_tail(folder.store()) == (2, log.tail)


@pytest.mark.crash
def test_a_decision_without_a_data_node_is_in_doubt_and_never_half_there(folder: Folder) -> None:
    log = CommitLog.open(folder.store(), "query")
    folder.server.data_node.kill()
    with pytest.raises(InDoubt, match="Connection refused"):
        log.decide(FIRST)
    assert folder.store().slots() == [0]
    with pytest.raises(Retriable, match="gave no answer"):
        folder.store().read(0)
    folder.server.start()
    assert CommitLog.open(folder.store(), "query").tail.decided is None


def test_a_name_node_in_safe_mode_is_read_and_takes_no_decision(folder: Folder) -> None:
    log = CommitLog.open(folder.store(), "query")
    folder.server.admin("-safemode", "enter")
    try:
        assert read_tail(folder.store()) == (0, log.tail)
        with pytest.raises(Retriable, match="safe mode"):
            log.verify()
        with pytest.raises(InDoubt, match="safe mode"):
            log.decide(FIRST)
    finally:
        folder.server.admin("-safemode", "leave")
    assert CommitLog.open(folder.store(), "query").tail.decided is None


# Credentials. -----------------------------------------------------------------------------------------------------


def test_no_credential_is_in_what_is_shown_or_written(folder: Folder) -> None:
    token, password = "the-delegation-token", "the-password"
    shown = list[str]()

    def fail(call: Callable[[], object]) -> None:
        with pytest.raises(Exception) as told:  # noqa: PT011  # whichever
            call()
        shown.append("".join(traceback.format_exception(told.value)))

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = f"webhdfs://127.0.0.1:{nobody.getsockname()[1]}/log"
        for options in ({"token": token}, {"user": USER, "password": password}):
            for url in (away, folder.behind_proxy):
                store = twopc.open_store(url, **options)
                shown += [repr(store), str(store), repr(vars(store)), repr(twopc.replay.ReplayCopies(url, options))]
            away_store = twopc.open_store(away, **options)
            for call in (away_store.slots, lambda store=away_store: store.put_if_absent(0, b"x")):
                fail(call)
    echoed = hdfs_error(403, "SecurityException", f"the token {token} is expired")
    for answer in (echoed, Answer(500), Answer(403), Lost.REPLY):
        folder.proxy.disturb_all("PUT", answer)
        folder.proxy.disturb_all("GET", answer)
        store = twopc.open_store(folder.behind_proxy, token=token)
        fail(lambda store=store: CommitLog.open(store, "query"))  # type: ignore[misc]
        fail(lambda store=store: store.put_if_absent(0, b"x"))  # type: ignore[misc]
        folder.proxy.heal()
    assert any(token in request.target for request in folder.proxy.requests)
    assert not [text for text in shown if token in text or password in text]
