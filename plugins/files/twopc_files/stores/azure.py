"""Files in Azure Blob Storage: a pending file consists of uncommitted blocks of its target.

Blocks are durable when their upload returns. A commit puts the list of blocks: one atomic request without a copy.
Before it, no reader sees the blob. Any process can put the list, as Azure itself lists the blocks.

Azure has no request that removes uncommitted blocks, and lists them only among all blobs of a folder. So each pending
file has an empty *marker* ``<path>/_twopc/.<transaction id>-<n>.staged``, from before its first block until after its
commit. Recovery lists the markers. A file without a marker is rolled back. Azure removes its blocks a week after the
last one was uploaded ("Understanding block blobs" in Azure's REST reference).

The client is adlfs, so fsspec's options and credentials work as everywhere else.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from azure.core import MatchConditions
from azure.storage.blob import BlobBlock
from fsspec.asyn import sync
from fsspec.core import url_to_fs

from twopc.azure_errors import as_os_error
from twopc.checks import CheckResult
from twopc_files.file_names import PENDING_FOLDER, FileHandle, owner_of_pending, pending_name
from twopc_files.stores.store import PendingFile, Sight

ResultT = TypeVar("ResultT")

MARK = "twopc_transaction"
"""The key of the blob's metadata that holds the exact transactional id. Azure takes only names without hyphens."""

FIRST_BLOCK_BYTES = 8 * 1024 * 1024
"""A task holds one block of each file in memory."""

BLOCKS_OF_ONE_SIZE = 10_000
"""After this many blocks, the block size doubles. A blob has at most 50 000, so a file can have 2.4 TiB."""


def block_bytes(number: int) -> int:
    """Return the size of block ``number``, counted from 0. Only the last block may be shorter."""
    return FIRST_BLOCK_BYTES << number // BLOCKS_OF_ONE_SIZE


@dataclass(frozen=True, slots=True)
class Azure:
    """A folder of a container.

    Attributes:
        url: the folder, such as ``abfs://container/folder``.
        storage_options: the arguments of adlfs, including credentials.
    """

    url: str
    storage_options: Mapping[str, Any] = field(repr=False)

    @property
    def asks_at_once(self) -> int:
        return 16

    @property
    def longest_name(self) -> int | None:
        return None  # a whole name has a limit

    def located(self) -> tuple[Any, str]:
        # Without a cache of listings: adlfs does not drop from it what it writes itself. fsspec keeps one client per
        # process.
        options = {**self.storage_options, "use_listings_cache": False}
        try:
            located: tuple[Any, str] = url_to_fs(self.url, **options)
        except (TypeError, ValueError) as error:
            raise OSError(errno.EACCES, f"its client can't be made ({type(error).__name__}: {error})") from error
        return located

    def meaning(self, error: Exception) -> OSError:
        return translated(error)

    def require_answer(self) -> None:
        self.pending()

    def for_a_trial(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()  # a container has no folders

    def check(self) -> Iterable[CheckResult]:
        return ()

    def create(self, transaction_id: str, number: int, target: str) -> AzureFile:
        file = FileHandle(transaction_id, pending_name(transaction_id, number), target)
        self.call(_marker(file), "upload_blob", b"", overwrite=True)
        return AzureFile(self, file)

    def owns(self, file: FileHandle) -> bool:
        return owner_of_pending(file.pending) == file.transaction_id

    def where(self, file: FileHandle) -> str:
        return f"{self.url}/{_marker(file)}, blocks of {self.url}/{file.target}"

    def look(self, file: FileHandle) -> Sight:
        # The pending file first: this order upholds the guarantee of ``Store.look``.
        has_marker = self._properties(_marker(file)) is not None
        blocks = self._blocks(file) if has_marker else []
        target = self._properties(file.target)
        is_pending = bool(blocks) or (has_marker and file.size_bytes == 0)  # an empty file has no blocks
        return Sight(
            pending_bytes=sum(block.size for block in blocks) if is_pending else None,
            target_bytes=None if target is None else target.size,
            is_foreign=target is not None and target.metadata.get(MARK) != file.transaction_id,
            parts=tuple({"id": block.id} for block in blocks),
        )

    def may_hide_s(self, file: FileHandle) -> float:  # noqa: ARG002  # the list of blocks is put atomically
        return 0.0

    def obstacle(self, file: FileHandle) -> str | None:  # noqa: ARG002  # Azure checks rights when they are used
        return None

    def publish(self, file: FileHandle, seen: Sight) -> None:
        blocks = [BlobBlock(part["id"]) for part in seen.parts]
        mark = {MARK: file.transaction_id}
        # Another process may have been quicker, or this one, if its client has repeated a request whose reply was lost.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            self.call(
                file.target, "commit_block_list", blocks, metadata=mark, match_condition=MatchConditions.IfMissing
            )
        target = self._properties(file.target)
        if target is None or (target.size, target.metadata.get(MARK)) != (file.size_bytes, file.transaction_id):
            raise OSError(errno.EAGAIN, f"{self.url}/{file.target} has not appeared as this transaction's file")

    def rehearse(self, file: FileHandle) -> None:
        """Do nothing. Putting the list of blocks needs the same right as uploading them."""

    def settle(self, file: FileHandle) -> None:
        self.discard(file)

    def discard(self, file: FileHandle) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.call(_marker(file), "delete_blob")

    def pending(self) -> Iterable[FileHandle]:
        """List the pending files, without targets: the name of a marker lacks its target's folder and format."""
        names = [path.removeprefix(f"{PENDING_FOLDER}/") for path in self._paths(f"{PENDING_FOLDER}/.")]
        return [FileHandle(owner, name, "") for name in names if (owner := owner_of_pending(name))]

    def call(self, below: str, method: str, *arguments: object, **keywords: object) -> Any:
        """Call a method of Azure's client of the blob that is at ``below`` in this folder.

        Raises:
            FileNotFoundError: there is no such blob, or a block is gone.
            FileExistsError: the blob exists, and must not.
            OSError: any other error; its errno is the one that ``outcomes.py`` expects.
        """

        def asked(fs: Any, container: str, folder: str) -> Any:
            client = fs.service_client.get_blob_client(container, f"{folder}{below}")
            return sync(fs.loop, getattr(client, method), *arguments, **keywords)

        return self._ask(asked)

    def _paths(self, prefix: str) -> list[str]:
        """Return the paths below this folder of all blobs whose paths begin with ``prefix``, in order."""

        def asked(fs: Any, container: str, folder: str) -> list[str]:
            async def listed() -> list[str]:
                blobs = fs.service_client.get_container_client(container).list_blobs(f"{folder}{prefix}")
                return [blob.name.removeprefix(folder) async for blob in blobs]

            paths: list[str] = sync(fs.loop, listed)
            return paths

        return self._ask(asked)

    def _ask(self, ask: Callable[[Any, str, str], ResultT]) -> ResultT:
        """Return the answer to ``ask``, which gets the file system, the container, and the folder with its slash."""
        fs, path = self.located()
        container, _, folder = path.partition("/")
        try:
            return ask(fs, container, f"{folder}/".lstrip("/"))
        except Exception as error:
            raise translated(error) from error

    def _properties(self, below: str) -> Any:
        """Return the properties of a blob, or None only if Azure reports that there is none."""
        try:
            return self.call(below, "get_blob_properties")
        except FileNotFoundError:
            return None

    def _blocks(self, file: FileHandle) -> list[Any]:
        """Return the uncommitted blocks of this transaction, in order."""
        try:
            _, blocks = self.call(file.target, "get_block_list", "uncommitted")
        except FileNotFoundError:
            return []
        prefix = block_id(file, 0).rpartition("-")[0]
        return sorted((block for block in blocks if block.id.startswith(prefix)), key=lambda block: block.id)


