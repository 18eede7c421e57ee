"""Files in a store that fsspec supports and in which a rename or a copy makes a file appear atomically.

A pending file is written under ``<path>/_twopc/``. A commit renames it if the store's renames are atomic (HDFS). In
``memory://``, a rename is a copy and a removal, so a commit makes these two steps itself.

These stores have no fsync, and some have no exclusive create. A file is as durable as any closed file in the store, and
no other process writes a name with this exact transactional id.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fsspec.spec import AbstractBufferedFile

from twopc.stores.places import file_system
from twopc.stores.remote import by_kind, folder_at_store, folder_for_a_trial
from twopc_files.file_names import PENDING_FOLDER, FileHandle, pending_name
from twopc_files.stores.store import LONGEST_NAME, NO_FILE, PendingFile, Sight, Store

ResultT = TypeVar("ResultT")

_HADOOP = ", which needs Hadoop's native client: set JAVA_HOME, HADOOP_HOME and CLASSPATH (hadoop classpath --glob)"

_BUFFER_BYTES = 2 * AbstractBufferedFile.DEFAULT_BLOCK_SIZE
"""The most bytes of a file that a client holds: the block being filled, and the one being uploaded."""


@dataclass(frozen=True, slots=True)
class Remote(Store):
    """A folder at any URL that fsspec opens.

    Attributes:
        url: the folder.
        storage_options: fsspec's options for the URL, including credentials.
        renames: whether to publish by a rename, which must be atomic; otherwise by a copy.
    """

    url: str = field()  # replaces the property
    storage_options: Mapping[str, Any] = field(repr=False)
    renames: bool

    @property
    def longest_name(self) -> int | None:  # type: ignore[override]  # without renames, the store has no folders
        return LONGEST_NAME if self.renames else None

    def for_a_trial(self) -> AbstractContextManager[None]:
        if self.renames:
            return folder_for_a_trial(self._fs, self._path(PENDING_FOLDER))
        return contextlib.nullcontext()  # there are no folders

    def create(self, transaction_id: str, number: int, target: str) -> RemoteFile:
        name = pending_name(transaction_id, number)
        path = self._pending_path(name)
        if self.renames:
            _ask(self._fs.makedirs, self._path(PENDING_FOLDER), exist_ok=True)
        return RemoteFile(self, FileHandle(transaction_id, name, target), _ask(self._fs.open, path, "wb"))

    def look(self, file: FileHandle) -> Sight:
        self._fs.invalidate_cache()
        # The pending file first: this order upholds the guarantee of ``Store.look``.
        pending, target = self._size(self._pending_path(file.pending)), self._size(self._path(file.target))
        if pending is not None and target is not None:
            pending = self._size(self._pending_path(file.pending))  # it may have been published meanwhile
        if self.renames and pending is None and target is None and self._size(self._path("")) is None:
            raise OSError(errno.ENODEV, f"the folder {self.url} is not there. Was the option 'path' changed?")
        is_foreign = pending is not None and target is not None and not self._is_copy(file, pending, target)
        return Sight(pending, target, is_foreign)

    def _is_copy(self, file: FileHandle, pending: int, target: int) -> bool:
        """Whether the target is a copy of the pending file. Both exist after a crash between copy and removal, or if a
        foreign file has the target's name."""
        if self.renames or pending != target:
            return False
        paths = self._pending_path(file.pending), self._path(file.target)
        copied, found = (_ask(self._fs.cat_file, path) for path in paths)
        return bool(copied == found)

    def publish(self, file: FileHandle, seen: Sight) -> None:  # noqa: ARG002  # the names are enough
        pending, target = self._pending_path(file.pending), self._path(file.target)
        if self.renames:
            _ask(self._fs.makedirs, target.rsplit("/", 1)[0], exist_ok=True)
            try:
                _ask(self._fs.mv, pending, target)
            except FileExistsError as error:  # a repeat finds out whose file it is
                raise OSError(errno.EAGAIN, f"{target} has come to exist") from error
        else:
            _ask(self._fs.cp_file, pending, target)
        self._fs.invalidate_cache()
        # These stores have no metadata to mark a file with, but the target's name has an id that is never used twice.
        if self._size(target) != file.size_bytes:
            raise OSError(errno.EAGAIN, f"{target} has not appeared, though the store accepted the request")

    def rehearse(self, file: FileHandle) -> None:
        pending, hidden = self._pending_path(file.pending), self._path(file.pending)
        with contextlib.suppress(FileNotFoundError):  # a killed process may have left it
            _ask(self._fs.rm_file, hidden)
        _ask(self._fs.mv if self.renames else self._fs.cp_file, pending, hidden)
        _ask(self._fs.rm_file, hidden)

    def settle(self, file: FileHandle) -> None:
        if self.renames:
            # The NameNode may not have synced the rename of a target that it already shows.
            folder = self._path(file.target).rpartition("/")[0]
            _ask(folder_at_store(self._fs, folder).sync, file.target)
        else:
            self.discard(file)

    def discard(self, file: FileHandle) -> None:
        with contextlib.suppress(FileNotFoundError):
            _ask(self._fs.rm_file, self._pending_path(file.pending))

    def pending_names(self) -> list[str]:
        self._fs.invalidate_cache()
        try:
            entries = _ask(self._fs.ls, self._path(PENDING_FOLDER), detail=True)
        except FileNotFoundError:
            return []
        return sorted(entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file")

    def _size(self, path: str) -> int | None:
        """Return the size, or None only if the store reports that the file does not exist. Raises any other error."""
        try:
            info = _ask(self._fs.info, path)
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else NO_FILE

    def _pending_path(self, name: str) -> str:
        return self._path(f"{PENDING_FOLDER}/{name}")

    def _path(self, below: str) -> str:
        folder: str = self.located()[1]
        return f"{folder.rstrip('/')}/{below}".rstrip("/")

    @property
    def _fs(self) -> Any:
        return self.located()[0]

    def located(self) -> tuple[Any, str]:
        try:
            # fsspec keeps one client per thread, each with its own session. Threads can't share one, as
            # requests-kerberos keeps the context of a handshake by host.
            return file_system(self.url, **self.storage_options)
        except Exception as error:
            # Repeating does not help. The first line names a missing library; dozens of lines with the searched paths
            # follow.
            what = str(error).partition("\n")[0].strip()
            needs = _HADOOP if self.url.startswith("hdfs:") else ""
            raise OSError(errno.EIO, f"its client can't be made ({type(error).__name__}: {what}){needs}") from error


class RemoteFile(PendingFile):
    """A pending file in a remote store."""

    def __init__(self, store: Store, handle: FileHandle, file: Any) -> None:
        self.buffer_bytes = getattr(file, "blocksize", None) or _BUFFER_BYTES
        self.handle = handle
        self._store = store
        self._file = file
        self._size_bytes = 0

    def write(self, data: Any) -> int:
        _ask(self._file.write, data)
        length = memoryview(data).nbytes
        self._size_bytes += length
        return length

    def tell(self) -> int:
        return self._size_bytes

    def made_durable(self) -> FileHandle:
        _ask(self._file.close)
        return replace(self.handle, size_bytes=self._size_bytes)

    def discard(self) -> None:
        is_open = isinstance(self._file, AbstractBufferedFile) and not self._file.closed
        with contextlib.suppress(Exception):  # the data could not be written before, or an upload has ended
            self._file.discard() if is_open else self._file.close()
        self._forget()
        self._store.discard(self.handle)

    def __del__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """Mark the file as closed. Otherwise the client would write its buffer when the file is garbage-collected."""
        if isinstance(self._file, AbstractBufferedFile):
            self._file.closed = True


def _ask(call: Callable[..., ResultT], *arguments: object, **keywords: object) -> ResultT:
    """Call the file system, and raise its errors as OSErrors with an errno that ``outcomes.py`` understands."""
    try:
        return call(*arguments, **keywords)
    except Exception as error:
        translated = by_kind(error)
        if translated is error:
            raise
        raise translated from error
