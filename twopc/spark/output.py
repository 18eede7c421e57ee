"""Each sink's share of a batch: columns of one frame on the driver, separate record batches on the executors.

If sinks get different columns, the frame has one struct column per sink, which is null in rows that the sink does not
get. Otherwise the sinks share the frame's columns, if PySpark can name them, and conditions are extra columns: structs
cost 6 ms per batch on the driver and 5% of the throughput, see docs/internals/performance-notes.md.

An output whose sink has a key gets only the last record of each key, or its delete: see ``changes``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import coalesce, expr, lit, struct, when
from pyspark.sql.types import StructField, StructType

from twopc.errors import ConfigurationError
from twopc.keyed import KeyedSink, key_of
from twopc.sink import TwoPhaseCommitSink
from twopc.spark.changes import CHANGE, ByKey, Change, Keyed, columns_of, is_change, missing
from twopc.spark.records import arrow_schema, hash_of, quoted, row_of

Expression: TypeAlias = "str | Column"
"""A Spark expression: SQL text, or a Column."""

ALL = ("*",)

_SOURCE_ROW = "twopc source row"  # the column with the rows that the sinks' records were made from

_TAKES = "twopc takes "  # the prefix of the column with a sink's condition; the sink's name follows

_HASHES = "twopc hashes "  # the prefix of the column with the hashes of a sink's records; the sink's name follows


@dataclass(frozen=True, eq=False)
class Output:
    """A sink, and the rows and columns that it gets. Expressions are SQL text, or Columns of ``pyspark.sql.functions``.

    Args:
        sink: the sink.
        columns: the expressions for its columns, such as ``["id AS key"]``.
        where: the condition for rows that the sink gets; None for all rows. As in SQL, a row for which the condition is
            null is left out. The columns of such rows are not computed.
        delete_where: the condition for rows that delete the record of their key; None if no row deletes a record. Only
            the key columns of such rows are computed.
        latest_by: the expression that orders the rows of a key, of which the last one in a batch applies. Its values
            must have no nulls, and differ between the rows of a key. None if a batch has each key at most once.

    ``delete_where`` and ``latest_by`` need a sink with a key, which its option 'upsert_by' names.

    Raises:
        ConfigurationError: an argument has the wrong type, or the sink has no key.
    """

    sink: TwoPhaseCommitSink[Any]
    columns: Sequence[Expression] = ALL
    where: Expression | None = None
    delete_where: Expression | None = None
    latest_by: Expression | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", check_columns("an Output", self.sink, self.columns))
        for option, example in _EXPRESSIONS.items():
            given = getattr(self, option)
            if given is None:
                continue
            if not _is_expression(given):
                raise ConfigurationError(f"{option!r} of an Output must be {example}, or None", option=option)
            if option != "where" and not self.key:
                upserts = isinstance(self.sink, KeyedSink)
                advice = "Give the sink 'upsert_by'" if upserts else "Take a sink of a table, or leave it out"
                raise ConfigurationError(
                    f"{option!r} of an Output needs a sink whose records replace others by a key, and this"
                    f" {type(self.sink).__name__} only appends. {advice}.",
                    option=option,
                )

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which a record replaces another; empty if the sink only appends."""
        return key_of(self.sink)

    @classmethod
    def of(cls, given: TwoPhaseCommitSink[Any] | Output) -> Output:
        """Return ``given`` as an output with its own copy of the sink.

        A caller may use one sink under two names or in two queries. If both uses shared the sink's binding, each would
        sweep away the other's transactions. Sinks can be pickled, so a shallow copy shares no live state.

        Raises:
            ConfigurationError: ``given`` is neither a sink nor an output.
        """
        output = given if isinstance(given, Output) else cls(given)
        return replace(output, sink=output.sink.unbound())


_EXPRESSIONS = {
    "where": "a condition as text in SQL, such as 'id > 0', or as a Column",
    "delete_where": "a condition as text in SQL, such as \"op = 'd'\", or as a Column",
    "latest_by": "an expression as text in SQL, such as 'at', or as a Column",
}
"""Parameter of an Output → a description with an example."""


