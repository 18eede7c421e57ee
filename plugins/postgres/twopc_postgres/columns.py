"""Which Arrow types fit into which column types, as a table, and which columns a table needs. This module sends no
request.

A pair that the table does not have is refused. So is a value that a column of a pair would change, by one of
``refusals`` or by the server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from twopc.bad_records import are_held
from twopc.errors import ConfigurationError, SchemaMismatch
from twopc.keyed import may_refuse_an_exchange
from twopc.prepared import are_kept_json

ORDINAL = "twopc_ordinal"
"""The column of an upsert table that holds the order in which records arrived."""

_INTEGERS = ("int2", "int4", "int8")
_DIGITS_OF_INTEGER = {"int2": 5, "int4": 10, "int8": 19}
_DIGITS_OF_FRACTION = {"s": 0, "ms": 3, "us": 6}

HOLDS: Mapping[pa.DataType, tuple[str, ...]] = {
    pa.bool_(): ("bool",),
    pa.int8(): _INTEGERS,
    pa.int16(): _INTEGERS,
    pa.uint8(): _INTEGERS,
    pa.int32(): _INTEGERS[1:],
    pa.uint16(): _INTEGERS[1:],
    pa.int64(): _INTEGERS[2:],
    pa.uint32(): _INTEGERS[2:],
    pa.uint64(): (),
    pa.float32(): ("float4", "float8"),
    pa.float64(): ("float8",),
    pa.binary(): ("bytea",),
    pa.large_binary(): ("bytea",),
    pa.date32(): ("date",),
    pa.string(): ("text", "json", "jsonb", "enum", "uuid", "macaddr"),
    pa.large_string(): ("text", "json", "jsonb", "enum", "uuid", "macaddr"),
}
"""Arrow type → the column types that hold all of its values, or of which the server refuses those that they don't
hold. ``_fits`` handles parameters, lists and ``PROVEN``."""

OTHER = "other"
"""Any base type that is none of ``pg_catalog``'s, such as ``citext`` and other types of extensions."""

_TIME = r"\d\d:[0-5]\d(:[0-5]\d(\.\d{1,6})?)?"

PROVEN: Mapping[str, str | None] = {
    **dict.fromkeys(("varchar", "cidr", "macaddr8", "bit", "varbit", "interval", OTHER)),
    "bpchar": ".*",  # PostgreSQL does not compare the blanks that it pads with
    "inet": r"(\d+\.\d+\.\d+\.\d+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)(/\d+)?",
    "time": _TIME,
    "timetz": _TIME + r"[+-]\d\d(:\d\d)?",
}
"""Column types that take text, and may change it: cut it, round it or spell it in another way → the pattern of the
texts whose value counts, and not the spelling. The server is asked about each text before it is written. One that it
would change is refused."""

_EQUAL_IS_THE_SAME = frozenset(
    (
        *(*_INTEGERS, "bool", "bytea", "date", "timestamp", "timestamptz", "time", "timetz", "bit", "varbit"),
        *("text", "varchar", "enum", "uuid", "inet", "cidr", "macaddr", "macaddr8"),
    )
)
"""Types of which no two different values are equal, unless the collation says so."""

_LEAST_EXPONENT = -16_383
"""PostgreSQL keeps as many digits after the point."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, as the catalog describes it, with domains resolved.

    Attributes:
        type: the name of a type of ``pg_catalog``, such as ``int4``; ``enum`` for an enumeration; ``OTHER``; empty for
            any other type, which takes nothing. Of an array, the type of its elements.
        modifier: the type's modifier, such as the length of a ``varchar``; None if it has none.
        is_array: whether it is an array, or a domain over one.
        described: the column's type as the table declares it.
        element: the type of a single value as PostgreSQL writes it, with its modifier.
        is_generated: whether PostgreSQL computes the values.
        is_required: whether the column is NOT NULL and has no default.
        is_folded: whether a collation of the column or of a unique index takes different texts for equal, or such an
            index does not compare as PostgreSQL does.
    """

    name: str
    type: str
    modifier: int | None
    is_array: bool
    described: str
    element: str
    is_generated: bool
    is_required: bool
    is_folded: bool

    @property
    def needs_its_key(self) -> bool:
        """Whether a record that replaces a row writes the key, too: the row's equal one may be another, such as 0.0 for
        -0.0. Otherwise PostgreSQL needs no right to change it, and locks no row that refers to it."""
        is_padded = self.type in ("numeric", "bpchar") and self.modifier is not None  # to a scale, or to a length
        return self.is_folded or not (is_padded or self.type in _EQUAL_IS_THE_SAME)

    @property
    def digits(self) -> tuple[int, int] | None:
        """The digits of a ``numeric`` before and after the point; None if it has no limit. The second may be negative:
        such a column rounds to tens."""
        if self.modifier is None:
            return None
        precision, scale = (self.modifier - 4) >> 16, ((self.modifier - 4) & 0x7FF ^ 1024) - 1024
        return precision - scale, scale

    @property
    def is_proven(self) -> bool:
        """Whether the server is asked about each text."""
        return self.type in PROVEN and not (self.type == "varchar" and self.modifier is None)


