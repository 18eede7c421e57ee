"""CSV according to RFC 4180, written by pyarrow.

Strings are quoted, quotes in them are doubled, and a null is ``null_value`` without quotes. Spark reads all values
with ``escape='"'`` and ``multiLine=true``. With its own defaults, it misreads strings that contain a quote or a line
break, or end in a backslash. It takes an empty string for a null unless ``null_value`` is set to another text.

| Arrow | CSV |
| --- | --- |
| float | a number in quotes; NaN and the infinities as ``NaN``, ``Infinity``, ``-Infinity`` |
| timestamp with a time zone | in UTC, with a ``Z`` at the end |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, types

from twopc.refusals import NOT_UTF8, TIMES, YEARS, Check, Rule, checker, first_null, first_true
from twopc_files.lines import Encode, LinesFormat


@dataclass(frozen=True, slots=True)
class Csv(LinesFormat):
    """The CSV format.

    Attributes:
        header: whether the first line contains the column names.
        delimiter: the character between values.
        null_value: the text for a null, like the option ``nullValue`` of Spark's reader.
    """

    name = "csv"
    header: bool = True
    delimiter: str = ","
    null_value: str = ""

    def checker(self, schema: pa.Schema) -> Check:
        of_nulls = [_null_value_rule(self.null_value)] if self.null_value else [_EMPTY_LINE] * (len(schema) == 1)
        return checker(schema, (*of_nulls, NOT_UTF8, YEARS, TIMES))

    def encoder(self, schema: pa.Schema) -> Encode:
        return _Encoder(self, schema).encode

    def write_options(self) -> csv.WriteOptions:
        """Return the options for pyarrow's writer. Raises TypeError: ``null_value`` is set, and pyarrow is older than
        26."""
        null = {"null_string": self.null_value} if self.null_value else {}
        return csv.WriteOptions(include_header=self.header, delimiter=self.delimiter, **null)


_EMPTY_LINE = Rule(
    lambda _: True,
    first_null,
    "it is null and the only column, so it would be an empty line, which readers skip. Set the option 'null_value',"
    " or filter such records.",
)


def _null_value_rule(null_value: str) -> Rule:
    """Return the rule that refuses values whose text equals ``null_value``. Most readers ignore the quotes, and would
    read such a value as a null."""

    def concerns(field: pa.Field) -> bool:
        type_ = written_as(field.type)
        if types.is_floating(field.type) or types.is_decimal(field.type):
            return _is_number(null_value)
        try:
            return bool(types.is_string(type_) or pa.scalar(null_value).cast(type_).is_valid)
        except pa.ArrowInvalid:
            return False
        except pa.ArrowNotImplementedError:  # such as for times
            return True

    def first(column: pa.Array) -> int | None:
        return first_true(pc.equal(_convert(column, written_as(column.type)).cast(pa.string()), null_value))

    return Rule(
        concerns,
        first,
        "it is written as the option 'null_value', so readers would take it for null. Set another 'null_value', or"
        " filter such records.",
    )


def _is_number(text: str) -> bool:
    """Whether a text may be a number, NaN or an infinity."""
    try:
        float(text)
    except ValueError:
        return False
    return True


class _Encoder:
    def __init__(self, kind: Csv, schema: pa.Schema) -> None:
        self._schema = pa.schema([(field.name, written_as(field.type)) for field in schema])
        self._options = kind.write_options()

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.Buffer]:
        columns = [_convert(c, field.type) for c, field in zip(batch.columns, self._schema, strict=True)]
        lines = pa.BufferOutputStream()
        csv.write_csv(pa.record_batch(columns, schema=self._schema), lines, self._options)
        self._options.include_header = False
        yield lines.getvalue()


def written_as(type_: pa.DataType) -> pa.DataType:
    """Return the type that values of ``type_`` are cast to for pyarrow's writer."""
    if types.is_dictionary(type_):
        return written_as(type_.value_type)
    if types.is_timestamp(type_) and type_.tz is not None:
        # Not every reader understands pyarrow's form of offsets, such as +0200.
        return pa.timestamp(type_.unit, "UTC")
    if types.is_float32(type_) or types.is_float64(type_) or types.is_string_view(type_) or _may_have_exponent(type_):
        return pa.string()
    return type_


def _may_have_exponent(type_: pa.DataType) -> bool:
    """Whether pyarrow may write a value like 1E-7, which not every reader accepts as a decimal."""
    return bool(types.is_decimal(type_) and type_.scale > 6)


def _convert(column: pa.Array, type_: pa.DataType) -> pa.Array:
    written = column.cast(type_)
    if types.is_floating(column.type):
        for arrows, everybodys in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
            written = pc.if_else(pc.equal(written, arrows), everybodys, written)
    if _may_have_exponent(column.type):
        small = pc.match_substring(written, "E").fill_null(False)
        plain = [format(value, "f") for value in column.filter(small).to_pylist()]
        written = pc.replace_with_mask(written, small, pa.array(plain, pa.string()))
    return written