def check_columns(owner: str, sink: object, columns: Any) -> tuple[Expression, ...]:
    """Return the columns that a user passed with a sink. Raises ConfigurationError: ``columns`` is not a list of
    expressions, or ``sink`` is not a sink."""
    if not isinstance(sink, TwoPhaseCommitSink):
        raise ConfigurationError(  # without the object, which may be options with a password
            f"an object of class {type(sink).__name__} is not a sink: create one with twopc.create_sink, or subclass"
            " twopc.TwoPhaseCommitSink"
        )
    found = () if isinstance(columns, str | Column) or not isinstance(columns, Iterable) else tuple(columns)
    if not found or not all(map(_is_expression, found)):
        raise ConfigurationError(
            f"'columns' of {owner} must be expressions in a list, in SQL as ['id AS key'] or as Columns",
            option="columns",
        )
    return found


def _is_expression(given: object) -> bool:
    return isinstance(given, Column) or (isinstance(given, str) and bool(given.strip()))


def as_column(given: Expression) -> Column:
    """Return the Column of an expression. Spark parses each text separately, so none can escape into another's
    clause."""
    return expr(given) if isinstance(given, str) else given


def _as_text(given: Expression) -> str:
    return given if isinstance(given, str) else repr(given).removeprefix("Column<'").removesuffix("'>")


def _keyed(output: Output) -> Keyed:
    given = (*output.columns, output.where, output.delete_where, output.latest_by)
    # Different Columns may have the same text, such as those of two Python functions.
    rows = tuple(each if each is None or isinstance(each, str) else id(each) for each in given)
    return Keyed(output.key, None if output.latest_by is None else _as_text(output.latest_by), rows)


@dataclass(frozen=True, slots=True)
class Part:
    """One sink's part of a record batch."""

    sink: str  # the sink's name
    records: pa.RecordBatch  # the sink's records
    hashes: pa.Int64Array | None  # one hash per record, or None
    source: pa.StructArray | None  # the batch's row that each record was made from; None if they are the same
    deletes: bool = False  # whether these are deletes, in which only key columns are not null

    def of(self, taken: pa.BooleanArray) -> Part:
        """Return the part with only the ``taken`` rows."""
        hashes = None if self.hashes is None else self.hashes.filter(taken)
        source = None if self.source is None else self.source.filter(taken)
        return Part(self.sink, self.records.filter(taken), hashes, source, self.deletes)

    def source_row(self, position: int) -> pa.StructScalar:
        """Return the row of the batch from which the record at ``position`` was made."""
        return (self.records.to_struct_array() if self.source is None else self.source)[position]


