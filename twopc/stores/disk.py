"""Folders and files on a disk whose names survive a power cut."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from twopc.stores.errors import NotSynced, Unusable
from twopc.stores.folder import ASIDE, PROBE, Folder, hidden

A_READ = 1024 * 1024
"""How many bytes each read requests if the caller limits the size of a file."""

_TRIALS = 3
"""How often a trial is attempted. Another process's trial may just have removed the folder that both use."""

_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.EOPNOTSUPP, errno.ENOSYS),
    errno.EINVAL,  # a folder that can't be synced: fsync(2)
)
"""Permanent refusals of a file system."""

_WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of link(2) if there are no hard links: from a disk, from a kernel, from a filesystem in user space such as a
mounted bucket, and from a filesystem that allows only one name per file."""


class LocalFolder(Folder):
    """A folder on a disk.

    Every method may raise ``Unusable``: this process lacks a permission, the disk has no hard links, or its folders
    can't be synced. After any other OSError of a writing method, the outcome is unknown.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._not_synced: set[str] = set()

    def names(self) -> list[str]:
        try:
            with _permanent_refusals():
                return self._see([path.name for path in self.path.iterdir()])
        except FileNotFoundError:
            return []

    def read(self, name: str, most: int = -1) -> bytes:
        """Return the whole file, or its first ``most`` bytes. Raises FileNotFoundError."""
        with _permanent_refusals(), (self.path / name).open("rb") as file:
            if most < 0:
                return file.read()
            # Python allocates as much memory as a read requests. The file's reported size may be stale, as on NFS.
            pieces = (file.read(min(A_READ, most - at)) for at in range(0, most, A_READ))
            return b"".join(itertools.takewhile(bool, pieces))

    def put_if_absent(self, name: str, data: bytes) -> None:
        with _permanent_refusals():
            make_folder(self.path)
        with self._written_aside(data) as aside:
            self._remove_leftovers(aside.name)
            try:
                with _permanent_refusals():
                    put_in_place(aside, self.path / name)
            finally:
                self.sync(name)  # also if another writer put it there and could not sync it

    def replace(self, name: str, data: bytes) -> None:
        with self._written_aside(data) as aside:
            aside.replace(self.path / name)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def sync(self, name: str) -> None:
        """Make ``name`` survive a power cut, whoever created it.

        A kernel reports a failed write-back once, and the next sync succeeds although the name never reached the disk.
        So after one failed sync of a name, this object raises ``NotSynced`` for it forever.
        """
        if name in self._not_synced:
            raise NotSynced(errno.EIO, "an entry's name was not synced", str(self.path))
        try:
            sync_folder(self.path)
        except OSError:
            self._not_synced.add(name)
            raise

    def try_put_if_absent(self) -> None:
        for trial in range(_TRIALS):
            try:
                self._try_to_put_twice()
            except FileNotFoundError:
                if trial + 1 == _TRIALS:
                    raise
            else:
                return

    def _try_to_put_twice(self) -> None:
        probe = hidden(PROBE)
        with _permanent_refusals(), folder_for_a_trial(self.path):
            try:
                fault = self._fault_of_a_trial(self.put_if_absent, probe)
            finally:
                self.remove(probe)
        if fault:
            raise Unusable(fault)

    @contextlib.contextmanager
    def _written_aside(self, data: bytes) -> Iterator[Path]:
        aside = self.path / hidden(ASIDE)
        try:
            with _permanent_refusals():
                opened = aside.open("xb")
            with opened as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield aside
        finally:
            aside.unlink(missing_ok=True)

    def _written_s(self, name: str) -> float:
        return (self.path / name).stat().st_mtime


class SyncedFile(io.BufferedWriter):
    """A new file, in a folder that is created if missing. ``close`` makes the file and its name survive a power cut, or
    raises NotSynced if the file was already closed without a sync."""

    def __init__(self, path: Path, mode: str = "xb") -> None:
        self._path, self._is_synced = path, False
        make_folder(path.parent)
        super().__init__(io.FileIO(path, mode))

    def close(self) -> None:
        if not self.closed:
            try:
                self.flush()
                os.fsync(self.fileno())
            finally:
                self.discard()
            sync_folder(self._path.parent)
            self._is_synced = True
        elif not self._is_synced:
            raise NotSynced(errno.EIO, "a file was not synced", str(self._path))

    def discard(self) -> None:
        """Close a file that is no longer wanted, without a flush or a sync."""
        self.raw.close()

    def __del__(self) -> None:
        with contextlib.suppress(ValueError, AttributeError):  # without ``raw`` if it could not be opened
            self.discard()


def discard(stream: IO[bytes]) -> None:
    """Close a stream to a file that is no longer wanted, without a sync."""
    if isinstance(stream, SyncedFile):
        stream.discard()
    else:
        stream.close()


def put_in_place(aside: Path, path: Path) -> None:
    """Give a complete, synced file its name by a hard link, if the name is free.

    Without hard links, creating the name first and filling it afterwards (``O_EXCL``) does not work: a crash leaves a
    partial file, whose writer may be dead or slow. Neither does renameat2(2) with ``RENAME_NOREPLACE``, because SMB and
    some FUSE servers may still replace the file.

    Raises:
        FileExistsError: the name is taken.
        Unusable: the disk has no hard links. Nothing was changed.
    """
    try:
        os.link(aside, path)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        raise Unusable(errno.ENOTSUP, "its disk has no hard links", str(path)) from error


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents, so that they survive a power cut.

    Raises:
        NotADirectoryError: the name is a file, or a dangling link, for example to a disk that is not mounted.
        OSError: any other reason.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:  # callers of put-if-absent would take it for an existing file
            reason = "a file, or a link to a folder that is not there"
            raise NotADirectoryError(errno.ENOTDIR, reason, str(folder)) from error
        _sync_name.cache_clear()  # it may remember a removed folder of this name
    _sync_name(folder)


@contextlib.contextmanager
def folder_for_a_trial(folder: Path) -> Iterator[None]:
    """Create ``folder`` for the block. Afterwards, folders that were missing before are removed if empty."""
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    make_folder(folder)
    try:
        yield
    finally:
        for made in missing:
            with contextlib.suppress(OSError):  # in use by now
                made.rmdir()


def sync_folder(folder: Path) -> None:
    """Make names that were created, linked or renamed in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@functools.lru_cache(maxsize=256)
def _sync_name(folder: Path) -> None:
    """Make the names of a folder and its parents survive a power cut, once per process. Existing folders are included,
    because their creator may have died before its sync. Stops at a mount point: the folders above it are on another
    disk."""
    if folder.is_mount():
        return
    try:
        sync_folder(folder.parent)
    except PermissionError:
        if os.access(folder.parent, os.W_OK):  # else this user's processes have created no folder there
            raise
    _sync_name(folder.parent)


@contextlib.contextmanager
def _permanent_refusals() -> Iterator[None]:
    """Wrap a step that has no effect if it is refused. Raises ``Unusable`` for a permanent refusal."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise Unusable(error.errno, error.strerror, error.filename) from error
