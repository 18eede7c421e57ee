"""Which Arrow types fit into which column types, and which columns an upsert needs. No I/O.

Pairs of types that are not listed here are refused. So are values that a column would change: ``rows.refusals`` or the
server refuses those.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from twopc.columns import has_room
from twopc.errors import SchemaMismatch
from twopc.keyed import UniqueIndex, check_key
from twopc.refusals import is_string

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
"""Arrow type → the column types that hold all of its values, or whose server-side checks refuse the others.
``Column.keeps`` handles parameters, lists and ``PROVEN``."""

EXACT_ENCODINGS = frozenset(
    (
        *("UTF8", "SQL_ASCII", "EUC_CN", "EUC_JIS_2004", "EUC_KR", "EUC_TW", "KOI8R", "KOI8U", "WIN866", "WIN874"),
        *(f"LATIN{number}" for number in range(1, 11)),
        *(f"ISO_8859_{number}" for number in range(5, 9)),
        *(f"WIN125{number}" for number in range(9)),
    )
)
"""Database encodings with which the server either keeps or refuses each character. EUC_JP silently turns U+00A6 into
U+FFE4."""

OTHER = "other"
"""Any base type outside ``pg_catalog``, such as ``citext`` and other types of extensions."""

_TIME = r"\d\d:[0-5]\d(:[0-5]\d(\.\d{1,6})?)?"

PROVEN: Mapping[str, str | None] = {
    **dict.fromkeys(("varchar", "cidr", "macaddr8", "bit", "varbit", "interval", OTHER)),
    "bpchar": ".*",  # PostgreSQL ignores padding blanks in comparisons
    "inet": r"(\d+\.\d+\.\d+\.\d+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)(/\d+)?",
    "time": _TIME,
    "timetz": _TIME + r"[+-]\d\d(:\d\d)?",
}
"""Column types that accept text but may truncate, round or respell it → the pattern of texts whose value matters rather
than their spelling. Before the sink writes a text, it tries the text on the server, and refuses a text that would
change."""

_EQUAL_IS_THE_SAME = frozenset(
    (
        *(*_INTEGERS, "bool", "bytea", "date", "timestamp", "timestamptz", "time", "timetz", "bit", "varbit"),
        *("text", "varchar", "enum", "uuid", "inet", "cidr", "macaddr", "macaddr8"),
    )
)
"""Types for which equal values are identical, unless the collation makes different values equal."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, as the catalog describes it, with domains resolved.

    Attributes:
        type: the name of a type of ``pg_catalog``, such as ``int4``; ``enum`` for an enumeration; ``OTHER``; empty for
            any other type, which accepts nothing. For an array, the type of its elements.
        modifier: the type's modifier, such as the length of a ``varchar``; None if it has none.
        is_array: whether it is an array, or a domain over one.
        described: the column's type as the table declares it.
        element: the type of a single value, with its modifier, in PostgreSQL's spelling.
        is_generated: whether PostgreSQL computes the values.
        is_required: whether the column is NOT NULL and has no default.
        is_folded: with upserts, whether a collation of the column or of a unique index treats different texts as equal,
            or a unique index uses an operator class from outside ``pg_catalog``.
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
        """Whether a record that replaces a row must also write this key column, because equal values may differ, like
        1.00 and 1.0. If the key is not written, PostgreSQL requires no privilege to change it, and locks no row that
        refers to it."""
        is_padded = self.type in ("numeric", "bpchar") and self.modifier is not None  # padded to a scale or a length
        return self.is_folded or not (is_padded or self.type in _EQUAL_IS_THE_SAME)

    @property
    def digits(self) -> tuple[int, int] | None:
        """The digits of a ``numeric`` before and after the decimal point; None if the type has no limit. The second
        number may be negative: such a column rounds to powers of ten."""
        if self.modifier is None:
            return None
        precision, scale = (self.modifier - 4) >> 16, ((self.modifier - 4) & 0x7FF ^ 1024) - 1024
        return precision - scale, scale

    @property
    def is_proven(self) -> bool:
        """Whether each text must be tried on the server."""
        return self.type in PROVEN and not (self.type == "varchar" and self.modifier is None)

    @property
    def need(self) -> str | None:
        return "is NOT NULL without a default: add it to the records" if self.is_required else None

    def keeps(self, type: pa.DataType) -> bool:
        if pa.types.is_list(type) or pa.types.is_large_list(type):
            return self.is_array and self._holds(type.value_type)
        return not self.is_array and self._holds(type)

    def _holds(self, type: pa.DataType) -> bool:
        if is_string(type) and (self.type in PROVEN or self.type in HOLDS[type]):
            return True
        if pa.types.is_timestamp(type):
            digits = _DIGITS_OF_FRACTION.get(type.unit)
            name = "timestamptz" if type.tz else "timestamp"
            return self.type == name and digits is not None and (self.modifier is None or digits <= self.modifier)
        if pa.types.is_integer(type) and self.type == "numeric":
            return self.digits is None or self.digits[1] >= 0  # the server refuses a number that is too large
        if pa.types.is_decimal(type):
            if self.type in _INTEGERS:
                return has_room(type, _DIGITS_OF_INTEGER[self.type], 0)
            return self.type == "numeric" and (self.digits is None or has_room(type, sum(self.digits), self.digits[1]))
        return self.type in HOLDS.get(type, ())

    def advice(self, type: pa.DataType) -> str:
        if self.type not in _MADE_UP:
            return "Make it a column of text, or use the backend 'sql', which tries each value."
        if pa.types.is_nested(type) and not self.is_array:
            return "Convert lists, structs and maps with to_json, for a column of json, jsonb or text."
        if is_string(type):
            return "Cast the column to the table's type in the query, or make the table's column text."
        return "Cast the column in the query, or make the table's column wider. The backend 'sql' tries each value."