@dataclass(frozen=True)
class Rows:
    """Describes which columns and rows of a frame contain each sink's records."""

    sinks: tuple[str, ...]  # the names of the sinks
    in_structs: bool  # whether each sink has a struct column of its name; otherwise all get the frame's columns
    # The sinks that get only the rows in which their struct is not null, or their condition is true.
    chosen: frozenset[str] = frozenset()
    hashed: frozenset[str] = frozenset()  # the sinks whose records have hashes
    with_source: bool = False  # whether the frame also has the batch's rows, in a column of their own
    # The outputs whose sinks have a key. They get the last record of each key.
    keyed: Mapping[str, Keyed] = field(default_factory=dict)

    def schemas(self, frame: DataFrame) -> dict[str, pa.Schema]:
        """Return the schema of each sink's records. Raises SchemaMismatch: Arrow lacks the type of a column."""
        schema = frame.schema
        if self.in_structs:
            return {name: arrow_schema(schema[name].dataType) for name in self.sinks}  # type: ignore[arg-type]
        beside = self._beside
        shared = arrow_schema(StructType([field for field in schema if field.name not in beside]))
        return dict.fromkeys(self.sinks, shared)

    @property
    def _beside(self) -> list[str]:
        """The frame's helper columns, which no sink gets. Only for a frame whose other columns all sinks share."""
        conditions = (_TAKES + name for name in self.chosen if name not in self.keyed)
        hashes, changed = (_HASHES + name for name in self.hashed), (CHANGE + name for name in self.keyed)
        return [*conditions, *hashes, *changed, *([_SOURCE_ROW] if self.with_source else ())]

    def hashed_columns(self, frame: DataFrame) -> Iterator[tuple[str, dict[str, StructField]]]:
        """Yield each sink whose records are hashed, and the sink's columns: a field for each name in SQL."""
        for name in self.hashed:
            if self.in_structs:
                within = frame.schema[name].dataType
                assert isinstance(within, StructType)
                yield name, {f"{quoted(name)}.{quoted(field.name)}": field for field in within}
            else:
                beside = self._beside
                yield name, {quoted(field.name): field for field in frame.schema if field.name not in beside}

    def split(self, batch: pa.RecordBatch) -> Iterator[Part]:
        """Yield each sink's part of a record batch."""
        source = batch.column(_SOURCE_ROW) if self.with_source else None
        beside = [] if self.in_structs else self._beside
        shared = batch.drop_columns(beside) if beside else batch
        for name in self.sinks:
            records = pa.RecordBatch.from_struct_array(batch.column(name)) if self.in_structs else shared
            part = Part(name, records, batch.column(_HASHES + name) if name in self.hashed else None, source)
            if name in self.keyed:
                changed = batch.column(CHANGE + name)
                yield part.of(is_change(changed, Change.WRITE))
                yield replace(part.of(is_change(changed, Change.DELETE)), deletes=True)
                continue
            taken = self._rows_taken_by(batch, name)
            yield part if taken is None else part.of(taken)

    def unrouted(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        """Return which rows of a record batch no sink gets; None if every row has a sink."""
        if len(self.chosen) < len(self.sinks):
            return None
        left = None
        for name in self.sinks:
            if (taken := self._rows_taken_by(batch, name)) is None:
                return None
            left = pc.invert(taken) if left is None else pc.and_not(left, taken)
        return left

    def _rows_taken_by(self, batch: pa.RecordBatch, name: str) -> pa.BooleanArray | None:
        """Return which rows of a record batch a sink gets; None for all."""
        if name not in self.chosen:
            return None
        if name in self.keyed:
            taken = batch.column(CHANGE + name).is_valid()
        else:
            taken = batch.column(name).is_valid() if self.in_structs else batch.column(_TAKES + name).fill_null(False)
        return None if taken.true_count == batch.num_rows else taken


class Projection:
    """The columns of all outputs in one frame, for one run of a query. The records of the sinks in ``hashed`` get
    hashes. ``with_source``: whether to keep, for each record, the row of the batch that the record was made from."""

    def __init__(self, outputs: Mapping[str, Output], hashed: Collection[str] = (), with_source: bool = False) -> None:
        self._outputs = outputs
        self._with_source = with_source
        # Parsed once: building a struct of columns takes up to 15 ms.
        self._parsed = {name: _Parsed(name, output) for name, output in outputs.items()}
        self._by_key = ByKey()
        self._rows = Rows(
            tuple(outputs),
            in_structs=True,
            chosen=frozenset(name for name, output in outputs.items() if output.where is not None),
            hashed=frozenset(hashed),
            with_source=with_source,
            keyed={name: _keyed(output) for name, output in outputs.items() if output.key},
        )

    def apply(self, batch: DataFrame) -> tuple[DataFrame, Rows]:
        """Return a frame with the columns of all outputs, and a description of the frame. If outputs have keys,
        ``by_key`` must follow. Raises ConfigurationError: Spark rejects an expression of an output, or an output lacks
        a column of its sink's key."""
        try:
            frame, rows = self._select(batch)
            schema = frame.schema  # makes Spark Connect analyze the frame
        except AnalysisException as error:
            for name in self._outputs:
                self._require_accepted(batch, name)
            raise ConfigurationError(
                f"Spark refuses the columns of {', '.join(self._outputs)}: {_first_line(error)}"
            ) from error
        for name in rows.keyed:
            _require_key(name, self._outputs[name], schema[name].dataType.names)  # type: ignore[attr-defined]  # a struct
        found = frame if rows.keyed else _with_hashes(frame, rows)
        self._require_found_by_name(found)
        return found, rows

    def _require_found_by_name(self, frame: DataFrame) -> None:
        """Raise ConfigurationError if sinks have columns whose names differ in case alone, and Spark would take two of
        them for one. Sinks that share the batch's columns have no columns of their own."""
        names = [*self._outputs]
        if not _differ_in_case_alone(names) or not _differ_in_case_alone(frame.columns):
            return
        if frame.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
            raise ConfigurationError(
                f"the sinks {', '.join(map(repr, names))} of foreach_batch must have names that differ in more than"
                " case: Spark takes two of their columns for one. Nothing was written. Rename a sink, or set"
                " spark.sql.caseSensitive=true.",
                option="sinks",
            )

    def by_key(self, frame: DataFrame, rows: Rows, tasks: int | None) -> DataFrame:
        """Return the frame of ``apply`` with the change of each record, for outputs that have keys. ``tasks`` is the
        frame's number of tasks; None if unknown. Raises ConfigurationError: Spark can't compare or order an output's
        values."""
        if not rows.keyed:
            return frame
        try:
            found = self._by_key.applied(frame, rows.keyed, tasks, rows.in_structs)
            _ = found.schema
        except AnalysisException as error:
            raise ConfigurationError(
                f"Spark can't put the records of {', '.join(rows.keyed)} in order by key and 'latest_by':"
                f" {_first_line(error)}"
            ) from error
        return _with_hashes(found, rows)

    def require_conditions_of_rows(self, batch: DataFrame) -> None:
        """Raise ConfigurationError if a condition is not about a single row, such as ``count(*) > 1``.

        As a column, Spark accepts an aggregate, and reduces the batch to one row if no output selects another column. A
        filter accepts neither aggregates nor window functions.
        """
        for name, output in self._outputs.items():
            parsed, where, delete_where = self._parsed[name], output.where, output.delete_where
            conditions = ("condition", where, parsed.where), ("'delete_where'", delete_where, parsed.deletes)
            for what, given, condition in conditions:
                if condition is not None:
                    with explain_refusal(what, given, name):
                        _ = batch.where(condition).schema  # makes Spark Connect analyze the condition

    def _select(self, batch: DataFrame) -> tuple[DataFrame, Rows]:
        rows, parsed = self._rows, self._parsed
        if not rows.keyed and all(each.takes_all for each in parsed.values()) and _can_be_named(batch.columns):
            takes = [each.where.alias(_TAKES + name) for name, each in parsed.items() if each.where is not None]
            shared = replace(rows, in_structs=False, with_source=False)
            return batch.select("*", *takes) if takes else batch, shared
        source = [row_of(batch.schema).alias(_SOURCE_ROW)] if self._with_source else []
        if len(parsed) == 1 and not rows.keyed and not rows.chosen:
            [output] = parsed.values()
            frame = batch.select(*output.columns)
            if _can_be_named(frame.columns):
                frame = batch.select(*output.columns, *source) if source else frame
                return frame, replace(rows, in_structs=False)
        columns = [column for name, each in parsed.items() for column in each.in_struct(name, rows.keyed.get(name))]
        frame = batch.select(*columns, *source)
        if rows.keyed and len(parsed) == 1:  # ``changes`` unpacks the struct
            [name] = parsed
            rows = replace(rows, in_structs=not _can_be_named(frame.schema[name].dataType.names))  # type: ignore[attr-defined]
        return frame, rows

    def _require_accepted(self, batch: DataFrame, name: str) -> None:
        """Raise ConfigurationError if Spark rejects this output on its own."""
        output, parsed = self._outputs[name], self._parsed[name]
        with explain_refusal("columns", [*output.columns], name):
            names = batch.select(parsed.struct.alias(name)).schema[name].dataType.names  # type: ignore[attr-defined]
        with explain_refusal("condition", output.where, name):
            _ = batch.select(*parsed.in_struct(name, None)).schema
        if parsed.deletes is not None:
            with explain_refusal("'delete_where'", output.delete_where, name):
                _ = batch.select(coalesce(parsed.deletes, lit(False))).schema
        if parsed.order is not None:
            with explain_refusal("'latest_by'", output.latest_by, name):
                _ = batch.select(parsed.order).schema
        _require_key(name, output, names)


class _Parsed:
    """The expressions of an output as Columns. Raises ConfigurationError: Spark can't parse an expression."""

    def __init__(self, name: str, output: Output) -> None:
        def parse(what: str, given: Expression | None) -> Column | None:
            with explain_refusal(what, given, name):
                return None if given is None else as_column(given)

        self.takes_all = all(isinstance(each, str) for each in output.columns) and output.columns == ALL
        with explain_refusal("columns", [*output.columns], name):
            self.columns = [*map(as_column, output.columns)]
        self.struct = struct(*self.columns)
        self.where = parse("condition", output.where)
        self.deletes = parse("'delete_where'", output.delete_where)
        self.order = parse("'latest_by'", output.latest_by)

    def in_struct(self, name: str, keyed: Keyed | None) -> Iterator[Column]:
        """Yield the output's struct column, which is null in rows for which the condition does not hold. For an output
        with a key, yield the columns that ``changes`` needs."""
        if keyed is None:
            yield (self.struct if self.where is None else when(self.where, self.struct)).alias(name)
        else:
            yield from columns_of(name, keyed.key, self.struct, self.where, self.deletes, self.order)


def _with_hashes(frame: DataFrame, rows: Rows) -> DataFrame:
    if not rows.hashed:
        return frame
    try:
        hashes = [f"{hash_of(columns)} AS {quoted(_HASHES + name)}" for name, columns in rows.hashed_columns(frame)]
        with_hashes = frame.selectExpr("*", *hashes)
        _ = with_hashes.schema
    except AnalysisException as error:
        raise ConfigurationError(
            f"on_loss='recompute' needs a hash of each record of {', '.join(sorted(rows.hashed))}, and Spark refuses to"
            f" make it: {_first_line(error)} Nothing was written. Write the column in another type, such as a map as"
            " to_json(column), or use twopc.ReplayCopies instead.",
            option="on_loss",
        ) from error
    return with_hashes


def _require_key(name: str, output: Output, columns: Sequence[str]) -> None:
    """Raise ConfigurationError if an output lacks a column of its sink's key."""
    if lacking := missing(output.key, columns):
        raise ConfigurationError(
            f"output {name!r} has no column {', '.join(map(repr, lacking))}, or several: the sink's key is"
            f" {', '.join(output.key)}, and the columns are {', '.join(columns)}. Nothing was written. Select each"
            " column of the key once, under its name.",
            option="columns",
        )


@contextlib.contextmanager
def explain_refusal(what: str, given: object, name: str) -> Iterator[None]:
    """Raise ConfigurationError with the expression ``given`` for output ``name`` if Spark rejects it."""
    try:
        yield
    except AnalysisException as error:
        raise ConfigurationError(
            f"Spark refuses the {what} {given!r} of output {name!r}: {_first_line(error)} Nothing was written."
        ) from error


def _first_line(error: AnalysisException) -> str:
    """Return the first line of Spark's error as a sentence."""
    return f"{str(error).strip().partition(chr(10))[0].rstrip('. ;')}."


def _differ_in_case_alone(names: Sequence[str]) -> bool:
    return len({name.lower() for name in names}) < len(names)


def _can_be_named(columns: Sequence[str]) -> bool:
    """Whether ``frame[name]``, which PySpark uses to pass columns to Python, finds each column."""
    return all(name.isidentifier() for name in columns) and not _differ_in_case_alone(columns)
