"""Debezium change streams as frames for an ``Output``: one row per change, with its operation and order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from twopc.errors import ConfigurationError, RecordRefused
from twopc.spark.changes import tasks_of
from twopc.spark.debezium_records import DELETE, TRUNCATE, UNAVAILABLE, Decoder, Place, Row
from twopc.spark.debezium_values import Column
from twopc.spark.records import arrow_schema, quoted
from twopc.spark.task import portable, refusals_to_driver

OP, ORDER, MISSING, TOPIC = "_op", "_order", "_unavailable", "_topic"
"""The columns that are added to the columns of the table."""

_ORDER_TYPE = StructType(
    [
        *(StructField(name, LongType(), False) for name in ("commit", "position", "row")),
        StructField("is_change", IntegerType(), False),
        StructField("offset", LongType(), False),
        StructField("partition", IntegerType(), False),
    ]
)

_KINDS: dict[type[DataType], tuple[str, int]] = {
    BooleanType: ("boolean", 0),
    ByteType: ("integer", 8),
    ShortType: ("integer", 16),
    IntegerType: ("integer", 32),
    LongType: ("integer", 64),
    FloatType: ("float", 32),
    DoubleType: ("float", 64),
    StringType: ("text", 0),
    BinaryType: ("bytes", 0),
    DateType: ("date", 0),
    TimestampType: ("timestamp", 0),
    TimestampNTZType: ("timestamp_ntz", 0),
}

_SOURCE = ("key", "value", "topic", "partition", "offset")

_MOVED = "twopc moved"
_IS_MOVED = "coalesce(exists(headers, h -> h.key IN ('__debezium.oldkey', '__debezium.newkey')), false)"
"""SQL: whether a record is half of a primary-key change, according to the record's headers."""


def debezium(
    df: DataFrame,
    key: Sequence[str],
    schema: StructType | str,
    *,
    order: str = "position",
    flattened: bool = False,
    tombstones: str = "ignore",
    decimals: str = "precise",
    missing: str = "refuse",
    replace_null_with_default: bool = True,
    unavailable_value: str = UNAVAILABLE,
    truncated: Collection[tuple[str, int, int]] = (),
) -> DataFrame:
    """Return the changes in Debezium records as a frame for an ``Output``.

    Call it in the function for ``foreachBatch``: a large value that did not change in the source is then taken from an
    earlier record of the same batch. On a stream, such a record is refused.

    Args:
        df: Kafka records, with the columns of Spark's source. Values are JSON, with or without Connect's schema. If the
            source checks primary keys at the end of a transaction (DEFERRABLE), read the topic with ``includeHeaders``.
            A transaction that exchanges two keys sends the delete of one of the rows last. With the column ``headers``,
            using ``_op`` of such a delete is an error. Without the column, on a stream, or if two batches share the
            transaction, the row is lost.
        key: the columns of the table's key. If records have a Kafka key, it must contain them: set
            ``message.key.columns`` if they are not the primary key. PostgreSQL must then also log their old values
            (REPLICA IDENTITY FULL, or USING INDEX), or a changed key leaves its old row behind.
        schema: the columns of the table to read, with their types, such as ``"id INT, price DECIMAL(12,2)"``.
        order: how the changes of a key are ordered: by ``position`` in the log of PostgreSQL, MySQL or MariaDB; or by
            ``offset`` in the topic, for other sources and after the source server was replaced. All changes of a key
            must then be in one partition. By position, a row of a PostgreSQL snapshot wins over a change that was made
            before the snapshot and committed after it, if both are in one batch.
        flattened: whether the connector flattens its records (ExtractNewRecordState, with ``__deleted``). Needs
            ``order="offset"``.
        tombstones: what a record without a value does: ``ignore``, as it follows a delete; or ``delete``, if
            flattened records have no ``__deleted``.
        decimals: ``string`` for records without a schema from a connector with ``decimal.handling.mode=string``.
        missing: how to treat a record that lacks a column: ``refuse`` or ``null``.
        replace_null_with_default: False if the converter keeps nulls in columns that have a default.
        unavailable_value: the connector's ``unavailable.value.placeholder``.
        truncated: topic, partition and offset of truncates that you have repeated by hand in every copy. Needs
            ``order="position"``, as offsets do not compare across partitions.

    Returns:
        The columns of ``schema``, and ``_op`` (``c``, ``u``, ``r`` or ``d``), ``_order`` (for ``latest_by``),
        ``_unavailable`` (the columns whose value was not sent, which are null here) and ``_topic``. In the last record
        of a key, using such a column raises an error.

    Raises:
        ConfigurationError: an argument is wrong.
    """
    table = _schema(schema)
    if taken := sorted({OP, ORDER, MISSING, TOPIC, _MOVED} & {*table.names}):
        raise ConfigurationError(f"'schema' of debezium has {taken}, which are its own columns", option="schema")
    if isinstance(key, str) or not key or not {*key} <= {*table.names}:
        raise ConfigurationError(
            "'key' of debezium must be a list of columns of 'schema', such as ['id']", option="key"
        )
    decoder = Decoder(
        [_column(field.name, field.dataType) for field in table],
        tuple(key),
        order,
        flattened,
        tombstones,
        decimals,
        missing,
        replace_null_with_default,
        unavailable_value,
        frozenset(Place(*each) for each in truncated),
    )
    _require_fitting(df, decoder)
    found = StructType([StructField(field.name, field.dataType) for field in table])
    found.add(OP, StringType(), False).add(ORDER, _ORDER_TYPE, False)
    found.add(MISSING, ArrayType(StringType(), False), False).add(TOPIC, StringType(), False).add(_MOVED, StringType())
    run = _Decoding(decoder, arrow_schema(found), refuses_unavailable=df.isStreaming)
    is_moved = _IS_MOVED if "headers" in df.columns else "false"
    changes = df.selectExpr(*_SOURCE, f"{is_moved} AS {quoted(_MOVED)}").mapInArrow(portable(run), found)
    if df.isStreaming:
        return changes.drop(_MOVED)
    if truncated:
        over = f"PARTITION BY {TOPIC}"
        cut = f"max(IF({OP} = '{TRUNCATE}', {ORDER}, NULL)) OVER ({over})"
        changes = changes.selectExpr("*", f"{cut} AS `twopc cut`")
        changes = changes.where(f"`twopc cut` IS NULL OR {ORDER} > `twopc cut`").drop("twopc cut")
    return _fill_missing_values(changes, key, table)


