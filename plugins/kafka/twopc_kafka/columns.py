"""The columns of a Kafka record: those of Spark's own Kafka sink, and ``timestamp``.

=========  ======================================================  =========================================
column     Arrow type                                              meaning
=========  ======================================================  =========================================
value      string, binary                                          required; null is a tombstone
key        string, binary                                          null: no key
topic      string                                                  required unless the option is set
partition  int32                                                   null: chosen by the key
headers    list<struct<key: string, value: binary>>                null: none
timestamp  timestamp                                               null: the time of sending
=========  ======================================================  =========================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from twopc.columns import check_fixed_columns
from twopc.errors import SchemaMismatch
from twopc.refusals import is_bytes, is_string
from twopc_kafka.writers.encoding.records import binary, epoch_ms
from twopc_kafka.writers.encoding.varints import Integers

_NO_PARTITION = -1  # librdkafka's RD_KAFKA_PARTITION_UA: the partitioner decides
_NOW = 0


def check_columns(schema: pa.Schema, topic: str | None, upsert_by: Sequence[str] = ()) -> None:
    """Refuse a schema that can't be written or, with ``upsert_by``, whose records would not replace earlier records of
    the same key.

    Raises:
        SchemaMismatch: a column does not fit. The error names the column, its type and the type that is needed.
    """
    check_fixed_columns(schema, "kafka", _NEEDED, _fits, _conversion)
    names = schema.names
    if topic is None and "topic" not in names:
        raise SchemaMismatch("the kafka sink needs the option 'topic' or a column 'topic' (string)")
    if upsert_by and ("key" not in names or (topic is None and "topic" not in upsert_by)):
        lacking = "a column 'key'" if "key" not in names else "'upsert_by' = 'topic,key' beside the column 'topic'"
        raise SchemaMismatch(f"the kafka sink needs {lacking}, as a compacted topic keeps a record of each key")
    if upsert_by and "partition" in names:
        raise SchemaMismatch(
            "the kafka sink with 'upsert_by' takes no column 'partition': a tombstone has none, and would not reach the"
            " record that it deletes"
        )


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch, Integers]]:
    """Yield each topic with its records and their positions. The option ``topic`` takes precedence over the column."""
    if topic is not None:
        yield topic, batch, np.arange(batch.num_rows)
        return
    column = batch.column("topic")
    for each in pc.unique(column).to_pylist():
        is_of_topic = pc.equal(column, each)
        yield each, batch.filter(is_of_topic), np.flatnonzero(is_of_topic.to_numpy(zero_copy_only=False))


def tombstones(keys: pa.RecordBatch) -> pa.RecordBatch:
    """Return records that delete ``keys`` from a compacted topic."""
    return keys.append_column("value", pa.nulls(keys.num_rows, pa.binary()))


_NEEDED = {
    "value": "string or binary",
    "key": "string or binary",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key: string, value: binary>>",
    "timestamp": "timestamp",
}


def _fits(name: str, kind: pa.DataType) -> bool:
    match name:
        case "value" | "key":
            return is_string(kind) or is_bytes(kind)
        case "topic":
            return is_string(kind)
        case "partition":
            return bool(t.is_int32(kind))
        case "timestamp":
            return bool(t.is_timestamp(kind))
        case _:
            if not (t.is_list(kind) or t.is_large_list(kind)) or not t.is_struct(kind.value_type):
                return False
            fields = {field.name: field.type for field in kind.value_type}
            return fields.keys() == {"key", "value"} and is_string(fields["key"]) and is_bytes(fields["value"])


def _conversion(name: str, kind: pa.DataType) -> str:
    """Return a Spark SQL expression that converts a column of this type to one that fits."""
    match name:
        case "value" | "key" if t.is_nested(kind):
            return f"to_json({name})"
        case "partition":
            return "CAST(partition AS INT)"
        case "timestamp":
            return "timestamp_millis(timestamp)" if t.is_integer(kind) else "CAST(timestamp AS TIMESTAMP)"
        case "headers":
            return _headers_of(kind)
        case _:
            return f"CAST({name} AS STRING)"


def _headers_of(kind: pa.DataType) -> str:
    pairs, pair = "headers", getattr(kind, "value_type", None)
    if t.is_struct(kind):
        pairs, pair = "array(headers)", kind
    elif t.is_map(kind):
        pairs, pair = "map_entries(headers)", pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    if pair is None or not t.is_struct(pair) or {field.name for field in pair} != {"key", "value"}:
        return "array(named_struct('key', 'a name', 'value', CAST('a value' AS BINARY)))"
    value = "h.value" if is_bytes(pair.field("value").type) else "CAST(CAST(h.value AS STRING) AS BINARY)"
    return f"transform({pairs}, h -> named_struct('key', CAST(h.key AS STRING), 'value', {value}))"


def records(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[Any, ...]]:
    """Yield the positional arguments of ``confluent_kafka.Producer.produce`` for each record of a batch that has passed
    ``check_values``."""
    present = set(batch.schema.names)
    columns: list[Iterable[Any]] = [
        repeat(topic) if topic is not None else batch.column("topic").to_pylist(),
        binary(batch.column("value")).to_pylist(),  # as bytes: text from Spark may be invalid UTF-8
        binary(batch.column("key")).to_pylist() if "key" in present else repeat(None),
    ]
    if present & {"partition", "headers", "timestamp"}:  # a longer tuple costs time per record
        columns += [
            _fill_null(batch.column("partition"), _NO_PARTITION) if "partition" in present else repeat(_NO_PARTITION),
            repeat(None),  # callback: none per record
            repeat(None),  # on_delivery, another name for callback
            _fill_null(epoch_ms(batch.column("timestamp")), _NOW) if "timestamp" in present else repeat(_NOW),
            _headers(batch.column("headers")) if "headers" in present else repeat(None),
        ]
    return zip(*columns)  # noqa: B905  # some columns repeat without end; 'value' ends


def _fill_null(column: pa.Array, default: int) -> list[int]:
    values: list[int] = pc.fill_null(column, default).to_pylist()
    return values


def _headers(column: pa.Array) -> Iterator[list[tuple[str, bytes | None]] | None]:
    for headers in column.to_pylist():
        yield None if headers is None else [(header["key"], header["value"]) for header in headers]
