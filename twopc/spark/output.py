"""What each sink gets of a batch: on the driver in one frame, on the executors as separate record batches.

If sinks get different columns, the frame has one struct column per sink, which is null in the rows that the sink does
not get. Otherwise they share the frame's columns, if PySpark can name them, and conditions are columns beside them:
structs cost 6 ms per batch on the driver and a twentieth of the throughput, see docs/internals/performance-notes.md.

An output whose sink has a key gets the last record of each key alone, or its delete: see ``changes``.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import expr, when
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from twopc.errors import ConfigurationError, RecordRefused
from twopc.keyed import KeyedSink, key_of
from twopc.sink import TwoPhaseCommitSink
from twopc.spark import changes
from twopc.spark.arrow_types import arrow_schema, unkept
from twopc.spark.changes import CHANGE, ByKey, Change, Keyed
from twopc.spark.sql_names import quoted

ALL = ("*",)

_SOURCE_ROW = "twopc source row"
"""The column with the rows that the sinks' records were made from."""

_TAKES = "twopc takes "
"""The column with the condition of a sink has this name and the sink's."""

_HASHES = "twopc hashes "
"""The column with the hashes of what a sink gets has this name and the sink's."""

_BOUND = f"{0x9E37_79B9_7F4A_7C15 - 2**64}L"
"""A number that no value of a record is likely to be."""


@dataclass(frozen=True)
class Output:
    """A sink, and what it gets of each batch.

    Args:
        sink: the sink.
        columns: SQL expressions of its columns, such as ``["id AS key"]``.
        where: the SQL condition of the rows that it gets; None for all. As in SQL, a row for which the condition is
            null is left out. The columns of a row that is left out are not computed.
        delete_where: the SQL condition of the rows that delete the record of their key; None if no row does. Their
            columns beside the key are not computed.
        latest_by: the SQL expression that puts the rows of a key in order, of which the last one of a batch applies. It
            must have a value without a null in it, and another one for each row of a key. None if a key comes once in a
            batch at most.

    ``delete_where`` and ``latest_by`` need a sink with a key, which its option 'upsert_by' names.

    Raises:
        ConfigurationError: one of them is of another type, or the sink has no key.
    """

    sink: TwoPhaseCommitSink[Any]
    columns: Sequence[str] = ALL
    where: str | None = None
    delete_where: str | None = None
    latest_by: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sink, TwoPhaseCommitSink):
            raise ConfigurationError(  # which may be options with a password
                f"a {type(self.sink).__name__} is not a sink: create one with twopc.create_sink, or subclass one"
            )
        given: Any = self.columns  # whatever their types say
        columns = [] if isinstance(given, str) or not isinstance(given, Iterable) else [*given]
        if not columns or not all(isinstance(each, str) and each.strip() for each in columns):
            raise ConfigurationError("'columns' of an Output must be SQL expressions in a list, such as ['id AS key']")
        for option, example in _SQL.items():
            sql = getattr(self, option)
            if sql is not None and not (isinstance(sql, str) and sql.strip()):
                raise ConfigurationError(f"{option!r} of an Output must be {example}, or None", option=option)
            if sql is not None and option != "where" and not self.key:
                upserts = isinstance(self.sink, KeyedSink)
                advice = "Give the sink 'upsert_by'" if upserts else "Take a sink of a table, or leave it out"
                raise ConfigurationError(
                    f"{option!r} of an Output needs a sink whose records replace others by a key, and this"
                    f" {type(self.sink).__name__} only appends. {advice}.",
                    option=option,
                )
        object.__setattr__(self, "columns", tuple(columns))

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which a record replaces another; empty if the sink only appends."""
        return key_of(self.sink)

    @classmethod
    def of(cls, given: TwoPhaseCommitSink[Any] | Output) -> Output:
        """Return the output that a user passed, with a sink of its own.

        A caller's sink may serve under two names or in two queries, which would sweep away each other's transactions if
        they shared its binding. Sinks can be pickled, so a shallow copy shares no live state.

        Raises:
            ConfigurationError: it is neither a sink nor an output.
        """
        output = given if isinstance(given, Output) else cls(given)
        return replace(output, sink=output.sink.unbound())


_SQL = {
    "where": "a condition in SQL, such as 'id > 0'",
    "delete_where": "a condition in SQL, such as \"op = 'd'\"",
    "latest_by": "an expression in SQL, such as 'at'",
}
"""Parameters of an Output, and what they are."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one sink gets of a record batch.

    Attributes:
        sink: the sink's name.
        records: its records.
        hashes: a hash of each, or None.
        source: the row of the batch that each was made from; None if the records are these rows.
        deletes: whether the records of their keys are deleted. Their other columns are null.
    """

    sink: str
    records: pa.RecordBatch
    hashes: pa.Int64Array | None
    source: pa.StructArray | None
    deletes: bool = False

    def of(self, taken: pa.BooleanArray) -> Part:
        """Return the part of these rows alone."""
        hashes = None if self.hashes is None else self.hashes.filter(taken)
        source = None if self.source is None else self.source.filter(taken)
        return Part(self.sink, self.records.filter(taken), hashes, source, self.deletes)

    def source_row(self, position: int) -> pa.StructScalar:
        """Return the row that a record was made from, by the record's position."""
        return (self.records.to_struct_array() if self.source is None else self.source)[position]


