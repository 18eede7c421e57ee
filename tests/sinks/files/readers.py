"""Columns of every type that a format keeps, and what reads them back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import duckdb
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.orc as paorc
import pyarrow.parquet as pq
from pyarrow import types

from twopc.testing.values import nested
from twopc_files.kept_types import KINDS

Reader = Callable[[str, pa.Schema], pa.Table]

EXAMPLES: dict[str, list[pa.DataType]] = {
    "boolean": [pa.bool_()],
    "int8 to int64": [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    "uint8 to uint64": [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    "float32, float64": [pa.float32(), pa.float64()],
    "decimal128": [pa.decimal128(38, 10), pa.decimal128(1, 0), pa.decimal128(38, 38), pa.decimal128(18, 2)],
    "string, large_string": [pa.string(), pa.large_string()],
    "binary, large_binary, fixed_size_binary": [pa.binary(), pa.large_binary(), pa.binary(3)],
    "date32": [pa.date32()],
    "time32, time64 of microseconds": [pa.time32("s"), pa.time32("ms"), pa.time64("us")],
    "timestamp with a zone, to microseconds": [pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us")]
    + [pa.timestamp("us", "+05:30"), pa.timestamp("us", "America/New_York")],
    "timestamp without a zone, to microseconds": [pa.timestamp(unit) for unit in ("s", "ms", "us")],
}


def kept(format: str) -> pa.Schema:
    """Return columns of examples of every type that ``format`` keeps, and of nested ones."""
    found = [type_ for kind in KINDS if format in kind.formats.split() for type_ in EXAMPLES.get(kind.name, ())]
    # Python can't show the first and the last day of the years in every zone. JSON refuses these.
    flat = [t for t in found if format == "json" or not types.is_timestamp(t) or t.tz in (None, "UTC")]
    keys = [pa.int32()] if format == "json" else [pa.int32(), pa.date32(), pa.binary()]
    every = [*flat, *([] if format == "csv" else nested(*flat, keys=keys))]
    return pa.schema([("value", pa.string()), *((f"c{number}", type_) for number, type_ in enumerate(every))])


def in_duckdb(type_: pa.DataType, is_base64: bool) -> str:  # noqa: PLR0911  # one line per kind
    """Return DuckDB's name of a type."""
    if types.is_list(type_):
        return f"{in_duckdb(type_.value_type, is_base64)}[]"
    if types.is_struct(type_):
        fields = (f'"{field.name}" {in_duckdb(field.type, is_base64)}' for field in type_)
        return f"STRUCT({', '.join(fields)})"
    if types.is_map(type_):
        return f"MAP({in_duckdb(type_.key_type, is_base64)}, {in_duckdb(type_.item_type, is_base64)})"
    if types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if types.is_timestamp(type_):
        return "TIMESTAMP" if type_.tz is None else "TIMESTAMPTZ"
    if types.is_time(type_):
        return "TIME"
    names = {
        "bool": "BOOLEAN",
        "float": "FLOAT",
        "double": "DOUBLE",
        "date32[day]": "DATE",
        "int8": "TINYINT",
        "int16": "SMALLINT",
        "int32": "INTEGER",
        "int64": "BIGINT",
        "uint8": "UTINYINT",
        "uint16": "USMALLINT",
        "uint32": "UINTEGER",
        "uint64": "UBIGINT",
    }
    return names.get(str(type_), "BLOB" if "binary" in str(type_) and not is_base64 else "VARCHAR")


def by_duckdb(format: str, path: str, schema: pa.Schema) -> pa.Table:
    columns = ", ".join(f"\"{field.name}\": '{in_duckdb(field.type, format == 'json')}'" for field in schema)
    sql = {
        "parquet": f"read_parquet('{path}')",
        "json": f"read_json('{path}', columns = {{{columns}}}, format = 'newline_delimited')",
        "csv": f"read_csv('{path}', columns = {{{columns}}}, nullstr = '\\N', allow_quoted_nulls = false,"
        " delim = ',', quote = '\"', escape = '\"', new_line = '\\n', header = true, auto_detect = false)",
    }
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.sql(f"FROM {sql[format]}").to_arrow_table()


def by_pyarrow(format: str, path: str, schema: pa.Schema) -> pa.Table:
    if format != "csv":
        return {"parquet": pq.read_table, "orc": paorc.read_table}[format](path)
    zoned = {field.name: field.type for field in schema}
    columns = {n: pa.timestamp(t.unit, "UTC") if types.is_timestamp(t) and t.tz else t for n, t in zoned.items()}
    return pacsv.read_csv(
        path,
        parse_options=pacsv.ParseOptions(newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(
            column_types=columns, null_values=["\\N"], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


READERS: dict[str, dict[str, Reader]] = {
    "parquet": {"pyarrow": partial(by_pyarrow, "parquet"), "DuckDB": partial(by_duckdb, "parquet")},
    "json": {"DuckDB": partial(by_duckdb, "json")},
    "csv": {"pyarrow": partial(by_pyarrow, "csv"), "DuckDB": partial(by_duckdb, "csv")},
    "orc": {"pyarrow": partial(by_pyarrow, "orc")},
}
