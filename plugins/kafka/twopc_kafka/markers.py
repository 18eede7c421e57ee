"""Whole batches for readers: each record names its batch in a header, and a marker in another topic announces each
complete batch.

``docs/examples/markers`` contains example readers. A marker states a fact about a decided and committed batch. After a
crash that leaves open whether the marker was written, it may therefore be written again. The sink's ``announce`` writes
the marker after all sinks have committed and completed the batch, from the transactions that are then in the log. In
the log, transactions that Kafka rolled back have been replaced by others, whose partitions and offsets may differ.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twopc.errors import RoundAborted
from twopc.transaction import Committable, JsonValue
from twopc_kafka.client.kafka_python import MemoryRecordsBuilder

HEADER = "twopc-batch"

PARTITION = 0
"""The partition of all markers, which keeps them in order. A marker topic needs only this one."""

UNKNOWN_END = 2**63 - 1
"""Stands for an end offset that the broker has not reported. It never gets into a marker."""

_GZIP = 1
"""Kafka's number for gzip, which every reader supports and which is in Python's standard library. gzip shrinks the rows
of a marker to a fifth."""

Written: TypeAlias = Mapping[tuple[str, int], tuple[int, int]]
"""Topic and partition → the number of records written there, and the end offset, which follows the last of them."""


def batch_name(log_id: str, batch_id: int) -> str:
    """Return the name of a batch, unique among all logs."""
    return f"{log_id}/{batch_id}"


def stamped(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Return the records, each with one more header at the end: the name of its batch."""
    count = batch.num_rows
    key, value = pa.array([HEADER], pa.string()), pa.array([name.encode()], pa.binary())
    lengths, place = np.zeros(count, np.int64), batch.schema.get_field_index("headers")
    if place >= 0:
        column = batch.column(place)
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
        key = pa.concat_arrays([pc.struct_field(column.flatten(), ["key"]).cast(pa.string()), key])
        value = pa.concat_arrays([pc.struct_field(column.flatten(), ["value"]).cast(pa.binary()), value])
    ends = np.cumsum(lengths + 1)
    order = np.full(ends[-1] if count else 0, len(key) - 1)
    is_given = np.ones(len(order), bool)
    is_given[ends - 1] = False
    order[is_given] = np.arange(len(key) - 1)
    headers = pa.StructArray.from_arrays([key, value], ["key", "value"]).take(pa.array(order))
    stamps = pa.ListArray.from_arrays(np.concatenate([[0], ends]).astype(np.int32), headers)
    return batch.append_column("headers", stamps) if place < 0 else batch.set_column(place, "headers", stamps)


def handle_of(topic: str, written: Written, records: int) -> dict[str, JsonValue]:
    """Return the part of a transaction's handle that the marker in ``topic`` is made from.

    Raises:
        RoundAborted: the brokers have not reported where all ``records`` were written.
    """
    reported = sum(count for count, _ in written.values())
    if reported != records or UNKNOWN_END in (end for _, end in written.values()):
        raise RoundAborted(
            f"the brokers have reported the offsets of {reported} of {records} records, maybe not of each, and a batch"
            " marker needs those of all. The batch can be run again."
        )
    rows: dict[str, list[JsonValue]] = defaultdict(list)
    for (name, number), (count, end) in sorted(written.items()):
        rows[name].append([number, count, end])
    return {"marker_topic": topic, "written": {**rows}}


def topic_of(committables: Iterable[Committable]) -> str | None:
    """Return the topic that gets the marker of a decided batch of one sink, or None if there is no marker."""
    return next((str(each.handle["marker_topic"]) for each in committables if "marker_topic" in each.handle), None)


@dataclass(frozen=True)
class Marker:
    """A batch's marker.

    Attributes:
        topic: the topic of the marker.
        batch: the batch's name.
        written: how much the batch has written to each partition. End offsets include records that were given up,
            counts do not.
        given_up: the number of records that an operator gave up. Readers may see any of them, or none.
    """

    topic: str
    batch: str
    written: Written
    given_up: int

    def encoded(self) -> bytes:
        """Return the marker as a Kafka record batch."""
        rows = [[topic, number, count, end] for (topic, number), (count, end) in sorted(self.written.items())]
        stated = {"batch": self.batch, "partitions": rows} | ({"given_up": self.given_up} if self.given_up else {})
        name, value = self.batch.encode(), json.dumps(stated, separators=(",", ":")).encode()
        batch = MemoryRecordsBuilder(magic=2, compression_type=_GZIP, batch_size=len(value))
        batch.append(timestamp=int(time.time() * 1000), key=name, value=value, headers=[(HEADER, name)])
        batch.close()
        return bytes(batch.buffer())


def due(
    sink: str,
    batch: str,
    committed: Mapping[str, Sequence[Committable]],
    given_up: Mapping[str, Sequence[Committable]],
) -> Iterator[Marker]:
    """Yield the markers that ``sink`` has to write for a batch.

    A batch has one marker per marker topic, however many sinks name that topic. The first sink by name that has written
    records writes it, so a batch without records has no marker.
    """
    noted: dict[tuple[Any, Any], list[tuple[str, Committable, bool]]] = defaultdict(list)
    for of_sinks, is_committed in ((committed, True), (given_up, False)):
        for name, committables in of_sinks.items():
            for each in committables:
                if "marker_topic" in each.handle:
                    # Another cluster may have a topic of the same name.
                    place = each.handle["marker_topic"], each.handle["marker_cluster"]
                    noted[place].append((name, each, is_committed))
    for (topic, _), notes in noted.items():
        if min(name for name, *_ in notes) == sink:
            rows = [(row, is_committed) for _, each, is_committed in notes for row in _rows(each)]
            lost = sum(each.records or 0 for _, each, is_committed in notes if not is_committed)
            yield Marker(topic, batch, _total(rows), lost)


def _rows(committable: Committable) -> Iterator[tuple[str, int, int, int]]:
    written: Any = committable.handle["written"]
    for topic, rows in written.items():
        for number, count, end in rows:
            yield topic, number, count, end


def _total(rows: Iterable[tuple[tuple[str, int, int, int], bool]]) -> Written:
    total: dict[tuple[str, int], tuple[int, int]] = {}
    for (topic, number, count, end), is_committed in rows:
        before, end_before = total.get((topic, number), (0, 0))
        total[topic, number] = before + count * is_committed, max(end, end_before)
    return total
