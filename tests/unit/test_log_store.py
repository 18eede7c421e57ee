"""Where the log's entries lie: put-if-absent, whole and durable."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations import memory

from twopc.errors import ConfigurationError
from twopc.log_store import LogStore, entry_name, make_folder, open_store


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    return open_store(f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"{tmp_path}/new/log")


def test_an_absent_folder_has_no_slots(store: LogStore) -> None:
    assert store.slots() == []
    with pytest.raises(FileNotFoundError):
        store.read(0)


def test_what_is_put_is_read_whole(store: LogStore) -> None:
    store.put_if_absent(3, b"three")
    assert store.read(3) == b"three"


def test_a_taken_slot_is_refused_and_unchanged(store: LogStore) -> None:
    store.put_if_absent(0, b"first")
    with pytest.raises(FileExistsError):
        store.put_if_absent(0, b"second")
    assert store.read(0) == b"first"


def test_slots_ascend_as_numbers(store: LogStore) -> None:
    for slot in (10, 9, 100, 0, 2**63):
        store.put_if_absent(slot, b"x")
    assert store.slots() == [0, 9, 10, 100, 2**63]


def test_deleting_what_is_not_there_is_a_success(store: LogStore) -> None:
    store.put_if_absent(0, b"x")
    store.delete(0)
    store.delete(0)
    assert store.slots() == []


def test_of_many_threads_exactly_one_wins_a_slot(store: LogStore) -> None:
    threads = 8
    barrier = threading.Barrier(threads)

    def put(slot: int, name: str) -> bool:
        barrier.wait()
        try:
            store.put_if_absent(slot, name.encode())
        except FileExistsError:
            return False
        return True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for slot in range(50):
                names = [f"{slot}-{thread}" for thread in range(threads)]
                won = list(pool.map(put, [slot] * threads, names))
                assert won.count(True) == 1
                assert store.read(slot).decode() == names[won.index(True)]
    finally:
        sys.setswitchinterval(interval)


def test_no_second_writer_gets_between_the_look_and_the_write_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
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


class Killed(BaseException):
    """Nothing of the process runs after it, so nothing is tidied up either."""


@pytest.mark.parametrize("step", ["write", "fsync", "link"])
def test_half_an_entry_cannot_be(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"{tmp_path}")

    def killed(*_: object, **__: object) -> None:
        raise Killed

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
    assert [step for step in steps if step != f"fsync folder {tmp_path.name}"] == [
        "fsync file of 5 bytes",
        f"link {entry_name(0)}",
        "fsync folder log",
    ]


def test_a_new_folder_and_its_parents_are_on_the_disk_before_the_first_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"{tmp_path}/outer/log")
    steps: list[str] = []
    record_disk(monkeypatch, steps)
    store.put_if_absent(0, b"entry")
    assert steps[:4] == ["mkdir outer", f"fsync folder {tmp_path.name}", "mkdir log", "fsync folder outer"]
    assert steps[-2:] == [f"link {entry_name(0)}", "fsync folder log"]


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


def test_names_sort_as_numbers_do() -> None:
    assert entry_name(42) == "00000000000000000042.json"


@pytest.mark.parametrize("url", ["s3://bucket/log", "gs://bucket/log", "hdfs://host/log", "http://host/log"])
def test_a_store_that_cannot_keep_a_log_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=url):
        open_store(url)


def test_a_path_and_a_file_url_are_the_same_folder(tmp_path: Path) -> None:
    open_store(f"{tmp_path}/log").put_if_absent(0, b"x")
    assert open_store(f"file://{tmp_path}/log").read(0) == b"x"
