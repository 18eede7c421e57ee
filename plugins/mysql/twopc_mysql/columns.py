"""Which Arrow types fit into which column types, and which keys an upsert needs. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from twopc.columns import has_room
from twopc.keyed import UniqueIndex, check_key

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_BITS = dict(zip(_INTEGERS, (8, 16, 24, 32, 64), strict=True))
_BYTES = ("varbinary", "tinyblob", "blob", "mediumblob", "longblob", "binary")
_TEXT = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json", "uuid", "enum")

HOLDS: Mapping[pa.DataType, tuple[str, ...]] = {
    pa.bool_(): ("tinyint",),
    pa.float32(): ("float", "double"),
    pa.float64(): ("double",),
    pa.binary(): _BYTES,
    pa.large_binary(): _BYTES,
    pa.date32(): ("date",),
    pa.string(): _TEXT,
    pa.large_string(): _TEXT,
}
"""Arrow type → the column types that hold all of its values, or all except those that ``rows`` or the server in strict
mode refuses. ``Column.keeps`` handles numbers and times. Missing types, such as SET, are refused."""

EXACT = frozenset(
    (
        *("utf8mb4", "utf8mb3", "utf8", "ucs2", "utf16", "utf16le", "utf32", "ascii", "latin1", "latin2", "latin5"),
        *("latin7", "armscii8", "big5", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866", "dec8"),
        *("eucjpms", "euckr", "gb2312", "gbk", "geostd8", "greek", "hebrew", "hp8", "keybcs2", "koi8r", "koi8u"),
        *("macce", "macroman", "sjis", "swe7", "ujis"),
    )
)
"""Character sets with which the server either keeps or refuses each character. MariaDB 11.4.5 silently changes one
character in cp932, and hundreds in tis620."""

_LABEL = re.compile(r"'((?:[^']|'')*)'")
_ESCAPED = re.compile(r"''|\\.")
_ESCAPES = {"''": "'", r"\\": "\\", r"\n": "\n", r"\r": "\r", r"\0": "\0"}
"""The server's spelling of a character in a label, whatever ``sql_mode`` is → the character."""

_DIGITS = {pa.timestamp("s"): 0, pa.timestamp("ms"): 3, pa.timestamp("us"): 6}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, as ``information_schema`` describes it.

    Attributes:
        type: the type's name, such as ``int``.
        described: the type with its parameters, such as ``int(10) unsigned``.
        precision: the total number of digits of a ``decimal``.
        scale: the number of digits after the decimal point.
        fraction: the number of digits in the fraction of a second.
        is_nullable: whether the column accepts NULL.
        default: the default as text; None if there is none.
        extra: ``auto_increment``, ``STORED GENERATED`` and the like.
        collation: the name of a text column's collation.
        characters: the name of its character set.
        is_key: whether the column is one of ``upsert_by``.
    """

    name: str
    type: str
    described: str
    precision: int | None
    scale: int | None
    fraction: int | None
    is_nullable: bool
    default: str | None
    extra: str
    collation: str | None = None
    characters: str | None = None
    is_key: bool = False

    @property
    def takes_spaces_for_equal(self) -> bool:
        """Whether the server ignores trailing spaces when it compares texts."""
        name = self.collation
        return name is not None and "nopad" not in name and not name.startswith("utf8mb4_0900_") and name != "binary"

    @property
    def is_generated(self) -> bool:
        return "GENERATED" in self.extra.replace("DEFAULT_GENERATED", "").upper()

    @property
    def is_unsigned(self) -> bool:
        return "unsigned" in self.described

    @property
    def labels(self) -> list[str]:
        """The values of an ENUM."""
        labels = _LABEL.findall(self.described)
        return [_ESCAPED.sub(lambda found: _ESCAPES.get(found[0], found[0]), label) for label in labels]

    @property
    def length(self) -> int:
        """The length of a BINARY column, in bytes."""
        return int(self.described.partition("(")[2].partition(")")[0] or 1)

    @property
    def has_zero_date(self) -> bool:
        """Whether the default is a zero date, which strict mode refuses."""
        return (self.default or "").strip("'").startswith("0000-00-00")

    @property
    def is_auto_increment(self) -> bool:
        return "auto_increment" in self.extra

    @property
    def need(self) -> str | None:
        if self.has_zero_date:
            return (
                f"has the default {self.default}, a date that the server refuses in strict mode: add it to the records,"
                " or change its default"
            )
        if self.is_nullable or self.is_generated or self.is_auto_increment or self.default is not None:
            return None
        return "is NOT NULL without a default: add it to the records"

    @property
    def _bits(self) -> int:
        """The bits of an integer column, without the sign."""
        return _BITS[self.type] - (not self.is_unsigned)

    def keeps(self, type: pa.DataType) -> bool:
        if pa.types.is_timestamp(type):
            digits = _DIGITS.get(pa.timestamp(type.unit))
            holds = ("datetime", "timestamp") if type.tz else ("datetime",)
            return self.type in holds and digits is not None and digits <= (self.fraction or 0)
        if pa.types.is_decimal(type):
            if self.type in _BITS:  # as many digits; the server refuses numbers out of range
                return has_room(type, len(str(2**self._bits)), 0)
            return self.type == "decimal" and has_room(type, self.precision or 0, self.scale or 0)
        if pa.types.is_integer(type):  # the server refuses a negative number for an unsigned column
            is_signed = pa.types.is_signed_integer(type)
            return self.type in _BITS and type.bit_width - is_signed <= self._bits
        if pa.types.is_floating(type) and self.scale is not None:
            return False  # DOUBLE(10,2) rounds
        is_unsigned_float = pa.types.is_floating(type) and self.is_unsigned
        return self._is_exact and self.type in HOLDS.get(type, ()) and not is_unsigned_float

    @property
    def _is_exact(self) -> bool:
        return self.characters is None or self.characters in EXACT

    def advice(self, type: pa.DataType) -> str:  # noqa: ARG002
        if not self._is_exact:
            return f"The character set {self.characters} changes some characters: give the column utf8mb4."
        return (
            "Cast the column (lists, structs and maps to JSON text), change the table, or use the backend 'sql', which"
            " tries each value."
        )


def check_upsert(
    upsert_by: Collection[str],
    names: Collection[str],
    keys: Collection[UniqueIndex],
    columns: Sequence[Column],
    table: str,
) -> None:
    """Check that a record with the columns ``names`` can replace a row, and only the row with its key: ON DUPLICATE KEY
    UPDATE replaces the row of the first unique key that matches. Raises like ``check_key``."""
    if upsert_by:
        inexact = {column.name: why for column in columns if (why := _inexact(column))}
        numbered = [column.name for column in columns if column.is_auto_increment and column.name not in names]
        indexes = [replace(key, inexact=inexact) for key in keys]
        check_key(upsert_by, names, indexes, table, any_replaces=True, numbered=numbered)


def _inexact(column: Column) -> str | None:
    """Return why the server may treat different values of a key as equal, and what to do; None if it does not."""
    if column.type in ("float", "double"):
        return "the server may not find the row of a floating-point number: make it a DECIMAL or a text"
    if column.collation is not None and not column.collation.endswith("_bin") and column.type != "enum":
        return (
            f"its collation {column.collation} takes different texts for equal, such as 'a' and 'A': give it one that"
            " ends with _bin, such as utf8mb4_bin"
        )
    return None