def check_columns(schema: pa.Schema, columns: Sequence[Column], table: str) -> None:
    """Make sure that records of ``schema`` fit into the table, and that no value would be changed.

    Raises:
        SchemaMismatch: a column does not fit. The message names it.
    """
    check_types(schema, columns, table)
    for column in columns:
        if column.is_required and column.name not in schema.names:
            raise SchemaMismatch(
                f"column {column.name!r} of {table} is NOT NULL without a default: add it to the records"
            )


def check_types(schema: pa.Schema, columns: Sequence[Column], table: str) -> None:
    """Make sure that the columns of ``schema`` fit into those of the table. The table may have others. Raises like
    ``check_columns``."""
    by_name = {column.name: column for column in columns}
    for field in schema:
        if field.name not in by_name:
            have = ", ".join(by_name)
            raise SchemaMismatch(f"{table} has no column {field.name!r}. It has: {have}. Drop or rename it.")
        column = by_name[field.name]
        if column.is_generated:
            raise SchemaMismatch(
                f"column {field.name!r} of {table} is generated by PostgreSQL: drop it from the records"
            )
        if not _fits(field.type, column):
            raise SchemaMismatch(
                f"column {field.name!r} has the Arrow type {field.type}, and {column.described}, the column's type in"
                f" {table}, may not keep each value of that type. {_advice(field.type, column)}"
            )


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """An index that refuses rows beside others: a unique one, or that of an exclusion constraint.

    Attributes:
        name: its name.
        columns: the columns of its key. One that is an expression is None, as is any if the index has a condition.
        can_replace: whether ON CONFLICT can use it, if its columns are those of ``upsert_by``.
        is_exact: whether it takes for equal what is the same text.
    """

    name: str
    columns: frozenset[str | None]
    can_replace: bool
    is_exact: bool


_SPELLED = ("interval", "jsonb", OTHER)
"""Column types that may give back different texts that they take for equal, such as ``1 day`` and ``24:00:00``, or
``a`` and ``A`` of citext."""

PROVEN_IN_KEYS = ("uuid", "macaddr")
"""Further column types of which two spellings, as texts of a key, are for one row."""


def check_upsert(
    upsert_by: Collection[str],
    names: Collection[str],
    columns: Collection[Column],
    unique: Collection[UniqueIndex],
    table: str,
) -> None:
    """Make sure that a record with the columns ``names`` can replace a row, and that nothing but the key decides which.

    Raises:
        SchemaMismatch: the records lack a column of ``upsert_by``, or the table has one of the upsert table's.
        ConfigurationError: no unique index is on exactly these columns, or it takes different keys for equal, or
            another unique index may refuse what the source has done in another order.
    """
    if not upsert_by:
        return
    for name in upsert_by:
        if name not in names:
            raise SchemaMismatch(f"the records have no column {name!r}, which 'upsert_by' names")
    if any(column.name == ORDINAL for column in columns):
        raise SchemaMismatch(f"{table} has a column {ORDINAL!r}, whose name 'upsert_by' reserves: rename it")
    key = frozenset(upsert_by)
    own = [index for index in unique if index.columns == key and index.can_replace]
    if not own:
        raise ConfigurationError(
            f"{table} has no primary key or unique index on exactly the columns of 'upsert_by'"
            f" ({', '.join(upsert_by)}): create a unique index on them that is not deferrable and has no WHERE clause",
            option="upsert_by",
        )
    spelled = [column.name for column in columns if column.name in key and column.type in _SPELLED]
    if spelled or not own[0].is_exact:
        raise ConfigurationError(
            f"the key of {table} takes different texts for equal, so two records of a batch could be for one row:"
            f" column {', '.join(spelled or upsert_by)}. Nothing was written. Make it a column of text with a"
            " deterministic collation.",
            option="upsert_by",
        )
    if others := [index.name for index in unique if may_refuse_an_exchange(index.columns, key, names)]:
        raise ConfigurationError(
            f"{table} has another unique index, {', '.join(others)}, than that of 'upsert_by'. A source may exchange"
            " its values between two rows, and no order of the two changes satisfies the index. Nothing was written."
            " Drop it or make it an index that is not unique, or do not select its columns.",
            option="upsert_by",
        )


