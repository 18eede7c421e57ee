"""Small parts of record batches are written together: each write has a fixed cost, of 0.4 ms to Kafka.

Spark passes 10,000 rows at a time. If several outputs share them by conditions, each gets only some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from twopc.spark.output import Part

ENOUGH_RECORDS = 8_192
ENOUGH_BYTES = 4 * 1024 * 1024
"""What is written without waiting for more. Bounds the memory that parts take while they wait."""


def gathered(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the records of all parts, in the order in which each sink gets them, in fewer and larger parts."""
    waiting: dict[str, list[Part]] = {}
    for part in parts:
        of_sink = waiting.setdefault(part.sink, [])
        of_sink.append(part)
        records = sum(each.records.num_rows for each in of_sink)
        if records >= ENOUGH_RECORDS or sum(each.records.nbytes for each in of_sink) >= ENOUGH_BYTES:
            yield _joined(waiting.pop(part.sink))
    yield from map(_joined, waiting.values())


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
