"""Avro files in memory, taken apart and put together without decoding their blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader

_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def header(content: bytes) -> tuple[AvroFileHeader, int]:
    """Return the header of an Avro file, and where the sync marker at its end begins."""
    decoder = new_decoder(content)
    return _HEADER.read(decoder), decoder.tell() - SYNC_SIZE


def blocks(content: bytes, start: int) -> Iterator[bytes]:
    """Yield the blocks of an Avro file, without their sync markers.

    Args:
        content: the file.
        start: where the sync marker of its header begins.

    Raises:
        EOFError: the file is cut short.
    """
    decoder = new_decoder(content)
    decoder.skip(start)
    sync = decoder.read(SYNC_SIZE)
    while (begin := decoder.tell()) < len(content):
        decoder.read_int()  # entries
        decoder.skip(decoder.read_int())
        end = decoder.tell()
        if end + SYNC_SIZE > len(content) or decoder.read(SYNC_SIZE) != sync:
            raise EOFError
        yield content[begin:end]


def with_blocks(content: bytes, start: int, others: Iterable[bytes]) -> bytes:
    """Return a file with the header of ``content``, which ends at ``start``, and with other blocks."""
    sync = content[start : start + SYNC_SIZE]
    return b"".join([content[:start], sync, *(part for block in others for part in (block, sync))])


class InMemory:
    """A file in memory, as pyiceberg asks for one."""

    def __init__(self, content: bytes = b"", location: str = "") -> None:
        self.content = content
        self.location = location

    def __len__(self) -> int:
        return len(self.content)

    def new_input(self, location: str) -> InMemory:  # noqa: ARG002
        return self

    def open(self) -> BytesIO:
        return BytesIO(self.content)

    def create(self, overwrite: bool = False) -> BytesIO:  # noqa: ARG002
        return _Kept(self)


class _Kept(BytesIO):
    """A stream whose bytes outlive it."""

    def __init__(self, file: InMemory) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        if not self.closed:
            self._file.content = self.getvalue()
        super().close()
