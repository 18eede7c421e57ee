"""The codecs of Kafka's record batches, framed as Java's consumer expects.

For gzip and zstd, Arrow's output is used as it is. So is its output for Snappy, without the frame that Java's producer
adds: consumers accept both forms, and librdkafka also writes the unframed form. For LZ4, Arrow's own frames have linked
blocks, which Java rejects, so this module puts a frame around Arrow's raw blocks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa

from twopc.errors import ConfigurationError

NONE = "none"
NUMBERS = {NONE: 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""The codec's name → its number in a batch's attributes."""

_LZ4_BLOCK_BYTES = 65_536
# The LZ4 frame format: its magic number, version 1 with independent blocks, blocks of up to 64 KiB, and the checksum
# of these two bytes.
_LZ4_HEADER = bytes.fromhex("04224d18 6040 82")
_LZ4_END = struct.pack("<I", 0)
_LZ4_STORED = 0x8000_0000  # set in the length of an uncompressed block


@dataclass(frozen=True)
class Compression:
    """A codec and its level. The level None stands for the codec's own default."""

    name: str = NONE
    level: int | None = None

    @property
    def number(self) -> int:
        return NUMBERS[self.name]

    def check(self) -> None:
        """Raise ConfigurationError if the codec does not support the level."""
        try:
            self.compress(pa.py_buffer(b"\0"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"'compression.level' = {self.level} is not supported with 'compression.type' = {self.name!r}: {error}",
                option="compression.level",
            ) from error

    def compress(self, data: pa.Buffer) -> pa.Buffer:
        match self.name:
            case "none":
                return data
            case "lz4":
                return self._lz4(data)
            case _:
                return self._codec(self.name).compress(data)

    def _codec(self, name: str) -> pa.Codec:
        return pa.Codec(name) if self.level is None else pa.Codec(name, compression_level=self.level)

    def _lz4(self, data: pa.Buffer) -> pa.Buffer:
        codec, parts = self._codec("lz4_raw"), [_LZ4_HEADER]
        for start in range(0, data.size, _LZ4_BLOCK_BYTES):
            block = data.slice(start, min(_LZ4_BLOCK_BYTES, data.size - start))
            packed = codec.compress(block, asbytes=True)
            if len(packed) < block.size:
                parts += [struct.pack("<I", len(packed)), packed]
            else:
                parts += [struct.pack("<I", block.size | _LZ4_STORED), block]
        return pa.py_buffer(b"".join([*parts, _LZ4_END]))
