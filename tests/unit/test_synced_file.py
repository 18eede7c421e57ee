"""A file that is synced when it is closed, and only then."""

import errno
import os
from pathlib import Path

import pytest

from twopc.stores.disk import SyncedFile
from twopc.stores.errors import NotSynced


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is synced from now on."""
    names, fsync = list[str](), os.fsync

    def record(descriptor: int) -> None:
        names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return names


def written(path: Path) -> SyncedFile:
    file = SyncedFile(path)
    file.write(b"content")
    return file


def test_a_file_is_whole_and_synced_before_its_name_is(tmp_path: Path, synced: list[str]) -> None:
    file = written(tmp_path / "file")
    synced.clear()  # the folders'
    file.close()
    file.close()
    assert synced == ["file", tmp_path.name]
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_file_that_is_discarded_or_forgotten_is_closed_without_a_sync(tmp_path: Path, synced: list[str]) -> None:
    discarded, forgotten = written(tmp_path / "a"), written(tmp_path / "b")
    descriptors = [discarded.fileno(), forgotten.fileno()]
    synced.clear()
    discarded.discard()
    del forgotten
    assert synced == []
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    with pytest.raises(NotSynced):
        discarded.close()


@pytest.mark.parametrize("failing", ["file", "folder"])
def test_a_close_that_failed_fails_again(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel reports a failed write-back once."""
    file, fsync, failures = written(tmp_path / "file"), os.fsync, [OSError(errno.ENOSPC, "no room")]

    def fail_once(descriptor: int) -> None:
        fsync(descriptor)
        is_file = Path(f"/proc/self/fd/{descriptor}").readlink().name == "file"
        if failures and is_file == (failing == "file"):
            raise failures.pop()

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(OSError, match="no room"):
        file.close()
    for _ in range(2):
        with pytest.raises(NotSynced):
            file.close()


def test_a_file_that_is_there_is_not_opened(tmp_path: Path) -> None:
    written(tmp_path / "file").close()
    with pytest.raises(FileExistsError):
        SyncedFile(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"content"