def _schema(schema: StructType | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    try:
        parsed = StructType.fromDDL(schema)
    except Exception as error:
        raise ConfigurationError(f"'schema' of debezium is no list of columns: {str(error).splitlines()[0]}") from error
    assert isinstance(parsed, StructType)
    return parsed


def _require_fitting(df: DataFrame, given: Decoder) -> None:
    """Raise ConfigurationError if arguments of ``debezium`` are wrong or don't fit together."""
    words = {"order": ("position", "offset"), "tombstones": ("ignore", "delete")}
    words |= {"decimals": ("precise", "string"), "missing": ("refuse", "null")}
    for name, allowed in words.items():
        if getattr(given, name) not in allowed:
            raise ConfigurationError(f"{name!r} of debezium must be one of {', '.join(allowed)}", option=name)
    if given.order != "offset" and (given.flattened or given.tombstones == "delete"):
        raise ConfigurationError(
            "flattened records and tombstones have no position of the source's log: give debezium order='offset', with"
            " all changes of a key in one partition",
            option="order",
        )
    if given.truncated and given.order == "offset":
        raise ConfigurationError(
            "'truncated' of debezium skips what is older than a truncate, and order='offset' compares no records of two"
            " partitions: leave out of the frame what came before the truncate, and the truncate",
            option="truncated",
        )
    if given.truncated and df.isStreaming:
        raise ConfigurationError(
            "'truncated' of debezium skips what a batch has before a truncate: call debezium in the function for"
            " foreachBatch",
            option="truncated",
        )
    if lacking := [name for name in _SOURCE if name not in df.columns]:
        raise ConfigurationError(f"debezium needs the columns of Spark's Kafka source, and {lacking} are missing")


def _column(name: str, of_spark: DataType) -> Column:
    if isinstance(of_spark, DecimalType):
        return Column(name, "decimal", digits=(of_spark.precision, of_spark.scale))
    if isinstance(of_spark, ArrayType):
        return Column(name, "array", elements=_column(name, of_spark.elementType))
    if type(of_spark) not in _KINDS:
        raise ConfigurationError(
            f"column {name!r} of debezium has the type {of_spark.simpleString()}, which it does not decode: declare"
            " STRING, and parse the text in the query",
            option="schema",
        )
    kind, bits = _KINDS[type(of_spark)]
    return Column(name, kind, bits)


@dataclass(frozen=True)
class _Decoding:
    """The function for ``mapInArrow``."""

    decoder: Decoder
    schema: pa.Schema
    refuses_unavailable: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with refusals_to_driver():
            for batch in batches:
                rows = list[tuple[Row, str]]()
                given = (batch.column(name).to_pylist() for name in (*_SOURCE, _MOVED))
                for key, value, *place, is_moved in zip(*given, strict=True):
                    of_record = [*self.decoder.rows(key, value, where := Place(*place), is_moved=is_moved)]
                    if self.refuses_unavailable:
                        _refuse_unavailable(of_record, where)
                    rows += ((row, where.topic) for row in of_record)
                yield self._batch(rows)

    def _batch(self, rows: Iterable[tuple[Row, str]]) -> pa.RecordBatch:
        """Return rows as a record batch. ``rows`` pairs each row with the topic of its record."""
        found = []
        for row, topic in rows:
            order = dict(zip(_ORDER_TYPE.names, row.order, strict=True))
            values = (*row.values, row.op, order, [*row.unavailable], topic, row.moved)
            found.append(dict(zip(self.schema.names, values, strict=True)))
        return pa.RecordBatch.from_pylist(found, schema=self.schema)


def _refuse_unavailable(rows: Sequence[Row], place: Place) -> None:
    for row in rows:
        if row.unavailable:
            raise RecordRefused(
                f"column {row.unavailable[0]!r} of the record at {place} is refused: it did not change, so the"
                f" connector has not sent it. {_ADVICE}",
                topic=place.topic,
                column=row.unavailable[0],
            )


_ADVICE = (
    "Call debezium in the function for foreachBatch, which finds the value in an earlier record of the batch; do not"
    " select the column, if the table may keep the stored value; or run ALTER TABLE ... REPLICA IDENTITY FULL in the"
    " source."
)

_PLACE = f"'the record in topic ', {TOPIC}, ', partition ', {ORDER}.partition, ', offset ', {ORDER}.offset"

_EXCHANGE = (
    " is refused: its transaction gave the key to another row, then deletes the key as that of a row which got a new"
    " one. Nothing tells whether the transaction exchanged keys, so that the other row is still there. Leave out the"
    " column headers for this batch. Then update the row of this key in the source, if it is there: it is sent again."
)

_LARGE = (StringType, BinaryType, ArrayType)
"""Types of values that a source may leave out of a change."""


def _fill_missing_values(changes: DataFrame, key: Sequence[str], table: StructType) -> DataFrame:
    """Fill in values that a record lacks from the nearest earlier record of its key in the batch. The search stops at a
    delete."""
    tasks = tasks_of(changes)
    by = [quoted(name) for name in key]
    if tasks != 1:
        changes = changes.repartition(*by) if tasks is None else changes.repartition(tasks, *by)
    of_key, ordered = f"PARTITION BY {', '.join(by)}", f"ORDER BY {ORDER}"
    life, is_latest, moved, arrived = "`twopc life`", "`twopc latest`", quoted(_MOVED), "`twopc arrived`"
    changes = changes.selectExpr(
        "*",
        f"count_if({OP} = '{DELETE}') OVER ({of_key} {ordered}) AS {life}",
        f"lead(true) OVER ({of_key} {ordered}) IS NULL AS {is_latest}",
        f"last(IF({OP} <> '{DELETE}', {moved}, NULL), true) OVER ({of_key} {ordered}) AS {arrived}",
    )
    large = [field.name for field in table if isinstance(field.dataType, _LARGE) and field.name not in key]
    of_life = f"PARTITION BY {', '.join(by)}, {life} {ordered}"

    def found(name: str) -> str:
        has_none = f"{OP} = '{DELETE}' OR array_contains({MISSING}, '{_literal(name)}')"
        return f"last(IF({has_none}, NULL, struct({quoted(name)} AS v)), true) OVER ({of_life})"

    changes = changes.selectExpr("*", *(f"{found(name)} AS {quoted(f'twopc found {name}')}" for name in large))
    columns = []
    for field in table:
        name = field.name
        if name not in large:
            columns.append(quoted(name))
            continue
        merged = quoted(f"twopc found {name}")
        told = (
            f"concat('column {_literal(name)} of ', {_PLACE}, ' is refused: it did not change, and neither this batch"
            f" nor the record has its value. {_ADVICE}')"
        )
        lacks = f"{merged} IS NULL AND {is_latest} AND {OP} <> '{DELETE}'"
        columns.append(f"IF({lacks}, raise_error({told}), {merged}.v) AS {quoted(name)}")
    names = ", ".join(f"IF({quoted(f'twopc found {name}')} IS NULL, '{_literal(name)}', NULL)" for name in large)
    lacking = f"IF({OP} = '{DELETE}', array(), filter(array({names}), name -> name IS NOT NULL)) AS {MISSING}"
    missing = lacking if large else MISSING
    is_exchange = f"{OP} = '{DELETE}' AND {is_latest} AND coalesce({arrived} = {moved}, false)"
    op = f"IF({is_exchange}, raise_error(concat({_PLACE}, '{_EXCHANGE}')), {OP}) AS {OP}"
    return changes.selectExpr(*columns, op, ORDER, missing, TOPIC)


def _literal(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "\\'")