_SPELLED = ("interval", "jsonb", OTHER)
"""Column types that treat values with different spellings as equal, such as ``1 day`` and ``24:00:00``, or ``a`` and
``A`` in citext."""

_ZEROS = "it takes 0.0 and -0.0 for one key: make it a numeric or a text"

FOLDS = "it takes different texts for equal: make it a column of text with a deterministic collation"

PROVEN_IN_KEYS = ("uuid", "macaddr")
"""Further column types for which two spellings of a key identify the same row."""


def check_upsert(
    upsert_by: Collection[str],
    names: Collection[str],
    columns: Collection[Column],
    unique: Collection[UniqueIndex],
    table: str,
) -> None:
    """Check that a record with the columns ``names`` can replace a row. Raises like ``check_key``, and SchemaMismatch
    if the table has a column named ``ORDINAL``."""
    if not upsert_by:
        return
    if any(column.name == ORDINAL for column in columns):
        raise SchemaMismatch(f"{table} has a column {ORDINAL!r}, whose name 'upsert_by' reserves: rename it")
    spelled = {column.name: FOLDS for column in columns if column.type in _SPELLED}
    spelled |= {column.name: _ZEROS for column in columns if column.type in ("float4", "float8")}
    indexes = [replace(index, inexact={**index.inexact, **spelled}) for index in unique]
    check_key(upsert_by, names, indexes, table)


_MADE_UP: Mapping[str, str] = {
    **dict.fromkeys(
        (*_INTEGERS, "numeric", "float4", "float8", "text", "varchar", "bpchar", "json", "jsonb", "bit"), "0"
    ),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), "epoch"),
    **dict.fromkeys(("inet", "cidr"), "0.0.0.0"),  # noqa: S104  # a value, not an address to listen on
    **dict.fromkeys(("time", "timetz"), "00:00"),
    "bool": "f",
    "bytea": "",
    "interval": "0",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "varbit": "",
}


def made_up(columns: Sequence[Column]) -> dict[str, str]:
    """Return a made-up row, by column name, with values that the table's rules are likely to accept."""
    return {
        column.name: "{}" if column.is_array else _MADE_UP[column.type]
        for column in columns
        if column.type in _MADE_UP and not column.is_generated
    }
