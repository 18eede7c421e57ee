"""Whole batches for readers: each record names its batch in a header, and a marker in another topic states what is
complete.

``docs/examples/markers`` has readers. A marker states a fact about a decided and committed batch, so it may be written
twice: after a crash, nobody knows whether it was. The sink's ``announce`` writes it after all sinks have committed and
completed the batch, from the transactions that the log has then. If Kafka had rolled some back, these are their
replacements, whose partitions and offsets may differ.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twopc.transaction import Committable, JsonValue
from twopc_kafka.options import AT_LEAST_ONCE, LIBRDKAFKA, KafkaOptions

HEADER = "twopc-batch"

PARTITION = 0
"""The partition of all markers, so that they have one order: a topic of markers needs no second one."""

TIMEOUT_MS = 10_000
"""How long one attempt to write a marker waits for a broker. The coordinator repeats it without limit."""

UNKNOWN_END = 2**63 - 1
"""The end offset in a partition whose broker has not reported it: beyond all that a reader can reach."""

Written: TypeAlias = Mapping[tuple[str, int], tuple[int, int]]
"""Topic and partition → the number of records written there, and the offset after the last of them, the end offset."""


def batch_name(log_id: str, batch_id: int) -> str:
    """Return the name of a batch, which no batch of another log has."""
    return f"{log_id}/{batch_id}"


def stamped(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Return records with one more header each, the last one: the name of their batch."""
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


def handle_of(topic: str, written: Written) -> dict[str, JsonValue]:
    """Return what a transaction's handle must have for the marker in ``topic``."""
    return {"marker_topic": topic, "written": _to_json(written)}


def _to_json(written: Written) -> JsonValue:
    return [[topic, number, records, end] for (topic, number), (records, end) in sorted(written.items())]


@dataclass(frozen=True)
class Marker:
    """A batch's marker.

    Attributes:
        topic: where it is written.
        batch: the batch's name.
        written: what the batch has written where.
    """

    topic: str
    batch: str
    written: Written

    def record(self) -> pa.RecordBatch:
        """Return the marker as a record, in the columns of the sink."""
        value = json.dumps({"batch": self.batch, "partitions": _to_json(self.written)}, separators=(",", ":"))
        columns = {"key": [self.batch], "value": [value], "partition": pa.array([PARTITION], pa.int32())}
        return stamped(pa.record_batch(columns), self.batch)


def due(sink: str, batch: str, committed: Mapping[str, Sequence[Committable]]) -> Iterator[Marker]:
    """Yield the markers that ``sink`` has to write for a batch.

    A batch has one marker in each topic of markers, whichever sinks name that topic. The first of them, by name, that
    has written records writes it. So a batch without records has none.
    """
    noted: dict[tuple[Any, Any], list[tuple[str, Any]]] = defaultdict(list)
    for name, committables in sorted(committed.items()):
        for handle in (committable.handle for committable in committables):
            if "marker_topic" in handle:
                # With the id: another cluster may have a topic of the same name.
                noted[handle["marker_topic"], handle.get("marker_topic_id")].append((name, handle["written"]))
    for (topic, _), notes in noted.items():
        if notes[0][0] == sink:
            yield Marker(topic, batch, _total([row for _, written in notes for row in written]))


def _total(rows: Iterable[tuple[str, int, int, int]]) -> Written:
    total: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, number, records, end in rows:
        before, end_before = total.get((topic, number), (0, 0))
        total[topic, number] = before + records, max(end, end_before)
    return total


def options_of(options: KafkaOptions, topic: str) -> KafkaOptions:
    """Return the options with which a marker is written to ``topic``: without a transaction, as it may come twice."""
    properties = {**options.properties, "message.timeout.ms": TIMEOUT_MS}
    return replace(
        options, topic=topic, delivery=AT_LEAST_ONCE, writer=LIBRDKAFKA, marker_topic=None, properties=properties
    )