class AzureFile(PendingFile):
    """A pending file as uncommitted blocks."""

    buffer_bytes = 2 * FIRST_BLOCK_BYTES  # the block being filled, and briefly the one being uploaded

    def __init__(self, store: Azure, handle: FileHandle) -> None:
        self.handle = handle
        self._store = store
        self._buffer = bytearray()
        self._size_bytes = 0
        self._blocks = 0

    def write(self, data: Any) -> int:
        with memoryview(data).cast("B") as view:
            taken = 0
            while taken < len(view):
                room = block_bytes(self._blocks) - len(self._buffer)
                self._buffer += view[taken : taken + room]
                taken += room
                if len(self._buffer) == block_bytes(self._blocks):
                    self._upload_block()
            self._size_bytes += len(view)
            return len(view)

    def tell(self) -> int:
        return self._size_bytes

    def made_durable(self) -> FileHandle:
        if self._buffer:
            self._upload_block()
        return replace(self.handle, size_bytes=self._size_bytes)

    def discard(self) -> None:
        self._buffer.clear()
        self._store.discard(self.handle)

    def _upload_block(self) -> None:
        name = block_id(self.handle, self._blocks)
        self._store.call(self.handle.target, "stage_block", name, bytes(self._buffer))
        self._blocks += 1
        self._buffer = bytearray()


def block_id(file: FileHandle, number: int) -> str:
    """Return the id of a block. It names the pending file, so that no other writer's block is taken for one of it.

    Azure wants ids of up to 64 bytes, and of one length in a blob.
    """
    return f"{hashlib.sha256(file.pending.encode()).hexdigest()[:40]}-{number:06d}"


def _marker(file: FileHandle) -> str:
    return f"{PENDING_FOLDER}/{file.pending}"


def translated(error: Exception) -> OSError:
    """Translate an error of Azure's client to one whose errno ``outcomes.py`` understands."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    if of_azure := as_os_error(error):
        return of_azure
    number = errno.ETIMEDOUT if isinstance(error, ConnectionError | TimeoutError) else errno.EIO
    return OSError(number, f"{type(error).__name__}: {error}")
