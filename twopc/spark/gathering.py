"""Small parts of record batches are written together: each write has a fixed cost, of 0.4 ms to Kafka.

Spark passes 10,000 rows at a time. If several outputs share them by conditions, each gets only some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from twopc.spark.output import Part

ENOUGH_RECORDS = 8_192
ENOUGH_BYTES = 4 * 1024 * 1024
"""What is written without waiting for more. Bounds the memory that parts take while they wait."""


@dataclass
class _Waiting:
    """The parts of a sink, records or deletes, that wait for more."""

    parts: list[Part] = field(default_factory=list)
    records: int = 0
    bytes: int = 0


def gathered(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the records of all parts, and apart from them the deletes, in the order in which each sink gets them, in
    fewer and larger parts. A part that is large enough is passed on as it is."""
    waiting: dict[tuple[str, bool], _Waiting] = {}
    for part in parts:
        kind = part.sink, part.deletes
        records, size = part.records.num_rows, part.records.nbytes
        if not records:
            continue
        if kind in waiting and _is_enough(records, size):
            yield _joined(waiting.pop(kind).parts)
        of_sink = waiting.setdefault(kind, _Waiting())
        of_sink.parts.append(part)
        of_sink.records += records
        of_sink.bytes += size
        if _is_enough(of_sink.records, of_sink.bytes):
            yield _joined(waiting.pop(kind).parts)
    yield from (_joined(of_sink.parts) for of_sink in waiting.values())


def _is_enough(records: int, size_bytes: int) -> bool:
    return records >= ENOUGH_RECORDS or size_bytes >= ENOUGH_BYTES


def _joined(parts: list[Part]) -> Part:
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(
        first,
        records=pa.concat_batches([each.records for each in parts]),
        hashes=None if first.hashes is None else pa.concat_arrays([each.hashes for each in parts]),
        source=None if first.source is None else pa.concat_arrays([each.source for each in parts]),
    )
