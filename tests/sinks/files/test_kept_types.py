"""What a format is said to keep is read back equal, whatever the values; everything else is refused by name."""

from __future__ import annotations

import base64
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import types

from tests.sinks.files.test_read_back import plain
from twopc.bad_records import written_without
from twopc_files.delimited import Csv
from twopc_files.formats import Format, check_schema
from twopc_files.json_lines import JsonLines
from twopc_files.kept_types import KINDS, Kind
from twopc_files.orc import Orc
from twopc_files.parquet import Parquet

README = Path(__file__).parents[3] / "plugins" / "files" / "README.md"
FORMATS: dict[str, Format] = {"parquet": Parquet(), "json": JsonLines(), "csv": Csv(null_value="\\N"), "orc": Orc()}

DAYS = st.one_of(st.sampled_from([-719_162, -141_427, -1, 0, 2_932_896]), st.integers(-800_000, 3_000_000))

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


def flat_types(format: str) -> list[pa.DataType]:
    """Return examples of what ``format`` keeps, besides nested types."""
    found = [type_ for kind in KINDS if format in kind.formats.split() for type_ in EXAMPLES.get(kind.name, ())]
    # Python can't show the first and the last day of the years in every zone. JSON refuses these.
    return [t for t in found if format == "json" or not types.is_timestamp(t) or t.tz in (None, "UTC")]


def any_type(format: str) -> st.SearchStrategy[pa.DataType]:
    flat = st.sampled_from(flat_types(format))
    if format == "csv":
        return flat
    keys = [pa.string(), pa.int32()] if format == "json" else [pa.string(), pa.int32(), pa.date32(), pa.binary()]
    return st.recursive(
        flat,
        lambda inner: st.one_of(
            inner.map(pa.list_),
            st.tuples(inner, inner).map(lambda pair: pa.struct([("a", pair[0]), ("b", pair[1])])),
            st.tuples(st.sampled_from(keys), inner).map(lambda pair: pa.map_(*pair)),
        ),
        max_leaves=4,
    )