_MADE_UP: Mapping[str, str] = {
    **dict.fromkeys(
        (*_INTEGERS, "numeric", "float4", "float8", "text", "varchar", "bpchar", "json", "jsonb", "bit"), "0"
    ),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), "epoch"),
    **dict.fromkeys(("inet", "cidr"), "0.0.0.0"),  # noqa: S104  # a value, and no address to listen at
    **dict.fromkeys(("time", "timetz"), "00:00"),
    "bool": "f",
    "bytea": "",
    "interval": "0",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "varbit": "",
}


def made_up(columns: Sequence[Column]) -> tuple[list[str], list[str]]:
    """Return names of columns, and a value for each, such as a rule of the table might allow."""
    row = {
        column.name: "{}" if column.is_array else _MADE_UP[column.type]
        for column in columns
        if column.type in _MADE_UP and not column.is_generated
    }
    return [*row], [*row.values()]


def _fits(type: pa.DataType, column: Column) -> bool:
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return column.is_array and _holds(type.value_type, column)
    return not column.is_array and _holds(type, column)


def _holds(type: pa.DataType, column: Column) -> bool:
    if _is_text(type) and (column.type in PROVEN or column.type in HOLDS[type]):
        return True
    if pa.types.is_timestamp(type):
        digits = _DIGITS_OF_FRACTION.get(type.unit)
        name = "timestamptz" if type.tz else "timestamp"
        return column.type == name and digits is not None and (column.modifier is None or digits <= column.modifier)
    if pa.types.is_integer(type) and column.type == "numeric":
        return column.digits is None or column.digits[1] >= 0  # the server refuses a number that is too large
    if pa.types.is_decimal(type):
        if column.type in _INTEGERS:
            return bool(type.scale == 0 and type.precision <= _DIGITS_OF_INTEGER[column.type])
        return column.type == "numeric" and _has_room(type, column)
    return column.type in HOLDS.get(type, ())


def _has_room(type: pa.Decimal128Type, column: Column) -> bool:
    """Return whether a ``numeric`` column holds every value of a decimal type. PostgreSQL would round extra digits."""
    room = column.digits
    return room is None or (type.precision - type.scale <= room[0] and type.scale <= room[1])


def _advice(type: pa.DataType, column: Column) -> str:
    if column.type not in _MADE_UP:
        return "Make it a column of text, or use the backend 'sql', which tries each value."
    if pa.types.is_nested(type) and not column.is_array:
        return "Convert lists, structs and maps with to_json, for a column of json, jsonb or text."
    if _is_text(type):
        return "Cast the column to the type of the table's in the query, or make the table's column text."
    return "Cast the column in the query, or make the table's column wider. The backend 'sql' tries each value."


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


# Values. ------------------------------------------------------------------------------------------------------


def in_utc(values: pa.Array) -> pa.Array:
    """Return times with a zone as those of UTC, which Python holds for as many of them as PostgreSQL needs."""
    of_list = pa.types.is_nested(values.type)
    type = values.type.value_type if of_list else values.type
    if not (pa.types.is_timestamp(type) and type.tz):
        return values
    utc = pa.timestamp(type.unit, "UTC")
    return values.cast(pa.list_(utc) if of_list else utc)


def refusals(column: Column, is_key: bool) -> Iterator[tuple[Callable[[pa.Array], bool], str]]:
    """Yield what PostgreSQL would not keep in a column: whether values have none of it, and the reason for an error.
    ``is_key``: whether the column is one of ``upsert_by``."""
    if is_key:
        yield lambda part: not part.null_count, "the column is one of 'upsert_by', and the record has no value for it"
    yield (
        are_held,
        "it is text that is not UTF-8, or a time that psycopg can't send: one outside of the years 1 to 9999",
    )
    if column.type == "jsonb":
        yield _are_kept_as_jsonb, "it is JSON that names a key twice, or has a number that jsonb does not keep"


def single(values: pa.Array) -> pa.Array:
    """Return the values of a column, or the elements of its lists, without nulls."""
    return (values.flatten() if pa.types.is_nested(values.type) else values).drop_null()


def _are_kept_as_jsonb(values: pa.Array) -> bool:
    return are_kept_json(single(values).to_pylist(), _is_kept)


def _is_kept(number: str) -> bool:
    return int(Decimal(number).as_tuple().exponent) >= _LEAST_EXPONENT