@dataclass(frozen=True)
class Rows:
    """Where the sinks find their records in a frame.

    Attributes:
        sinks: the names of the sinks.
        in_structs: whether each finds them in a struct of its name; else every sink gets the frame's columns.
        chosen: the sinks that get the rows alone in which their struct is not null, or their condition is true.
        hashed: the sinks whose records have hashes.
        with_source: whether the frame has the rows of the batch, too, in a column of their own.
        keyed: the outputs whose sinks have a key. They get the last record of each.
    """

    sinks: tuple[str, ...]
    in_structs: bool
    chosen: frozenset[str] = frozenset()
    hashed: frozenset[str] = frozenset()
    with_source: bool = False
    keyed: Mapping[str, Keyed] = field(default_factory=dict)

    def schemas(self, frame: DataFrame) -> dict[str, pa.Schema]:
        """Return the schema of what each sink gets.

        Raises:
            SchemaMismatch: a column has a type that Arrow does not have.
        """
        schema = frame.schema
        if self.in_structs:
            return {name: arrow_schema(schema[name].dataType) for name in self.sinks}  # type: ignore[arg-type]
        beside = self._beside
        shared = arrow_schema(StructType([field for field in schema if field.name not in beside]))
        return dict.fromkeys(self.sinks, shared)

    @property
    def _beside(self) -> list[str]:
        """The columns of the frame that no sink gets, where the sinks share the others."""
        conditions = (_TAKES + name for name in self.chosen if name not in self.keyed)
        hashes, changed = (_HASHES + name for name in self.hashed), (CHANGE + name for name in self.keyed)
        return [*conditions, *hashes, *changed, *([_SOURCE_ROW] if self.with_source else ())]

    def columns(self, frame: DataFrame, sinks: Collection[str]) -> Iterator[tuple[str, dict[str, StructField]]]:
        """Return the columns that some sinks get, as the frame names them in SQL, with their fields."""
        for name in sinks:
            if self.in_structs:
                within = frame.schema[name].dataType
                assert isinstance(within, StructType)
                yield name, {f"{quoted(name)}.{quoted(field.name)}": field for field in within}
            else:
                beside = self._beside
                yield name, {quoted(field.name): field for field in frame.schema if field.name not in beside}

    def apart(self, batch: pa.RecordBatch) -> Iterator[Part]:
        """Return each sink's part of a record batch."""
        source = batch.column(_SOURCE_ROW) if self.with_source else None
        beside = [] if self.in_structs else self._beside
        shared = batch.drop_columns(beside) if beside else batch
        for name in self.sinks:
            records = pa.RecordBatch.from_struct_array(batch.column(name)) if self.in_structs else shared
            part = Part(name, records, batch.column(_HASHES + name) if name in self.hashed else None, source)
            if name in self.keyed:
                changed = batch.column(CHANGE + name)
                yield part.of(_equal(changed, Change.WRITE))
                yield replace(part.of(_equal(changed, Change.DELETE)), deletes=True)
                continue
            taken = self._taken(batch, name)
            yield part if taken is None else part.of(taken)

    def unrouted(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        """Return which rows of a record batch no sink gets; None if there is no such row."""
        if len(self.chosen) < len(self.sinks):
            return None
        left = None
        for name in self.sinks:
            if (taken := self._taken(batch, name)) is None:
                return None
            left = pc.invert(taken) if left is None else pc.and_not(left, taken)
        return left

    def _taken(self, batch: pa.RecordBatch, name: str) -> pa.BooleanArray | None:
        """Return which rows of a record batch a sink gets; None for all."""
        if name not in self.chosen:
            return None
        if name in self.keyed:
            taken = batch.column(CHANGE + name).is_valid()
        else:
            taken = batch.column(name).is_valid() if self.in_structs else batch.column(_TAKES + name).fill_null(False)
        return None if taken.true_count == batch.num_rows else taken


def _equal(changed: pa.Array, change: Change) -> pa.BooleanArray:
    return pc.equal(changed, pa.scalar(change, changed.type)).fill_null(False)


def refuse_unrouted(rows: pa.BooleanArray, task: int, before: int) -> None:
    """Raise RecordRefused if one of ``rows`` goes nowhere. The task has had ``before`` rows before these."""
    if (position := pc.index(rows, True).as_py()) >= 0:
        raise RecordRefused(
            "no output takes this row: the condition of each is false or null for it, and 'otherwise' is 'refuse'."
            " Correct the conditions, or add an output for the rest, and start again.",
            task=task,
            record=before + position,
        )


def projected(
    batch: DataFrame, outputs: Mapping[str, Output], hashed: Collection[str] = (), with_source: bool = False
) -> tuple[DataFrame, Rows]:
    """Return a frame with the columns of all outputs, and where they are in it. If outputs have keys, the frame is
    complete with ``by_key``.

    Args:
        batch: what the query has read.
        outputs: the outputs by the names of their sinks.
        hashed: the sinks whose records get hashes.
        with_source: whether a record must lead to the row of the batch that it was made from.

    Raises:
        ConfigurationError: Spark refuses an expression of an output, or it has no column of its sink's key.
    """
    frame, rows = _projected(batch, outputs, with_source)
    rows = replace(rows, hashed=frozenset(hashed))
    return (frame if rows.keyed else _with_hashes(frame, rows)), rows


def by_key(frame: DataFrame, rows: Rows, together: ByKey, tasks: int | None) -> DataFrame:
    """Return the frame of ``projected`` with what becomes of each record of the outputs that have keys.

    Args:
        frame: the frame.
        rows: where the sinks find their records in it.
        together: brings the records of a key together.
        tasks: how many tasks the frame has, and shall have; None if that is not known.

    Raises:
        ConfigurationError: Spark can't compare or order values of an output.
    """
    try:
        found = together.applied(frame, rows.keyed, tasks, rows.in_structs)
        _ = found.schema
    except AnalysisException as error:
        raise ConfigurationError(
            f"Spark can't put the records of {', '.join(rows.keyed)} in order by key and 'latest_by': {_told(error)}"
        ) from error
    return _with_hashes(found, rows)


def _with_hashes(frame: DataFrame, rows: Rows) -> DataFrame:
    if not (hashed := rows.hashed):
        return frame
    try:
        hashes = [f"{_hash(columns)} AS {quoted(_HASHES + name)}" for name, columns in rows.columns(frame, hashed)]
        with_hashes = frame.selectExpr("*", *hashes)
        _ = with_hashes.schema
    except AnalysisException as error:
        raise ConfigurationError(
            f"recompute=True needs a hash of each record of {', '.join(sorted(hashed))}, and Spark refuses to make it:"
            f" {_told(error)} Nothing was written. Write the column in another type, such as a map as"
            " to_json(column), or use 'replay_copies' instead."
        ) from error
    return with_hashes


def _projected(batch: DataFrame, outputs: Mapping[str, Output], with_source: bool) -> tuple[DataFrame, Rows]:
    chosen = frozenset(name for name, output in outputs.items() if output.where is not None)
    keyed = {
        name: Keyed(output.key, output.latest_by, (output.columns, output.where, output.delete_where))
        for name, output in outputs.items()
        if output.key
    }
    try:
        frame, rows = (_keyed if keyed else _selected)(batch, outputs, chosen, with_source)
        schema = frame.schema  # a client of Spark Connect finds out here
    except AnalysisException as error:
        for name, output in outputs.items():
            _require_accepted(batch, name, output)
        raise ConfigurationError(f"Spark refuses the columns of {', '.join(outputs)}: {_told(error)}") from error
    for name in keyed:
        _require_key(name, outputs[name], schema[name].dataType.names)  # type: ignore[attr-defined]  # a struct
    return frame, replace(rows, keyed=keyed)


def _keyed(
    batch: DataFrame, outputs: Mapping[str, Output], chosen: frozenset[str], with_source: bool
) -> tuple[DataFrame, Rows]:
    """Return what ``_selected`` does, in structs, with key and order of each output that has them. ``changes`` takes
    the columns out of the struct if there is one output."""
    columns: list[Column] = []
    for name, output in outputs.items():
        columns += changes.columns_of(name, output, _struct(output)) if output.key else [_column(name, output)]
    source = [_source_row(batch)] if with_source else []
    frame = batch.select(*columns, *source)
    [names, *others] = (frame.schema[name].dataType.names for name in outputs)  # type: ignore[attr-defined]
    in_structs = bool(others) or not _can_be_named(names)
    return frame, Rows(tuple(outputs), in_structs=in_structs, chosen=chosen, with_source=with_source)


def _selected(
    batch: DataFrame, outputs: Mapping[str, Output], chosen: frozenset[str], with_source: bool
) -> tuple[DataFrame, Rows]:
    names = tuple(outputs)
    if all(output.columns == ALL for output in outputs.values()) and _can_be_named(batch.columns):
        takes = [
            expr(output.where).alias(_TAKES + name) for name, output in outputs.items() if output.where is not None
        ]
        return batch.select("*", *takes) if takes else batch, Rows(names, in_structs=False, chosen=chosen)
    if chosen:
        source = [_source_row(batch)] if with_source else []
        frame = batch.select(*(_column(name, outputs[name]) for name in names), *source)
        return frame, Rows(names, in_structs=True, chosen=chosen, with_source=with_source)
    if len(names) == 1:
        [output] = outputs.values()
        frame = batch.selectExpr(*output.columns)
        if _can_be_named(frame.columns):
            frame = batch.select(*map(expr, output.columns), _source_row(batch)) if with_source else frame
            return frame, Rows(names, in_structs=False, with_source=with_source)
    # As text, which takes one call to the JVM: building the structs from columns took 15 ms per batch.
    structs = [f"{_struct(outputs[name])} AS {quoted(name)}" for name in names]
    frame = batch.select(*map(expr, structs), _source_row(batch)) if with_source else batch.selectExpr(*structs)
    return frame, Rows(names, in_structs=True, with_source=with_source)


def _source_row(batch: DataFrame) -> Column:
    """The column with the rows of a batch, as Arrow takes them: with a name of its own for each field, and as text what
    Arrow has no type for."""
    row, given, taken = expr("struct(*)"), batch.schema, StructType()
    for each in given:
        numbers = itertools.count(2)
        name = each.name
        while name in taken.names:
            name = f"{each.name}_{next(numbers)}"
        is_plain = unkept(each.dataType) is None
        taken.add(name, each.dataType if is_plain else StringType(), each.nullable or not is_plain)
    return (row if taken == given else row.cast(taken)).alias(_SOURCE_ROW)


def _require_accepted(batch: DataFrame, name: str, output: Output) -> None:
    """Raise ConfigurationError if Spark refuses this output by itself."""
    with naming("columns", [*output.columns], name):
        names = batch.select(expr(_struct(output)).alias(name)).schema[name].dataType.names  # type: ignore[attr-defined]
    with naming("condition", output.where, name):
        _ = batch.select(_column(name, output)).schema
    for option in ("delete_where", "latest_by"):
        if sql := getattr(output, option):
            with naming(f"'{option}'", sql, name):
                _ = batch.select(expr(f"coalesce(({sql}), false)" if option == "delete_where" else sql)).schema
    _require_key(name, output, names)


def _require_key(name: str, output: Output, columns: Sequence[str]) -> None:
    """Raise ConfigurationError if an output lacks a column of its sink's key."""
    if lacking := changes.missing(output.key, columns):
        raise ConfigurationError(
            f"output {name!r} has no column {', '.join(map(repr, lacking))}, or several: the sink's key is"
            f" {', '.join(output.key)}, and the columns are {', '.join(columns)}. Nothing was written. Select each"
            " column of the key once, under its name.",
            option="columns",
        )


def require_conditions_of_rows(batch: DataFrame, outputs: Mapping[str, Output]) -> None:
    """Raise ConfigurationError if a condition is not one of a single row, such as ``count(*) > 1``.

    Spark takes an aggregate in a column, and makes one row of the batch when no output names a column beside it. A
    filter takes neither aggregates nor window functions.
    """
    for name, output in outputs.items():
        for what, condition in (("condition", output.where), ("'delete_where'", output.delete_where)):
            if condition is not None:
                with naming(what, condition, name):
                    _ = batch.where(expr(condition)).schema  # a client of Spark Connect finds out here


@contextlib.contextmanager
def naming(what: str, given: object, name: str) -> Iterator[None]:
    """Name what was ``given`` for output ``name`` where Spark refuses it."""
    try:
        yield
    except AnalysisException as error:
        raise ConfigurationError(
            f"Spark refuses the {what} {given!r} of output {name!r}: {_told(error)} Nothing was written."
        ) from error


def _told(error: AnalysisException) -> str:
    """Return the first line of Spark's text."""
    return f"{str(error).strip().partition(chr(10))[0].rstrip('. ;')}."


def _can_be_named(columns: Sequence[str]) -> bool:
    """Whether ``frame[name]``, by which PySpark passes columns to Python, finds each column."""
    return all(name.isidentifier() for name in columns) and len({name.lower() for name in columns}) == len(columns)


def _column(name: str, output: Output) -> Column:
    """The struct where the condition holds. Spark parses each text by itself: none can end another one's clause."""
    struct = expr(_struct(output))
    return (struct if output.where is None else when(expr(output.where), struct)).alias(name)


def _struct(output: Output) -> str:
    return f"struct({', '.join(output.columns)})"


def _hash(columns: Mapping[str, StructField]) -> str:
    """Return the SQL of a record's hash. ``columns`` are those of the frame: to evaluate an expression such as rand()
    again would give another value. Their names count, too: another plan may have exchanged them."""
    names = zlib.crc32("\n".join(field.name for field in columns.values()).encode())
    values = _hashed_apart({value: field.dataType for value, field in columns.items()})
    return f"xxhash64({', '.join(values)}) ^ {names}L"


def _hashed_apart(values: Mapping[str, DataType], depth: int = 0) -> list[str]:
    """Return the SQL expressions of values beside each other, with a bound between two. Spark's hash skips nulls, so
    without it, it would be the same for a value in any of them."""
    hashed = (_hashed(value, of_spark, depth) for value, of_spark in values.items())
    return [each for one in hashed for each in (_BOUND, *one)][1:]


def _hashed(value: str, of_spark: DataType, depth: int) -> list[str]:
    """Return SQL expressions that are equal for equal values alone, as far as a hash can be.

    Spark's hash runs through arrays and structs as if they had no bounds, so by itself it is the same for
    ``[1], [2, 3]`` and ``[1, 2], [3]``. The size of null depends on the session.
    """
    match of_spark:
        case StructType():
            fields = {f"{value}.{quoted(field.name)}": field.dataType for field in of_spark}
            return [*_hashed_apart(fields, depth), f"{value} IS NULL"]
        case ArrayType():
            each = f"each{depth}"
            hashed = f"xxhash64({', '.join(_hashed(each, of_spark.elementType, depth + 1))})"
            return [f"transform({value}, {each} -> {hashed})", f"coalesce(size({value}), -1)", f"{value} IS NULL"]
    return [value]
