"""The interface of a store of files."""

from __future__ import annotations

import contextlib
import errno
import io
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from twopc.checks import CheckResult
from twopc_files.file_names import PENDING_FOLDER, FileHandle, owner_of_pending

LONGEST_NAME = 255
"""The most bytes of a name on file systems such as ext4, XFS, Btrfs and HDFS."""

MARK = "twopc-transaction"
"""The key of an object's metadata with the exact transactional id. A repeated commit recognizes its own object by this
id, whatever the bucket's encryption does to the ETag."""

PART_BYTES = 8 * 1024 * 1024
"""The size of a part. A task holds one part in memory per file that is uploaded in parts. S3 requires at least 5
MiB."""

NO_FILE = -1
"""The size that is reported for anything but a regular file, such as a folder or a link."""


class PendingFile(io.RawIOBase):
    """A binary file that is not yet committed. It is written from start to end, and no reader sees it.

    Attributes:
        handle: its entry in a committable; complete after ``close``.
        buffer_bytes: the most bytes that it holds in memory.
    """

    handle: FileHandle
    buffer_bytes: int = 0

    def writable(self) -> bool:
        return True

    @abstractmethod
    def tell(self) -> int:
        """Return the number of bytes written so far."""

    def close(self) -> None:
        """Make all written data durable. Raises OSError: some of it is not durable."""
        if not self.closed:
            self.handle = self.made_durable()
            super().close()

    @abstractmethod
    def made_durable(self) -> FileHandle:
        """Make all data durable, for ``close``, and return the complete handle."""

    @abstractmethod
    def discard(self) -> None:
        """Remove the file, closed or not. Succeeds if it is gone."""

    def __del__(self) -> None:
        """Do nothing. The base class would call ``close``, but an abandoned file must not become durable."""


class FileOfParts(PendingFile):
    """A pending file that is uploaded in parts. It holds one part in memory, and briefly also the one being uploaded.

    All parts have the same size, except for the last, which is smaller. Some S3 servers reject other parts, and only
    when the upload is completed.

    Attributes:
        most_parts: the most parts that the store accepts for a file.
    """

    most_parts: int
    buffer_bytes = 2 * PART_BYTES

    def __init__(self, store: Store, handle: FileHandle) -> None:
        self.handle = handle
        self._store = store
        self._buffer = bytearray()
        self._size_bytes = 0
        self._parts = 0

    @abstractmethod
    def upload_part(self, number: int, data: bytearray) -> None:
        """Make part ``number``, counted from 0, durable."""

    def write(self, data: Any) -> int:
        with memoryview(data).cast("B") as view:
            taken = 0
            while taken < len(view):
                room = PART_BYTES - len(self._buffer)
                self._buffer += view[taken : taken + room]
                taken += room
                if len(self._buffer) == PART_BYTES:
                    self.upload_rest()
            self._size_bytes += len(view)
            return len(view)

    def tell(self) -> int:
        return self._size_bytes

    def upload_rest(self) -> None:
        """Upload the buffer as a part, even if it is empty. Raises OSError: the file has too many parts."""
        if self._parts == self.most_parts:
            most_gib = self.most_parts * PART_BYTES >> 30
            raise OSError(
                errno.EFBIG,
                f"a file in this store has at most {most_gib} GiB. Set the option 'max_bytes_per_file' to less, or"
                " write more partitions",
            )
        self.upload_part(self._parts, self._buffer)
        self._parts += 1
        self._buffer = bytearray()

    def made_durable(self) -> FileHandle:
        if self._buffer:
            self.upload_rest()
        return replace(self.handle, size_bytes=self._size_bytes)

    def discard(self) -> None:
        self._buffer.clear()
        self._store.discard(self.handle)


@dataclass(frozen=True, slots=True)
class Sight:
    """A store's report about one file. A size is None if the file certainly does not exist.

    Attributes:
        pending_bytes: the size of the pending file.
        target_bytes: the size of the file with the target's name.
        is_foreign: whether the file with the target's name is known to belong to another transaction or program.
        parts: the parts of the pending file, in the form that the store requires for publication.
    """

    pending_bytes: int | None
    target_bytes: int | None
    is_foreign: bool = False
    parts: tuple[Mapping[str, Any], ...] = ()


