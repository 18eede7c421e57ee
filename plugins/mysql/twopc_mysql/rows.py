"""Converts records to the text of INSERT statements. No I/O.

The sink uses multi-row INSERTs rather than LOAD DATA LOCAL INFILE. The latter was 1.3 to 1.6 times as fast on MariaDB
10.11 and 11.4, but behaves like IGNORE even in strict mode: it truncates values that are too long and skips records
with duplicate keys, each with only a warning. A NULL for a TIMESTAMP NOT NULL becomes the current time without even a
warning. It also lets a server read any file of the client. A strict INSERT fails as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from twopc.bad_records import are_in_years, are_utf8
from twopc.columns import CHANGED_JSON, are_kept_json, require
from twopc.errors import RecordRefused
from twopc.prepared import BYTES, joined
from twopc.refusals import is_bytes, is_string

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc_mysql.columns import Column

STATEMENT_BYTES = 1 << 20
"""The target length of a statement. A single longer record exceeds it."""

_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


def statements(
    head: bytes, rows: pa.Array, tail: bytes, most_bytes: int, by: bytes = b",", at_once: int = 1 << 31
) -> Iterator[bytes]:
    """Yield statements that cover all of ``rows``, each of about ``STATEMENT_BYTES`` and with at most ``at_once`` rows.
    ``by`` is the separator between rows.

    Raises:
        RecordRefused: a record is longer than ``most_bytes``, the server's limit. Raised before the first statement.
    """
    lengths = pc.binary_length(rows).to_pylist()
    around = len(head) + len(tail) + 64
    for record, length in enumerate(lengths):
        if length + around > most_bytes:
            raise RecordRefused(
                f"it takes {length} bytes, and the server's max_allowed_packet is {most_bytes}. Raise that, or filter"
                " such records.",
                record=record,
            )
    first, size = 0, around
    for end, length in enumerate([*lengths, most_bytes]):
        is_full = size + length >= min(STATEMENT_BYTES, most_bytes) or end - first == at_once
        if end > first and is_full:
            yield head + by.join(rows.slice(first, end - first).to_pylist()) + tail
            first, size = end, around
        size += length + len(by)


def rows(batch: pa.RecordBatch, columns: Mapping[str, Column]) -> pa.Array:
    """Return the text of each record, such as ``('1',NULL)``.

    Raises:
        RecordRefused: the server can't store a value, or would change it without a warning.
    """
    literals = [
        _literals(values, columns[name]) for name, values in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return joined("(", joined(*literals, by=","), ")")


def conditions(keys: pa.RecordBatch, columns: Mapping[str, Column]) -> pa.Array:
    """Return the condition of each key, such as ```(`id`=1)```. Raises like ``rows``.

    Numbers are not quoted: the server would compare a number and a text as floating-point numbers.
    """
    parts: list[pa.Array | str] = []
    for name, values in zip(keys.schema.names, keys.columns, strict=True):
        literals, type = _literals(values, columns[name]), values.type
        if pa.types.is_integer(type) or pa.types.is_boolean(type):
            literals = pc.binary_slice(literals, 1, -1)
        elif pa.types.is_decimal(type):
            digits = max(type.precision, type.precision - type.scale), max(type.scale, 0)
            literals = joined("CAST(", literals, " AS DECIMAL({},{}))".format(*digits))
        parts += [" AND " if parts else "(", f"`{name.replace('`', '``')}`=", literals]
    return joined(*parts, ")")


def _literals(values: pa.Array, column: Column) -> pa.Array:
    for are_fine, why in _required(values.type, column):
        require(values, are_fine, why, column.name)
    type = values.type
    if is_string(type):
        return _quoted("'", pc.replace_substring(values.cast(BYTES), "'", "''"))
    if is_bytes(type):
        return _quoted("_binary'", pc.replace_substring(values.cast(BYTES), "'", "''"))
    if pa.types.is_timestamp(type):
        values = values.cast(pa.int64()).cast(pa.timestamp(type.unit))  # UTC, like the session's time zone
    elif pa.types.is_boolean(type):
        values = values.cast(pa.int8())
    elif pa.types.is_float32(type):
        values = values.cast(pa.float64())
    return _quoted("'", values.cast(pa.string()).cast(BYTES))


def _required(type: pa.DataType, column: Column) -> Iterator[tuple[Callable[[pa.Array], bool], str]]:
    """Yield the checks for values that the server might change without a warning: a predicate that is true for
    acceptable values, and the reason to report for others."""
    if not column.is_nullable:  # a null might become the current time (TIMESTAMP), or the next number (AUTO_INCREMENT)
        yield lambda part: not part.null_count, "the column is NOT NULL, and the record has no value for it"
    if is_string(type):
        yield are_utf8, "it is text that is not UTF-8"
        yield from _required_of_text(type, column)
    elif column.type == "binary":
        padded = "it is shorter than the BINARY, which would pad it"
        yield lambda part: not pc.any(pc.less(pc.binary_length(part), column.length)).as_py(), padded
    elif pa.types.is_date32(type) or pa.types.is_timestamp(type):
        yield are_in_years, "it is a time outside of the years 1 to 9999"


def _required_of_text(type: pa.DataType, column: Column) -> Iterator[tuple[Callable[[pa.Array], bool], str]]:
    if column.type == "enum":  # the server would read a number's text as a position, and ignore case
        labels = pa.array(column.labels, type)
        yield lambda part: _all(pc.is_in(part.drop_null(), labels)), "the ENUM has no such text"
    if column.type == "uuid":
        spelled = "a UUID column would spell it in another way: use lower case"
        yield lambda part: _all(pc.match_substring_regex(part.drop_null(), _UUID)), spelled
    if column.type == "json":
        yield lambda part: are_kept_json(part.drop_null().to_pylist(), _is_kept), CHANGED_JSON
    ends = None
    if column.is_key and column.takes_spaces_for_equal:
        ends = f"it ends with a space, which the collation {column.collation} of the key ignores"
    elif column.type == "char":
        ends = "it ends with a space, and a CHAR does not keep that: make the column a VARCHAR"
    if ends is not None:
        yield lambda part: not pc.any(pc.ends_with(part, " ")).as_py(), ends


def _all(fine: pa.BooleanArray) -> bool:
    """Return whether all values are true. The result is True if there are no values."""
    return pc.all(fine).as_py() is not False


_LONGEST_NUMBER = 400
"""The length of text, in characters, up to which a number is compared. Every double has a shorter text, and Python
refuses to convert very long ones."""


def _is_kept(spelled: str) -> bool:
    """Return whether a JSON column of MySQL keeps a number. Numbers without a point or an exponent are 64-bit integers.
    Others become doubles, which readers get as their shortest text."""
    if len(spelled) > _LONGEST_NUMBER:
        return False
    exact = Decimal(spelled)
    if exact.is_zero() and exact.is_signed():
        return False
    if spelled.lstrip("-").isdigit():
        return -(2**63) <= exact < 2**64
    return _parsed(spelled.lstrip("-")) == abs(float(spelled)) and exact == Decimal(repr(float(spelled)))


def _parsed(spelled: str) -> float | None:
    """Return the double that MySQL parses from an unsigned number; None if this function can't tell. MySQL uses
    RapidJSON's ``ParseNumber`` without ``kParseFullPrecisionFlag``, which rounds up to three times. It accumulates
    digits in an integer up to 2^53, then in a double, until there are 18. Then it applies a power of ten. In the
    shortest text of a double, the further digits are zeros, so a fused multiply-add makes no difference."""
    mantissa, _, exponent = spelled.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    significand, counted, power = int(whole), len(whole) - 1, int(exponent or 0)
    for digit in map(int, fraction):
        if significand < 2**53:
            significand = 10 * significand + digit
        elif counted < 17:
            significand = int(10.0 * significand + digit)
        else:
            break
        counted, power = counted + (significand > 0), power - 1
    if significand >= 2**63 or abs(power) > 308:
        return None
    return significand * float(f"1e{power}") if power >= 0 else significand / float(f"1e{-power}")


def _quoted(quote: str, text: pa.Array) -> pa.Array:
    return pc.fill_null(joined(quote, text, "'"), pa.scalar(b"NULL", BYTES))
