"""Files on a local disk: written below the sink's folder, synced, and renamed into place.

A commit renames ``<path>/_twopc/.<transaction id>-<number>.staged`` to ``<path>/part-<batch>-<partition>-….parquet``. A
rename within one file system is atomic, so a reader of the folder sees a file whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from fsspec.implementations.local import LocalFileSystem

from twopc.stores.disk import folder_for_a_trial, make_folder, sync_folder
from twopc.stores.errors import NotSynced
from twopc_files.file_names import PENDING_FOLDER, FileHandle, pending_name
from twopc_files.stores.store import LONGEST_NAME, NO_FILE, PendingFile, Sight, Store

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Local(Store):
    """A folder on a disk that every process of the query has at the same path."""

    asks_at_once = 1
    longest_name = LONGEST_NAME
    folder: Path

    @property
    def url(self) -> str:
        return str(self.folder)

    def located(self) -> tuple[Any, str]:
        return LocalFileSystem(), str(self.folder)

    def require_answer(self) -> None:
        """Do nothing: the first transaction creates a missing folder."""

    def for_a_trial(self) -> AbstractContextManager[None]:
        return folder_for_a_trial(self._pending)

    def create(self, transaction_id: str, number: int, target: str) -> LocalFile:
        name = pending_name(transaction_id, number)
        make_folder(self._pending)
        # x: an exact id is never used twice, so an existing file of this name belongs to another writer.
        file = open(self._pending / name, "xb")  # noqa: PTH123, SIM115  # closed by pre-commit or abort
        return LocalFile(self, FileHandle(transaction_id, name, target), file)

    def look(self, file: FileHandle) -> Sight:
        # The pending file first: this order upholds the guarantee of ``Store.look``.
        pending, target = _status(self._pending / file.pending), _status(self.folder / file.target)
        if pending is None and target is None and not self._pending.is_dir():  # such as an empty mount point
            raise OSError(
                errno.ENODEV,
                f"the folder {self._pending} is not there. Is its disk mounted, was the option 'path' changed?",
            )
        is_foreign = pending is not None and target is not None and not os.path.samestat(pending, target)
        return Sight(_size(pending), _size(target), is_foreign)

    def obstacle(self, file: FileHandle) -> str | None:
        folder = next((folder for folder in self._folders(file) if folder.is_dir()), self.folder)
        for changed in (folder, self._pending):
            # A rename uses the effective ids. macOS can check access only for the real ids.
            effective = os.access in os.supports_effective_ids
            if not os.access(changed, os.W_OK | os.X_OK, effective_ids=effective):
                return f"this process may not write to {changed}. Grant it that right."
        if (self._pending / file.pending).stat().st_dev != folder.stat().st_dev:
            return f"{self._pending} and {folder} are on different file systems. Put both on the same one."
        return None

    def publish(self, file: FileHandle, seen: Sight) -> None:  # noqa: ARG002  # a rename needs no more than the names
        [folder, *_] = self._folders(file)
        make_folder(folder)
        # A hard link and an unlink could never overwrite a file, but some file systems have no hard links, and Linux
        # refuses them for another user's file. A rename is safe, as the target's name has an id that is never used
        # twice.
        #
        # No look afterwards: when rename(2) returns, the kernel has put this very file under the target's name, and a
        # look would ask the same kernel. Only a sync adds certainty, which ``settle`` does.
        (self._pending / file.pending).rename(self.folder / file.target)

    def rehearse(self, file: FileHandle) -> None:
        hidden = self.folder / file.pending
        (self._pending / file.pending).rename(hidden)
        hidden.unlink()

    def settle(self, file: FileHandle) -> None:
        # Always sync: an earlier call may have renamed the file, or created its folder, and died before the sync.
        try:
            for folder in self._folders(file):
                sync_folder(folder)
            with contextlib.suppress(FileNotFoundError):  # the empty folder may have been removed
                sync_folder(self._pending)
        except OSError as error:
            raise NotSynced(error.errno, error.strerror, error.filename) from error

    def discard(self, file: FileHandle) -> None:
        """Remove the pending file, without a sync: if a power cut brings it back, it is swept again."""
        (self._pending / file.pending).unlink(missing_ok=True)

    def pending_names(self) -> list[str]:
        try:
            with os.scandir(self._pending) as entries:
                return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def sync_pending(self) -> None:
        """Make the name of a pending file survive a power cut."""
        sync_folder(self._pending)
        # The process that created the folder of pending files may have been killed before it synced the parent.
        sync_folder(self.folder)

    @property
    def _pending(self) -> Path:
        return self.folder / PENDING_FOLDER

    def _folders(self, file: FileHandle) -> list[Path]:
        """Return the target's folder and each of its parents, up to the sink's folder."""
        folders = [self.folder]
        for name in file.target.split("/")[:-1]:
            folders.insert(0, folders[0] / name)
        return folders


class LocalFile(PendingFile):
    """A pending file on a disk."""

    def __init__(self, store: Local, handle: FileHandle, file: IO[bytes]) -> None:
        self.handle = handle
        self.write = file.write  # type: ignore[method-assign]  # saves one call per write
        self._store = store
        self._file = file

    def tell(self) -> int:
        return self._file.tell()

    def made_durable(self) -> FileHandle:
        with self._file as file:
            size_bytes = file.tell()  # this process's count, which is compared with the file before the decision
            file.flush()
            os.fsync(file.fileno())
        self._store.sync_pending()
        return replace(self.handle, size_bytes=size_bytes)

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # a full disk refuses the last bytes again
            self._file.close()
        self._store.discard(self.handle)


def _status(path: Path) -> os.stat_result | None:
    """Return the status, or None only if the system reports that the file does not exist. Raises any other error."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _size(status: os.stat_result | None) -> int | None:
    if status is None:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else NO_FILE
