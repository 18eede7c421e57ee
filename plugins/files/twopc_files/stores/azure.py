"""Files in Azure Blob Storage: a pending file consists of uncommitted blocks of its target.

Blocks are durable when their upload returns. A commit puts the block list, in one atomic request without a copy. Before
that, no reader sees the blob. Any process can put the list, as Azure itself lists the blocks.

Azure has no request that removes uncommitted blocks, and lists them only among all blobs of a folder. So each pending
file has an empty *marker* ``<path>/_twopc/.<transaction id>-<n>.staged``, from before its first block until after its
commit. Recovery lists the markers. A file without a marker is rolled back. Azure removes its blocks a week after the
last one was uploaded ("Understanding block blobs" in Azure's REST reference).

An abort removes the marker, but can't remove the blocks. So a commit looks at the marker again right before it puts the
list. A process that is paused between these two requests publishes a file that was aborted in between.

The client is adlfs, so fsspec's options and credentials work as everywhere else.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from azure.core import MatchConditions
from azure.storage.blob import BlobBlock

from twopc.stores.places import file_system
from twopc_files.file_names import PENDING_FOLDER, FileHandle, pending_name
from twopc_files.stores.store import FileOfParts, MarkingStore, Sight

MARK = "twopc_transaction"
"""The key of the blob's metadata with the exact transactional id. Azure does not allow hyphens in such keys."""


@dataclass(frozen=True, slots=True)
class Azure(MarkingStore):
    """A folder of a container.

    Attributes:
        url: the folder, such as ``abfs://container/folder``.
        storage_options: the arguments of adlfs, including credentials.
    """

    url: str = field()  # replaces the property
    storage_options: Mapping[str, Any] = field(repr=False)

    def located(self) -> tuple[Any, str]:
        options = {**self.storage_options, "use_listings_cache": False}
        try:
            return file_system(self.url, **options)  # fsspec keeps one client per process
        except (TypeError, ValueError) as error:
            raise OSError(errno.EACCES, f"its client can't be made ({type(error).__name__}: {error})") from None

    def create(self, transaction_id: str, number: int, target: str) -> AzureFile:
        file = FileHandle(transaction_id, pending_name(transaction_id, number), target)
        self.call(_marker(file), "upload_blob", b"", overwrite=True)
        return AzureFile(self, file)

    def where(self, file: FileHandle) -> str:
        return f"{self.url}/{_marker(file)}, blocks of {self.url}/{file.target}"

    def look(self, file: FileHandle) -> Sight:
        has_marker = self.found(_marker(file)) is not None
        blocks = self._blocks(file) if has_marker else []
        is_pending = bool(blocks) or (has_marker and file.size_bytes == 0)  # an empty file has no blocks
        pending_bytes = sum(block.size for block in blocks) if is_pending else None
        return self.sight(file, pending_bytes, tuple({"id": block.id} for block in blocks))

    def publish(self, file: FileHandle, seen: Sight) -> None:
        blocks = [BlobBlock(part["id"]) for part in seen.parts]
        mark = {MARK: file.transaction_id}
        # Another process may have been faster, or this one's client may have repeated a request whose reply was lost.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            self.call(_marker(file), "get_blob_properties")  # checked again, as an abort leaves the blocks
            self.call(
                file.target, "commit_block_list", blocks, metadata=mark, match_condition=MatchConditions.IfMissing
            )
        self.require_target(file)

    def discard(self, file: FileHandle) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.call(_marker(file), "delete_blob")

    def pending_names(self) -> list[str]:
        fs, folder = self.located()
        try:
            paths = fs.ls(f"{folder.rstrip('/')}/{PENDING_FOLDER}", detail=False)
        except FileNotFoundError:
            return []
        return [path.rpartition("/")[2] for path in paths]

    def call(self, below: str, method: str, *arguments: object, **keywords: object) -> Any:
        """Call a method of Azure's client for the blob ``below`` this folder.

        Raises:
            FileNotFoundError: there is no such blob, or a block is gone.
            FileExistsError: the blob already exists.
            OSError: any other error; its errno is the one that ``outcomes.py`` expects.
        """
        fs, folder = self.located()
        return fs.call(f"{folder.rstrip('/')}/{below}", method, *arguments, **keywords)

    def found(self, below: str) -> tuple[int, str | None] | None:
        with contextlib.suppress(FileNotFoundError):
            properties = self.call(below, "get_blob_properties")
            return properties.size, properties.metadata.get(MARK)
        return None

    def _blocks(self, file: FileHandle) -> list[Any]:
        """Return the uncommitted blocks of this transaction, in order."""
        try:
            _, blocks = self.call(file.target, "get_block_list", "uncommitted")
        except FileNotFoundError:
            return []
        prefix = block_id(file, 0).rpartition("-")[0]
        return sorted((block for block in blocks if block.id.startswith(prefix)), key=lambda block: block.id)


class AzureFile(FileOfParts):
    """A pending file as uncommitted blocks."""

    most_parts = 50_000  # Azure accepts more uncommitted blocks, but then rejects their list
    _store: Azure

    def upload_part(self, number: int, data: bytearray) -> None:
        self._store.call(
            self.handle.target, "stage_block", block_id(self.handle, number), bytes(data), validate_content=True
        )


def block_id(file: FileHandle, number: int) -> str:
    """Return the id of a block. The id identifies the pending file, so that a block uploaded by another writer is never
    taken for a block of this file.

    Azure requires ids of up to 64 bytes, all of the same length in a blob.
    """
    return f"{hashlib.sha256(file.pending.encode()).hexdigest()[:40]}-{number:06d}"


def _marker(file: FileHandle) -> str:
    return f"{PENDING_FOLDER}/{file.pending}"
