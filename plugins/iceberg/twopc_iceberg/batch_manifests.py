"""The manifests of a batch become one, and one of deletes, so that a batch of any number of tasks adds no more.

An entry of a manifest that a snapshot adds has neither snapshot id nor sequence number: it inherits both. So entries of
several such manifests can stand in one file as they are. Their Avro blocks are copied, not decoded.

The name of the new file follows from the manifests in it, and its bytes, too: whoever commits the batch, and however
often, writes the same file. So it needs no note, and a failed attempt leaves it to the next one.
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
    """A file of a batch is not there as its task has written it.

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
        prepared: where it is, and what a manifest list has of it.
        content: its bytes.
        is_new: whether it is made of several, and to be written.
    """

    prepared: Prepared
    content: bytes
    is_new: bool

    def files(self) -> Mapping[str, int]:
        """Return the location of each data or delete file, and its length, as the manifest has them."""
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
        target_bytes: the size limit of a manifest.
        locate: returns the location of a metadata file of a given name.

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
    """Split items into parts, each of at most the target size in total."""
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
    """Return one manifest; or all as they are, if their headers differ: the table's codec was changed."""
    names = hashlib.sha256("\n".join(each.manifest for each in pack).encode()).hexdigest()[:32]
    location = locate(f"{names}-m0.avro")  # no longer than the tasks' names: those were not refused
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
    """Return what a commit has made of manifests that are gone: the catalog has lost that commit, or does not show it
    yet."""
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
    """Return the manifest that was made of several, by its bytes."""
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