class Store(Protocol):
    """A folder in one kind of store. An immutable value, which is pickled together with its sink. Its repr shows no
    credentials.

    A store acts and reports; ``outcomes.py`` decides. Every method except ``owns`` and ``where`` may raise OSError.
    ``outcomes.py`` defines the meaning of ``errno``, which is the same for all stores. The methods implemented here
    suit an object store whose pending files have names.
    """

    @property
    def url(self) -> str:
        """The folder of committed files."""

    asks_at_once: ClassVar[int] = 16
    """How many requests to send to the store in parallel."""

    longest_name: ClassVar[int | None] = None
    """The most bytes of a folder's name; None if only whole keys have a limit."""

    def located(self) -> tuple[Any, str]:
        """Return the fsspec file system, and the folder of committed files as a path in it."""

    def require_answer(self) -> None:
        """Make sure that the store exists and answers. Changes nothing."""
        self.pending()

    def for_a_trial(self) -> AbstractContextManager[None]:
        """Return a context manager for a trial. On exit, it removes the folders that the trial created and left
        empty."""
        return contextlib.nullcontext()

    def check(self) -> Iterable[CheckResult]:
        """Run the checks that are specific to this kind of store."""
        return ()

    def create(self, transaction_id: str, number: int, target: str) -> PendingFile:
        """Create empty pending file ``number`` of its transaction, to be published as ``target``."""

    def owns(self, file: FileHandle) -> bool:
        """Whether ``file.pending`` can belong to this store and this transaction. A handle that belongs elsewhere would
        make this sink commit or remove another transaction's file."""
        return owner_of_pending(file.pending) == file.transaction_id

    def where(self, file: FileHandle) -> str:
        """Return the places of the pending file and the target as text, for messages."""
        return f"{self.url}/{PENDING_FOLDER}/{file.pending} to {self.url}/{file.target}"

    def look(self, file: FileHandle) -> Sight:
        """Report whether the pending file and the target exist.

        Upholds: a file that is being published is seen in at least one of the two places. A store may hide it, or show
        only a part of it, for no longer than ``may_hide_s``.
        """

    def may_hide_s(self, file: FileHandle) -> float:  # noqa: ARG002
        """Return how many seconds the store may show neither the target nor the whole pending file while it publishes
        the file."""
        return 0.0  # a rename or a rewrite is atomic

    def obstacle(self, file: FileHandle) -> str | None:  # noqa: ARG002
        """Return a reason, beyond what ``look`` reports, why this process can't publish the file, and what to do about
        it. Return None if there is none."""
        return None  # most stores check permissions only when they are used

    def publish(self, file: FileHandle, seen: Sight) -> None:
        """Turn the pending file into the target, atomically for every reader. Called only after ``look`` has seen the
        pending file and no target.

        Upholds: on return the target has been seen, and is the transaction's own, whole file. The store's reply to the
        request proves nothing.
        """

    def settle(self, file: FileHandle) -> None:
        """Make a publication durable and remove the pending file, even if another process published the target. Raises
        NotSynced: a disk did not sync."""
        self.discard(file)

    def rehearse(self, file: FileHandle) -> None:  # noqa: ARG002
        """Publish the file under a hidden name, then remove it. Implemented only by stores in which publishing needs a
        permission or a place that writing does not need."""
        return

    def discard(self, file: FileHandle) -> None:
        """Remove the pending file, never a target. Succeeds if it is gone."""

    def pending(self) -> Iterable[FileHandle]:
        """List the pending files of all sinks. Their handles have no target, because the name of a pending file
        contains neither the target's folder nor its format."""
        return [FileHandle(owner, name, "") for name in self.pending_names() if (owner := owner_of_pending(name))]

    def pending_names(self) -> Iterable[str]:
        """List the names in the folder of pending files, for ``pending``."""
        return ()  # for stores without such a folder


class MarkingStore(Store):
    """An object store that keeps the transactional id in the metadata of each object that it publishes."""

    @abstractmethod
    def found(self, below: str) -> tuple[int, str | None] | None:
        """Return the size of an object in this folder, and the transactional id in its metadata, if any. None if the
        object certainly does not exist."""

    def sight(self, file: FileHandle, pending_bytes: int | None, parts: tuple[Mapping[str, Any], ...] = ()) -> Sight:
        """Look at the target, and return the report. The caller must have looked at the pending file before: this order
        upholds the guarantee of ``look``."""
        target = self.found(file.target)
        size_bytes, owner = target or (None, file.transaction_id)
        return Sight(pending_bytes, size_bytes, owner != file.transaction_id, parts)

    def require_target(self, file: FileHandle) -> None:
        """Raise OSError unless the target is this transaction's whole object."""
        if self.found(file.target) != (file.size_bytes, file.transaction_id):
            raise OSError(
                errno.EAGAIN,
                f"{self.url}/{file.target} has not appeared as this transaction's file",
            )


@dataclass(frozen=True, slots=True)
class Bucket(MarkingStore):
    """A folder of a bucket.

    Attributes:
        protocol: the URL's protocol.
        bucket: the bucket's name.
        folder: the name of the folder, without leading or trailing slash; "" for the bucket itself.
        storage_options: the client's arguments, including credentials.
    """

    protocol: ClassVar[str]

    bucket: str
    folder: str
    storage_options: Mapping[str, Any] = field(repr=False)

    @property
    def url(self) -> str:
        return f"{self.protocol}://{self.bucket}/{self.folder}".rstrip("/")

    def key(self, below: str) -> str:
        """Return the key of an object in this folder."""
        return f"{self.folder}/{below}".lstrip("/")
