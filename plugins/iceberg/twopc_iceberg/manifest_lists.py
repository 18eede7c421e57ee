"""Manifest lists: each snapshot has one, with every manifest that has files.

The list of a batch is the one before it and a manifest more. So the list that this process wrote last is kept, and its
Avro blocks are copied: a commit neither reads nor encodes again what the table had before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestFile, read_manifest_list, write_manifest_list

from twopc_iceberg import avro
from twopc_iceberg.outcomes import reading
from twopc_iceberg.table import avro_compression

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from twopc_iceberg.files import DurableFileIO
    from twopc_iceberg.snapshot import Attempt


@dataclass(frozen=True, slots=True)
class _Written:
    """A manifest list that this process wrote.

    Attributes:
        location: its file, which never changes.
        codec: how its blocks are compressed.
        blocks: its Avro blocks.
        manifests: the manifests in it.
    """

    location: str
    codec: str
    blocks: tuple[bytes, ...]
    manifests: tuple[ManifestFile, ...]


class ManifestLists:
    """Reads and writes the manifest lists of one table, and keeps the last ones that it wrote and read.
    Errors of the store pass through."""

    def __init__(self) -> None:
        self._last: _Written | None = None
        self._read: tuple[str, Sequence[ManifestFile]] | None = None  # the location of the last one read, and it

    def read(self, io: DurableFileIO, snapshot: Snapshot) -> Sequence[ManifestFile]:
        """Return the manifests of a snapshot. Raises Damaged."""
        if (last := self._written_for(snapshot)) is not None:
            return last.manifests
        if self._read is None or self._read[0] != snapshot.manifest_list:
            with reading(snapshot.manifest_list):
                self._read = snapshot.manifest_list, snapshot.manifests(io)
        return self._read[1]

    def live(self, io: DurableFileIO, snapshot: Snapshot | None) -> list[ManifestFile]:
        """Return the manifests of a snapshot that have files."""
        found = [] if snapshot is None else self.read(io, snapshot)
        return [manifest for manifest in found if manifest.has_added_files() or manifest.has_existing_files()]

    def write(
        self,
        io: DurableFileIO,
        metadata: TableMetadata,
        attempt: Attempt,
        manifests: Iterable[ManifestFile],
        parent: Snapshot | None = None,
    ) -> None:
        """Write the manifest list of a proposed snapshot.

        Args:
            io: access to the table's files.
            metadata: the table's.
            attempt: the snapshot.
            manifests: what the snapshot has beside the manifests of ``parent``.
            parent: the snapshot whose manifests it keeps; None to keep none.
        """
        codec, last = avro_compression(metadata.properties), self._written_for(parent)
        if last is None or last.codec != codec:
            content = _encoded(metadata, attempt, codec, [*manifests, *self.live(io, parent)])
            blocks, kept = list[bytes](), tuple[ManifestFile, ...]()
        else:
            content = _encoded(metadata, attempt, codec, manifests)
            blocks, kept = [*last.blocks], last.manifests
        start = avro.header(content)[1]
        blocks = [*avro.blocks(content, start), *blocks]
        with io.new_output(attempt.manifest_list).create(overwrite=True) as stream:
            stream.write(avro.with_blocks(content, start, blocks))
        added = read_manifest_list(avro.InMemory(content))  # type: ignore[arg-type]
        self._last = _Written(attempt.manifest_list, codec, tuple(blocks), (*added, *kept))

    def _written_for(self, snapshot: Snapshot | None) -> _Written | None:
        last = self._last
        return last if last is not None and snapshot is not None and snapshot.manifest_list == last.location else None


def _encoded(metadata: TableMetadata, attempt: Attempt, codec: str, manifests: Iterable[ManifestFile]) -> bytes:
    file = avro.InMemory()
    with write_manifest_list(
        format_version=metadata.format_version,
        output_file=file,  # type: ignore[arg-type]
        snapshot_id=attempt.snapshot_id,
        parent_snapshot_id=attempt.parent_snapshot_id,
        sequence_number=attempt.sequence_number,
        avro_compression=codec,  # type: ignore[arg-type]
    ) as writer:
        writer.add_manifests([*manifests])
    return file.content
