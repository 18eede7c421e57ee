"""Where a commit log's entries lie: four operations, of which one, put-if-absent, everything else rests on."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import fsspec
from fsspec.core import split_protocol
from fsspec.implementations.memory import MemoryFileSystem

from twopc.errors import ConfigurationError

_SUFFIX = ".json"
_ASIDE = ".aside"


class LogStore(Protocol):
    """A folder of numbered entries. Any error but FileExistsError and FileNotFoundError is an unknown outcome."""

    url: str

    def slots(self) -> list[int]:
        """The numbers of the entries that are there, ascending."""

    def read(self, slot: int) -> bytes:
        """The whole entry. Raises FileNotFoundError."""

    def put_if_absent(self, slot: int, data: bytes) -> None:
        """Create the entry, durable and whole or not at all. Raises FileExistsError where it exists."""

    def delete(self, slot: int) -> None:
        """Remove the entry, or do nothing where there is none."""


def entry_name(slot: int) -> str:
    """``00000000000000000042.json``: twenty digits, so that names sort as numbers do."""
    return f"{slot:020d}{_SUFFIX}"


def _slot(name: str) -> int | None:
    stem = name.removesuffix(_SUFFIX)
    return int(stem) if name.endswith(_SUFFIX) and len(stem) == 20 and stem.isdecimal() else None


def open_store(url: str) -> LogStore:
    """The store for ``url``: a path or ``file://`` for a local disk, ``memory://`` for this process alone.

    Raises:
        ConfigurationError: another kind of store.
    """
    protocol, path = split_protocol(url)
    if protocol in (None, "file", "local"):
        return LocalStore(url, Path(path).absolute())
    if protocol == "memory":
        return MemoryStore(url)
    raise ConfigurationError(
        f"a commit log can't be kept at {url!r} yet: {protocol!r} is not one of file, memory."
        " Use a folder on a disk that every driver of this query reaches, such as file:///data/twopc-log"
    )


class LocalStore:
    """A folder on a disk. An entry is written aside, synced, and linked into place: half an entry can't be."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder

    def slots(self) -> list[int]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(slot for slot in map(_slot, names) if slot is not None)

    def read(self, slot: int) -> bytes:
        return (self._folder / entry_name(slot)).read_bytes()

    def put_if_absent(self, slot: int, data: bytes) -> None:
        make_folder(self._folder)
        with self._written_aside(data) as aside:
            try:
                os.link(aside, self._folder / entry_name(slot))
            finally:
                sync_folder(self._folder)  # also what another writer linked and could not sync

    @contextlib.contextmanager
    def _written_aside(self, data: bytes) -> Iterator[Path]:
        aside = self._folder / f".{uuid.uuid4().hex}{_ASIDE}"
        try:
            with aside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield aside
        finally:
            aside.unlink(missing_ok=True)

    def delete(self, slot: int) -> None:
        (self._folder / entry_name(slot)).unlink(missing_ok=True)


class MemoryStore:
    """fsspec's in-process file system: for tests and trials, gone with the process."""

    _one_at_a_time = threading.Lock()

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs: MemoryFileSystem = fsspec.filesystem("memory")
        self._folder = self._fs._strip_protocol(url)  # noqa: SLF001  # fsspec's documented hook for paths

    def slots(self) -> list[int]:
        if not self._fs.isdir(self._folder):
            return []
        names = (path.rsplit("/", 1)[-1] for path in self._fs.ls(self._folder, detail=False))
        return sorted(slot for slot in map(_slot, names) if slot is not None)

    def read(self, slot: int) -> bytes:
        data: bytes = self._fs.cat_file(self._path(slot))
        return data

    def put_if_absent(self, slot: int, data: bytes) -> None:
        with self._one_at_a_time:  # the file system looks first and writes then
            self._fs.pipe_file(self._path(slot), data, mode="create")

    def delete(self, slot: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(slot))

    def _path(self, slot: int) -> str:
        return f"{self._folder}/{entry_name(slot)}"


def make_folder(folder: Path) -> None:
    """Make ``folder`` and its parents where they are missing, so that they survive a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make what was created, linked or renamed in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
