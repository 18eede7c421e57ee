"""Joins the manifests of a batch into one for data files and one for delete files, however many tasks wrote it.

Entries of a new manifest inherit their snapshot id and sequence number from the snapshot that adds it. So the entries
of several manifests fit into one file unchanged: their Avro blocks are copied, not decoded.

The name and the bytes of the new file depend only on the manifests, so every process that commits the batch writes the
same file, however often. The file needs no note, and the next attempt can use the file that a failed attempt has left.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pyiceberg.manifest import ManifestContent

from twopc_iceberg.files import DurableFileIO
from twopc_iceberg.layout import Layout
from twopc_iceberg.manifests import InMemory, blocks_of, header, with_blocks
from twopc_iceberg.outcomes import Damaged, reading
from twopc_iceberg.prepared import Prepared, digest_of, joined_partitions

ItemT = TypeVar("ItemT")


class FileChanged(Exception):
    """A file of a batch is missing or differs from what its task wrote.

    Attributes:
        location: the file.
    """

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


@dataclass(frozen=True, slots=True)
class BatchManifest:
    """A manifest that the snapshot of a batch adds.

    Attributes:
        prepared: its location, and its description for a manifest list.
        content: its bytes.
        is_new: whether it joins several manifests and has yet to be written.
    """

    prepared: Prepared
    content: bytes
    is_new: bool

    def files(self) -> Mapping[str, int]:
        """Return the length of each data or delete file in the manifest, by location."""
        entries = self.prepared.manifest_file(snapshot_id=0).fetch_manifest_entry(InMemory(self.content))  # type: ignore[arg-type]
        return {entry.data_file.file_path: entry.data_file.file_size_in_bytes for entry in entries}

    def write(self, io: DurableFileIO) -> None:
        if self.is_new and not self.prepared.by_position:
            io.write_same(self.prepared.manifest, self.content)


def of_batch(
    io: DurableFileIO, prepared: Sequence[Prepared], target_bytes: int, locate: Callable[[str], str]
) -> list[BatchManifest]:
    """Read the manifests of a batch's transactions, and join them. Errors of the store pass through.

    Args:
        io: access to the table's files.
        prepared: the manifests of all transactions.
        target_bytes: the maximum size of a manifest.
        locate: returns the location for a metadata file, given its name.

    Raises:
        FileChanged: a manifest is missing or was changed.
    """
    alike: dict[tuple[ManifestContent, int, str], list[Prepared]] = defaultdict(list)
    for each in prepared:
        alike[each.content, each.spec, each.layout].append(each)
    return [
        manifest
        for group in alike.values()
        for pack in packed(group, target_bytes, lambda each: each.length)
        for manifest in _of_pack(io, pack, locate)
    ]


def packed(items: Sequence[ItemT], target_bytes: int, length: Callable[[ItemT], int]) -> Iterator[list[ItemT]]:
    """Split items into parts whose total size is at most the target size. An item that is larger gets a part of its
    own."""
    part, size = list[ItemT](), 0
    for each in items:
        if part and size + length(each) > target_bytes:
            yield part
            part, size = [], 0
        part.append(each)
        size += length(each)
    if part:
        yield part


def _of_pack(io: DurableFileIO, pack: Sequence[Prepared], locate: Callable[[str], str]) -> list[BatchManifest]:
    """Return one joined manifest. If the headers of the manifests differ because the table's codec was changed, return
    all manifests unchanged."""
    names = hashlib.sha256("\n".join(each.manifest for each in pack).encode()).hexdigest()[:32]
    location = locate(f"{names}-m0.avro")  # as short as the tasks' names, which the store accepted
    try:
        contents = _contents(io, pack)
    except FileChanged as changed:
        return [_made_before(io, pack, location, changed)]
    start = header(contents[0])[1]
    head = contents[0][:start]
    if len(pack) == 1 or not all(content.startswith(head) for content in contents):
        return [BatchManifest(each, content, is_new=False) for each, content in zip(pack, contents, strict=True)]
    blocks = [block for content in contents for block in blocks_of(content, start)]
    return [_described(pack, location, with_blocks(contents[0], start, blocks))]


def _made_before(io: DurableFileIO, pack: Sequence[Prepared], location: str, changed: FileChanged) -> BatchManifest:
    """Return the joined manifest that an earlier commit has written, if the tasks' manifests are gone now. The catalog
    has lost that commit, or does not show the commit yet."""
    try:
        with reading(location):
            found = _described(pack, location, io.read(location))
            if len(found.files()) == found.prepared.files:
                return found
    except FileNotFoundError:
        raise changed from None
    except Damaged:
        pass
    raise FileChanged(location)


def _contents(io: DurableFileIO, pack: Sequence[Prepared]) -> list[bytes]:
    def content(location: str) -> bytes:
        try:
            return io.read(location)
        except FileNotFoundError:
            raise FileChanged(location) from None

    found: list[bytes] = io.at_once(content, [each.manifest for each in pack])
    for each, read in zip(pack, found, strict=True):
        if len(read) != each.length or each.digest not in (None, digest_of(read)):
            raise FileChanged(each.manifest)
    return found


def _described(pack: Sequence[Prepared], location: str, content: bytes) -> BatchManifest:
    """Describe the manifest that joins ``pack``, given its bytes."""
    first, (found, _) = pack[0], header(content)
    layout = Layout.from_manifest(found.meta["schema"], first.spec, found.meta["partition-spec"])
    joined = replace(
        first,
        manifest=location,
        length=len(content),
        files=sum(each.files for each in pack),
        rows=sum(each.rows for each in pack),
        bytes=sum(each.bytes for each in pack),
        partitions=joined_partitions([each.partitions for each in pack], layout.partition_types()),
    )
    return BatchManifest(joined, content, is_new=True)