def values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Draw Python values of ``type_``, with the edges of its range, and null."""
    return st.one_of(st.none(), _present(type_))


def _present(type_: pa.DataType) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911  # one line per kind
    if types.is_boolean(type_):
        return st.booleans()
    if types.is_integer(type_):
        signed = types.is_signed_integer(type_)
        most = 2 ** (type_.bit_width - signed) - 1
        return st.integers(-most - 1 if signed else 0, most)
    if types.is_floating(type_):
        return st.floats(width=type_.bit_width)
    if types.is_decimal(type_):
        most = 10**type_.precision - 1
        return st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-type_.scale, Context(prec=38)))
    if types.is_fixed_size_binary(type_):
        return st.binary(min_size=type_.byte_width, max_size=type_.byte_width)
    if types.is_binary(type_) or types.is_large_binary(type_):
        return st.binary(max_size=8)
    if types.is_date(type_):
        return DAYS
    if types.is_time(type_):
        return st.integers(0, 86_400 * {"s": 1, "ms": 10**3, "us": 10**6}[type_.unit] - 1)
    if types.is_timestamp(type_):
        per_s = {"s": 1, "ms": 10**3, "us": 10**6}[type_.unit]
        return st.tuples(DAYS, st.integers(0, 86_400 * per_s - 1)).map(lambda at: at[0] * 86_400 * per_s + at[1])
    if types.is_list(type_):
        return st.lists(values(type_.value_type), max_size=3)
    if types.is_struct(type_):
        return st.fixed_dictionaries({field.name: values(field.type) for field in type_})
    if types.is_map(type_):
        return st.lists(st.tuples(_present(type_.key_type), values(type_.item_type)), max_size=3)
    return st.one_of(
        st.text(max_size=12), st.sampled_from(["", "\\N", "null", "NaN", "'\"", "\r\n", "a\\", "e\u0301", "x" * 1000])
    )


@st.composite
def records(draw: st.DrawFn, format: str) -> pa.RecordBatch:
    """Draw a record batch that is a slice of a longer one."""
    chosen = draw(st.lists(any_type(format), min_size=1, max_size=4))
    rows = draw(st.integers(1, 5))
    columns = {f"c{n}": draw(st.lists(values(type_), min_size=rows, max_size=rows)) for n, type_ in enumerate(chosen)}
    arrays = [pa.array(column, type_) for column, type_ in zip(columns.values(), chosen, strict=True)]
    numbers = pa.array(range(rows), pa.int64())
    return pa.record_batch([numbers, *arrays], names=["id", *columns]).slice(draw(st.integers(0, rows - 1)))


def written(format: str, batch: pa.RecordBatch, folder: Path) -> tuple[str, pa.Table]:
    """Write what is not refused. Return the file, and the records in it."""
    kind, kept = FORMATS[format], list[pa.RecordBatch]()
    check_schema(kind, batch.schema)
    check = kind.checker(batch.schema)

    def keep(part: pa.RecordBatch) -> None:
        check(part)
        kept.append(part)

    refused = list(written_without(keep, batch))
    assert len(refused) + sum(part.num_rows for part in kept) == batch.num_rows
    table = pa.Table.from_batches(kept, batch.schema)
    path = folder / f"part{kind.extension}"
    with path.open("wb") as file:
        writer = kind.open(file, batch.schema)
        for part in kept:
            writer.write(part)
        writer.finish()
    return str(path), table


def rows_of(table: pa.Table, is_base64: bool = False) -> str:
    """Values in a form in which NaN equals NaN and a moment is one in any zone."""
    return repr([_without_bytes(plain(row), is_base64) for row in table.sort_by("id").to_pylist()])


def _without_bytes(value: Any, is_base64: bool) -> Any:
    match value:
        case bytes() if is_base64:
            return base64.b64encode(value).decode()
        case dict():
            return {key: _without_bytes(item, is_base64) for key, item in value.items()}
        case list() | tuple():
            return [_without_bytes(item, is_base64) for item in value]
    return value


def in_duckdb(type_: pa.DataType, is_base64: bool) -> str:  # noqa: PLR0911  # one line per kind
    """Return DuckDB's name of a type."""
    if types.is_list(type_):
        return f"{in_duckdb(type_.value_type, is_base64)}[]"
    if types.is_struct(type_):
        return f"STRUCT({', '.join(f'{field.name} {in_duckdb(field.type, is_base64)}' for field in type_)})"
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
    columns = ", ".join(f"{field.name}: '{in_duckdb(field.type, format == 'json')}'" for field in schema)
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


@pytest.mark.parametrize("examples", [20, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "format", ["parquet", *(pytest.param(name, marks=pytest.mark.long) for name in ("json", "csv", "orc"))]
)
def test_what_is_written_is_read_back_equal(format: str, examples: int, tmp_path: Path) -> None:
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(records(format))
    def check(batch: pa.RecordBatch) -> None:
        path, kept = written(format, batch, tmp_path)
        if kept.num_rows and format != "json":
            assert rows_of(by_pyarrow(format, path, kept.schema)) == rows_of(kept)
        if kept.num_rows and format != "orc":
            is_base64 = format == "json"
            assert rows_of(by_duckdb(format, path, kept.schema)) == rows_of(kept, is_base64)

    check()


def test_the_readme_has_the_table() -> None:
    assert table() in README.read_text()


def table() -> str:
    """Return the table of the README."""
    formats = ["parquet", "json", "csv", "orc", "text"]
    lines = [f"| column | {' | '.join(formats)} | in the others |", f"| --- | {'--- | ' * len(formats)}--- |"]
    for kind in KINDS:
        kept = ["yes" if format in kind.formats.split() else "" for format in formats]
        lines.append(f"| {kind.name} | {' | '.join(kept)} | {_instead(kind)} |")
    return "\n".join(lines)


def _instead(kind: Kind) -> str:
    return f"`{kind.instead}`" if kind.instead.endswith("(c)") or kind.instead.startswith("CAST") else kind.instead


if __name__ == "__main__":
    print(table())  # noqa: T201  # to paste into the README
