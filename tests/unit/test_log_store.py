"""Where the log's entries lie: put-if-absent, whole and durable."""

import contextlib
import errno
import os
import stat
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations import memory
from fsspec.registry import _registry

from tests.support.commit_log import CommitLog
from tests.support.observing import Killed
from tests.support.raising import raising
from twopc.errors import ConfigurationError, InDoubt
from twopc.log.commit_log import read_tail
from twopc.log.entries import Decision
from twopc.log.entry_json import entry_name
from twopc.log.store import LocalStore, LogStore, open_store
from twopc.stores.disk import make_folder
from twopc.stores.errors import Unusable
from twopc.stores.remote import ObjectFolder
from twopc.testing import LogStoreContract
from twopc.transactional_ids import Round

NOBODY = 65534


class TestLocalStore(LogStoreContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "new" / "log"

    def make_store(self) -> LogStore:
        return open_store(f"{self.path}")


class TestMemoryStore(LogStoreContract):
    @pytest.fixture(autouse=True)
    def folder(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"

    def make_store(self) -> LogStore:
        return open_store(self.url)


def on_disk(folder: Path) -> LocalStore:
    return LocalStore(str(folder), folder)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_trial_of_a_disk_leaves_the_folder_as_it_was(is_there: bool, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "log"
    if is_there:
        open_store(str(folder)).put_if_absent(0, b"an entry")
    before = sorted(tmp_path.rglob("*"))
    on_disk(folder).try_put_if_absent()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_trial_is_repeated_where_another_processs_trial_removes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    removed: list[Path] = []

    def made_and_removed_once(path: Path) -> None:
        make_folder(path)
        if path == folder and not removed:
            removed.append(path)
            path.rmdir()

    monkeypatch.setattr("twopc.stores.disk.make_folder", made_and_removed_once)
    on_disk(folder).try_put_if_absent()
    assert removed == [folder]


def test_a_trial_finds_a_disk_without_hard_links_and_one_that_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replacing(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes())

    for link, reason in (
        (raising(OSError(errno.EOPNOTSUPP, "Operation not supported")), "its disk has no hard links"),
        (replacing, "overwrites a file that it was asked to create only"),
    ):
        monkeypatch.setattr(os, "link", link)
        with pytest.raises(ConfigurationError, match=reason):
            on_disk(tmp_path / "log").try_put_if_absent()
        assert list(tmp_path.iterdir()) == []


class Faulty(memory.MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A store that changes, loses or hides what it has acknowledged."""

    protocol = "memory"
    fault = "none"

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        data = super().cat_file(path, *arguments, **options)
        if self.fault == "lost":
            raise FileNotFoundError(path)
        return {"framed": b"3e8\r\n" + data, "truncated": data[:-1], "empty": b""}.get(self.fault, data)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return [] if self.fault == "unlisted" else super().ls(path, detail=detail, **options)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("none", None),
        *((fault, "it returns other contents") for fault in ("framed", "truncated", "empty")),
        ("lost", "it loses a file"),
        ("unlisted", "it does not list a file that was just created"),
    ],
)
def test_a_trial_reads_back_and_lists_what_it_has_written(fault: str, reason: str | None) -> None:
    fs = Faulty(skip_instance_cache=True)
    fs.fault = fault
    folder = ObjectFolder(fs, f"/{uuid.uuid4().hex}")
    if reason is None:
        folder.try_put_if_absent()
    else:
        with pytest.raises(Unusable, match=reason):
            folder.put_if_absent("0.json", b"{}")
    fs.fault = "none"
    assert folder.names() == []


def test_no_second_writer_gets_between_the_look_and_the_write_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    store.put_if_absent(1, b"the store has been tried")
    outcomes: list[str] = []

    def put(name: str) -> None:
        try:
            store.put_if_absent(0, name.encode())
            outcomes.append(name)
        except FileExistsError:
            outcomes.append("refused")

    second = threading.Thread(target=put, args=["second"])
    make_file = memory.MemoryFile

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(memory, "MemoryFile", make_file)
        second.start()
        second.join(timeout=0.1)  # where it is kept out, it ends after the first
        return make_file(*args)

    monkeypatch.setattr(memory, "MemoryFile", meanwhile)
    put("first")
    second.join()
    assert sorted(outcomes) == ["first", "refused"]
    assert store.read(0) == b"first"


# On a disk. -------------------------------------------------------------------------------------------------------


def seen(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("step", ["write", "fsync", "link"])
def test_half_an_entry_cannot_be(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"{tmp_path}")
    make_folder(tmp_path)  # and what is synced once a process is
    killed = raising(Killed())

    @contextlib.contextmanager
    def half_written(path: Path, _: str) -> Iterator[Any]:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        yield SimpleNamespace(write=killed)

    if step == "write":
        monkeypatch.setattr(Path, "open", half_written)
    else:
        monkeypatch.setattr(os, step, killed)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process does not tidy up
    with pytest.raises(Killed):
        store.put_if_absent(0, b"a whole entry")
    monkeypatch.undo()

    assert len(list(tmp_path.iterdir())) == 1  # what was written aside is there
    assert seen(tmp_path) == []  # and is no entry
    assert store.slots() == []
    store.put_if_absent(0, b"the next one")
    assert store.read(0) == b"the next one"


def record_disk(monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> None:
    def recording(name: str, real: Callable[..., Any], describe: Callable[..., str]) -> None:
        def call(*args: Any, **options: Any) -> Any:
            result = real(*args, **options)
            steps.append(f"{name} {describe(*args)}")
            return result

        monkeypatch.setattr(os, name, call)

    def what(descriptor: int) -> str:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return f"folder {path.name}"
        return f"file of {os.fstat(descriptor).st_size} bytes"

    recording("fsync", os.fsync, what)
    recording("link", os.link, lambda _, target: Path(target).name)
    recording("mkdir", os.mkdir, lambda path, *_: Path(path).name)


def test_an_entry_and_its_folder_are_on_the_disk_before_the_put_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").mkdir()
    store = open_store(f"{tmp_path}/log")
    steps: list[str] = []
    record_disk(monkeypatch, steps)
    store.put_if_absent(0, b"entry")
    assert steps[-3:] == ["fsync file of 5 bytes", f"link {entry_name(0)}", "fsync folder log"]


def test_a_new_folder_and_its_parents_are_on_the_disk_before_the_first_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"{tmp_path}/outer/log")
    steps: list[str] = []
    record_disk(monkeypatch, steps)
    store.put_if_absent(0, b"entry")
    assert steps.index("mkdir outer") + 1 == steps.index(f"fsync folder {tmp_path.name}")
    assert steps.index("mkdir log") + 1 == steps.index("fsync folder outer") < steps.index("fsync file of 5 bytes")
    assert steps[-2:] == [f"link {entry_name(0)}", "fsync folder log"]


def test_a_folder_whose_maker_died_before_its_sync_is_on_the_disk_before_the_first_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outer" / "log").mkdir(parents=True)
    steps: list[str] = []
    record_disk(monkeypatch, steps)
    open_store(f"{tmp_path}/outer/log").put_if_absent(0, b"entry")
    before = steps[: steps.index("fsync file of 5 bytes")]
    assert before[:3] == ["fsync folder outer", f"fsync folder {tmp_path.name}", f"fsync folder {tmp_path.parent.name}"]


def test_that_is_done_once_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(f"{tmp_path}").put_if_absent(0, b"entry")
    steps: list[str] = []
    record_disk(monkeypatch, steps)
    open_store(f"{tmp_path}").put_if_absent(1, b"entry")
    assert steps == ["fsync file of 5 bytes", f"link {entry_name(1)}", f"fsync folder {tmp_path.name}"]


def test_a_folder_that_was_removed_and_is_made_again_is_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"{tmp_path}/log")
    store.put_if_absent(0, b"entry")
    store.delete(0)
    (tmp_path / "log").rmdir()
    steps: list[str] = []
    record_disk(monkeypatch, steps)
    store.put_if_absent(0, b"entry")
    assert steps[:2] == ["mkdir log", f"fsync folder {tmp_path.name}"]


@pytest.mark.parametrize("may_write", [False, True])
def test_a_parent_that_may_not_be_read_stops_the_log_only_where_a_folder_may_have_been_made_in_it(
    may_write: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = os.open

    def may_not_read(path: Path, flags: int) -> int:
        if path == tmp_path.parent:
            raise PermissionError(path)
        return really_open(path, flags)

    monkeypatch.setattr(os, "open", may_not_read)
    monkeypatch.setattr(os, "access", lambda _, mode: may_write and mode == os.W_OK)
    store = open_store(f"{tmp_path}")
    if may_write:
        with pytest.raises(PermissionError):
            store.put_if_absent(0, b"entry")
    else:
        store.put_if_absent(0, b"entry")
    assert store.slots() == ([] if may_write else [0])


def test_who_finds_a_slot_taken_syncs_the_folder_before_it_relies_on_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"{tmp_path}")
    store.put_if_absent(0, b"linked by a writer that died before its sync")
    steps: list[str] = []
    record_disk(monkeypatch, steps)
    with pytest.raises(FileExistsError):
        store.put_if_absent(0, b"mine")
    assert steps[-1] == f"fsync folder {tmp_path.name}"


def test_a_put_leaves_nothing_else_behind(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}")
    store.put_if_absent(0, b"x")
    with pytest.raises(FileExistsError):
        store.put_if_absent(0, b"y")
    assert [path.name for path in tmp_path.iterdir()] == [entry_name(0)]


def aside_of_a_killed_writer(folder: Path, age_s: float) -> Path:
    path = folder / f".{uuid.uuid4().hex}.aside"
    path.write_bytes(b"half an en")
    written_at = path.stat().st_mtime - age_s
    os.utime(path, (written_at, written_at))
    return path


def test_what_a_killed_writer_left_is_removed_by_a_later_put(tmp_path: Path) -> None:
    aside_of_a_killed_writer(tmp_path, age_s=3700)
    foreign = tmp_path / "notes.txt"
    foreign.write_text("not ours")
    os.utime(foreign, (0, 0))
    store = open_store(f"{tmp_path}")
    assert store.slots() == []  # what only reads a log leaves all as it is
    assert len(list(tmp_path.iterdir())) == 2
    store.put_if_absent(0, b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == [entry_name(0), "notes.txt"]


def test_what_another_writer_is_writing_just_now_is_left_alone(tmp_path: Path) -> None:
    aside = aside_of_a_killed_writer(tmp_path, age_s=3500)
    store = open_store(f"{tmp_path}")
    store.slots()
    store.put_if_absent(0, b"x")
    assert aside.exists()


def test_the_age_of_what_is_left_is_told_by_the_folder_and_not_by_this_machines_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = aside_of_a_killed_writer(tmp_path, age_s=0)
    monkeypatch.setattr("time.time", lambda: 4e9)
    store = open_store(f"{tmp_path}")
    store.slots()
    store.put_if_absent(0, b"x")
    assert aside.exists()


def test_a_writer_that_slept_and_finds_its_file_gone_puts_its_entry_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def gone_by_now(aside: Path, entry: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        written_at = aside.stat().st_mtime - 3700
        os.utime(aside, (written_at, written_at))
        other = open_store(f"{tmp_path}")
        other.slots()
        other.put_if_absent(7, b"of another")
        other.delete(7)
        assert not aside.exists()
        link(aside, entry)

    monkeypatch.setattr(os, "link", gone_by_now)
    log = CommitLog.open(open_store(f"{tmp_path}"), "query")
    assert read_tail(open_store(f"{tmp_path}")) == (0, log.tail)


def test_what_is_left_and_cannot_be_removed_does_not_fail_the_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = aside_of_a_killed_writer(tmp_path, age_s=3700)
    unlink = Path.unlink

    def fails(path: Path, missing_ok: bool = False) -> None:
        if path == aside:
            raise PermissionError(path)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", fails)
    store = open_store(f"{tmp_path}")
    store.slots()
    store.put_if_absent(0, b"x")
    assert store.slots() == [0]


def test_what_is_no_entry_is_not_a_slot(tmp_path: Path) -> None:
    for name in ("1.json", f".{'0' * 20}.json", f"{'0' * 20}.json.tmp", f"{'0' * 21}.json", f"{'x' * 20}.json"):
        (tmp_path / name).write_text("x")
    assert open_store(f"{tmp_path}").slots() == []


def test_a_folder_made_by_another_at_the_same_moment_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").mkdir()
    is_dir, asked = Path.is_dir, []

    def not_yet(path: Path) -> bool:
        asked.append(path)
        return len(asked) > 1 and is_dir(path)

    monkeypatch.setattr(Path, "is_dir", not_yet)
    make_folder(tmp_path / "log")


@pytest.mark.parametrize("protocol", ["hdfs", "http", "sftp", "simplecache::s3"])
def test_a_store_that_is_not_known_to_create_exclusively_is_refused_and_others_named(protocol: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"at {protocol}://.* file, .*gs.*s3"):
        open_store(f"{protocol}://host/log")


def test_a_client_that_is_not_installed_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    with pytest.raises(ConfigurationError, match=r"Install s3fs.*pip install 'twopc-core\[s3\]'"):
        open_store("s3://bucket/log")


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="the URL of the commit log holds a password") as refused:
        open_store("s3://my-key:my-secret@bucket/log")
    assert "my-" not in str(refused.value)


def test_a_file_url_with_two_slashes_is_refused_with_the_right_spelling() -> None:
    with pytest.raises(ConfigurationError, match="Write file:///data/log"):
        open_store("file://data/log")


def test_a_log_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"can't be read: Not a directory \(.*file/log\)"):
        CommitLog.open(open_store(f"{tmp_path}/file/log"), "owner")


@pytest.mark.parametrize("below", ["", "/log"])
def test_a_log_behind_a_link_to_a_disk_that_is_not_mounted_is_refused(below: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "folder")
    with pytest.raises(ConfigurationError, match=r"can't be written: a file, or a link to a folder that is not there"):
        CommitLog.open(open_store(f"{tmp_path}/link{below}"), "owner")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@contextlib.contextmanager
def an_ordinary_user() -> Iterator[None]:
    """Root may write everywhere."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize(("mode", "done"), [(0o555, "written"), (0o000, "read")])
@pytest.mark.parametrize("name", ["", "new"])
def test_a_log_that_this_user_may_not_write_is_refused(mode: int, done: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are for root alone
        Path(folder).chmod(mode)
        refused = pytest.raises(ConfigurationError, match=f"{folder}.* can't be {done}: Permission denied .*as user")
        with an_ordinary_user(), refused:
            CommitLog.open(open_store(f"{folder}/{name}".rstrip("/")), "owner")
        Path(folder).chmod(0o700)


# Disks without hard links. ----------------------------------------------------------------------------------------

WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def refuse_links(monkeypatch: pytest.MonkeyPatch, number: int = errno.EPERM) -> None:
    monkeypatch.setattr(os, "link", raising(OSError(number, os.strerror(number))))


@pytest.mark.parametrize("number", WITHOUT_LINKS)
def test_a_log_on_a_disk_without_hard_links_is_refused_before_the_first_entry(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_links(monkeypatch, number)
    with pytest.raises(ConfigurationError, match=r"no hard links.*store or in PostgreSQL"):
        CommitLog.open(open_store(f"{tmp_path}"), "owner")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_whose_folders_can_not_be_synced_fails_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(descriptor)

    store = on_disk(tmp_path)
    store.try_put_if_absent()
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ConfigurationError, match=r"can't be kept at .*Invalid argument"):
        store.try_put_if_absent()
    assert list(tmp_path.iterdir()) == []


def test_a_link_whose_outcome_is_not_known_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = CommitLog.open(open_store(f"{tmp_path}"), "query")
    refuse_links(monkeypatch, errno.EIO)
    with pytest.raises(InDoubt):
        log.decide(Decision(Round(1, 0), {}))


def test_a_disk_takes_no_storage_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="takes no endpoint_url"):
        open_store(f"{tmp_path}", endpoint_url="http://127.0.0.1:1")


def test_a_path_and_a_file_url_are_the_same_folder(tmp_path: Path) -> None:
    open_store(f"{tmp_path}/log").put_if_absent(0, b"x")
    assert open_store(f"file://{tmp_path}/log").read(0) == b"x"


def test_a_folder_that_could_not_be_synced_once_is_not_taken_for_synced_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel reports a failed write-back once; the next fsync may succeed (the PostgreSQL project's "fsyncgate")."""
    log = CommitLog.open(open_store(str(tmp_path)), "query")
    real, failures = os.fsync, [OSError(errno.EIO, os.strerror(errno.EIO))]

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) and failures:
            raise failures.pop()
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(InDoubt):
        log.decide(Decision(Round(1, 0), {}))
