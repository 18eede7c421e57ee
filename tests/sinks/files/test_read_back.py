"""Spark, DuckDB and pyarrow read back what was written; and folders are named as Spark names them."""

import datetime as dt
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrameReader, SparkSession

from tests.sinks.files.readers import READERS
from tests.support.pyarrow_versions import has_null_text
from twopc.errors import SchemaMismatch
from twopc_files.delimited import Csv
from twopc_files.formats import Format, check_schema
from twopc_files.json_lines import JsonLines
from twopc_files.layout import Layout, split
from twopc_files.lines import Text
from twopc_files.orc import Orc
from twopc_files.parquet import Parquet

UTC = dt.timezone.utc


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with a time zone in which a moment that loses its zone is seen to be another one. Not a new session,
    which would become everybody's."""
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


FLAT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int8()),
        pa.field("ratio", pa.float64()),
        pa.field("single", pa.float32()),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(38, 10)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "Europe/Berlin")),
    ]
)
WALL = pa.field("wall", pa.timestamp("us"))
RAW = pa.field("raw", pa.binary())
NESTED = [
    pa.field("tags", pa.list_(pa.struct([pa.field("k", pa.string()), pa.field("v", pa.decimal128(10, 2))]))),
    pa.field("more", pa.map_(pa.string(), pa.list_(pa.date32()))),
    pa.field(
        "who", pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"))])
    ),
]
NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 1, tzinfo=UTC)
TWICE_IN_BERLIN = dt.datetime(2024, 10, 27, 1, 30, tzinfo=UTC)
NEVER_IN_NEW_YORK = dt.datetime(2024, 3, 10, 2, 30)  # noqa: DTZ001  # a clock on a wall has no zone
NIL: dict[str, Any] = dict.fromkeys([*FLAT.names, "wall", "raw", "tags", "more", "who"])
ROWS: list[dict[str, Any]] = [
    {
        "id": 1, "flag": True, "small": -128, "ratio": 0.1, "single": 1.5, "name": "x", "price": Decimal("1.5"),
        "day": NOON.date(), "at": NOON, "wall": NOON.replace(tzinfo=None), "raw": b"\xff\0",
        "tags": [{"k": "a", "v": Decimal("1.50")}, {"k": None, "v": None}, None],
        "more": [("d", [NOON.date(), None]), ("none", None)],
        "who": {"name": "n", "at": NOON},
    },
    NIL | {"id": 2},
    {
        "id": 3, "flag": False, "small": 127, "ratio": float("nan"), "single": -float("inf"),
        "name": 'a "b"\\, c\n; \\', "price": Decimal("-1234567890123456789012345678.0123456789"),
        "day": dt.date(9999, 12, 31), "at": TWICE_IN_BERLIN, "wall": NEVER_IN_NEW_YORK, "raw": b"",
        "tags": [], "more": [], "who": {"name": "", "at": None},
    },
    NIL | {
        "id": 4, "ratio": float("inf"), "single": 0.1, "name": "", "price": Decimal("1e-10"),
        "day": dt.date(1582, 10, 15), "at": dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    },
    NIL | {"id": 5, "ratio": 1e22, "name": " ä\t😀", "price": Decimal(0), "day": dt.date(1970, 1, 1)},
]  # fmt: skip
ANCIENT = NIL | {"id": 6, "day": dt.date(1, 1, 1), "at": dt.datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC)}

SCHEMAS = {
    "parquet": pa.schema([*FLAT, WALL, RAW, *NESTED]),
    "json": pa.schema([*FLAT, WALL, *NESTED]),
    "orc": pa.schema([*FLAT, RAW, *NESTED]),
    "csv": pa.schema([*FLAT, WALL]),
}
IN_SPARK = (
    "id long, flag boolean, small byte, ratio double, single float, name string, price decimal(38,10), day date,"
    " at timestamp, wall timestamp_ntz, tags array<struct<k string, v decimal(10,2)>>,"
    " more map<string, array<date>>, who struct<name string, at timestamp>"
)


def values_of(table: pa.Table, schema: pa.Schema) -> str:
    """Values and nothing else, in a form in which NaN equals NaN and a moment is one in any zone."""
    return repr([plain(row) for row in table.select(schema.names).sort_by("id").to_pylist()])


def plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case dt.datetime():
            at = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value  # of nanoseconds
            return at.astimezone(UTC) if at.tzinfo else at
        case _:
            return value


def write(kind: Format, schema: pa.Schema, rows: list[dict[str, Any]], folder: Path) -> str:
    """A file of two record batches."""
    check_schema(kind, schema)
    table = pa.Table.from_pylist(rows, schema)
    path = folder / f"part{kind.extension}"
    with path.open("wb") as file:
        writer = kind.open(file, schema)
        for batch in table.to_batches(max_chunksize=3):
            writer.write(batch)
        writer.finish()
    return str(path)


def spark_csv(reader: DataFrameReader) -> DataFrameReader:
    return reader.schema(",".join(IN_SPARK.split(",")[:11])).options(
        header=True, escape='"', multiLine=True, nullValue="\\N"
    )


FORMATS: dict[str, list[Any]] = {
    "parquet": [Parquet(), Parquet("zstd", 3, 1000)],
    "json": [JsonLines(), JsonLines("gzip"), JsonLines("zstd")],
    "orc": [Orc(), Orc("snappy")],
    "csv": [Csv(null_value="\\N"), Csv(null_value="\\N", compression="gzip")],
}
CASES = [
    pytest.param(name, kind, id=f"{name}-{kind.compression}", marks=[has_null_text] * (name == "csv"))
    for name, kinds in FORMATS.items()
    for kind in kinds
]


@pytest.mark.variants
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_spark_reads_equal_values(name: str, kind: Format, spark: SparkSession, tmp_path: Path) -> None:
    rows = ROWS if name == "orc" else [*ROWS, ANCIENT]
    path = write(kind, SCHEMAS[name], rows, tmp_path)
    read: dict[str, Callable[[DataFrameReader], Any]] = {
        "parquet": lambda reader: reader.parquet(path),
        "json": lambda reader: reader.schema(IN_SPARK).json(path),
        "orc": lambda reader: reader.orc(path),
        "csv": lambda reader: spark_csv(reader).csv(path),
    }
    table = read[name](spark.read).toArrow()
    assert values_of(table, SCHEMAS[name]) == values_of(pa.Table.from_pylist(rows, SCHEMAS[name]), SCHEMAS[name])


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_duckdb_and_pyarrow_read_equal_values(name: str, kind: Format, tmp_path: Path) -> None:
    # ORC files hold none of the ancient days, and pyarrow reads none of the last ones from them.
    rows = [row for row in [*ROWS, ANCIENT] if name != "orc" or row["id"] not in (3, 6)]
    path = write(kind, SCHEMAS[name], rows, tmp_path)
    expected = values_of(pa.Table.from_pylist(rows, SCHEMAS[name]), SCHEMAS[name])
    for reader, read in READERS[name].items():
        assert values_of(read(path, SCHEMAS[name]), SCHEMAS[name]) == expected, reader


@pytest.mark.parametrize("where", ["ratio > 100", "ratio = 'NaN'", "part.ratio > 100"])
def test_duckdb_finds_nan_as_the_greatest_number(where: str, tmp_path: Path) -> None:
    part = pa.struct([("ratio", pa.float32())])
    schema = pa.schema([("ratio", pa.float64()), ("part", part), ("part.ratio", pa.int64())])
    rows: list[dict[str, Any]] = [
        {"ratio": ratio, "part": {"ratio": ratio}, "part.ratio": 1} for ratio in (1.0, float("nan"), None)
    ]
    path = write(Parquet(), schema, rows, tmp_path)
    with duckdb.connect() as connection:
        assert len(connection.sql(f"FROM read_parquet('{path}') WHERE {where}")) == 1


def test_parquet_keeps_the_schema_with_its_nullability_for_pyarrow_and_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = write(Parquet(), SCHEMAS["parquet"], ROWS, tmp_path)
    assert pq.read_schema(path).equals(SCHEMAS["parquet"])
    types = dict(spark.read.parquet(path).dtypes)
    assert (types["at"], types["wall"], types["price"]) == ("timestamp", "timestamp_ntz", "decimal(38,10)")
    assert types["more"] == "map<string,array<date>>"


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_spark_reads_lines_of_text_as_they_were_also_empty_ones(
    compression: str, spark: SparkSession, tmp_path: Path
) -> None:
    lines = ["first", "", " ä😀\t", '"', ""]
    path = write(Text(compression), pa.schema([("line", pa.string())]), [{"line": line} for line in lines], tmp_path)
    assert [row.value for row in spark.read.text(path).collect()] == lines


def test_with_its_defaults_spark_reads_csv_but_for_quotes_line_breaks_and_backslashes(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    rows: list[dict[str, Any]] = [
        {"id": 1, "name": "a, b; c"},
        {"id": 2, "name": None},
        {"id": 3, "name": "ä\t#"},
        {"id": 4, "name": "p\\q"},
    ]
    path = write(Csv(), schema, rows, tmp_path)
    read = spark.read.schema("id long, name string").option("header", True).csv(path)
    assert [row.asDict() for row in read.collect()] == rows


OF_SPARK_ALONE = {
    "VARIANT": ("parse_json('{\"a\":1}')", "to_json(c)", '{"a":1}'),
    "TIME": ("TIME '12:34:56.5'", "CAST(c AS STRING)", "12:34:56.5"),
    "INTERVAL DAY": ("INTERVAL '1' DAY", "CAST(c AS STRING)", "INTERVAL '1' DAY"),
    "VOID": ("NULL", "CAST(c AS STRING)", None),
}


@has_null_text
@pytest.mark.variants
@pytest.mark.parametrize("type_", OF_SPARK_ALONE)
def test_types_that_only_spark_has_are_refused_with_a_cast_that_works(
    type_: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Without the refusal, Spark reads bytes for a VARIANT, a number for an INTERVAL, and nothing with a TIME."""
    value, cast, text = OF_SPARK_ALONE[type_]
    spark.conf.set("spark.sql.timeType.enabled", "true")
    frame = spark.range(1).selectExpr("id", f"{value} AS c")
    for kind in (Parquet(), JsonLines(), Csv(null_value="\\N"), Orc()):
        with pytest.raises(SchemaMismatch, match=rf"column 'c'.*Instead: {re.escape(cast)}"):
            check_schema(kind, frame.toArrow().schema)
        table = frame.selectExpr("id", f"{cast} AS c").toArrow()
        (tmp_path / kind.extension).mkdir()
        path = write(kind, table.schema, table.to_pylist(), tmp_path / kind.extension)
        reader = spark.read.schema("id long, c string").options(header=True, escape='"', nullValue="\\N")
        assert [row.c for row in reader.format(kind.extension[1:]).load(path).collect()] == [text]


STRINGS = [
    *("plain", "/lead", "a/b", " sp ace ", ".", "..", None, "x=y", "=", "ü", "日本", "😀", "a\x01\x1f", "\x7f\x80"),
    *("100%", "%41", "a:b", "#", "'", '"', "{b}", "[b]", "^", "~`!@$&()_+-;,.<>|", "\\", "\n", "\t\r", "?*", "nil"),
]
COLUMNS = {
    "string": pa.array(STRINGS),
    "boolean": pa.array([True, False, None]),
    "long": pa.array([-1, 0, 2**63 - 1, None]),
    "byte": pa.array([-128, 127], pa.int8()),
    "date": pa.array([dt.date(2024, 5, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "decimal": pa.array([*map(Decimal, ("1.5", "-0.1", "0", "1e-10", "123456789")), None], pa.decimal128(38, 10)),
    "integral decimal": pa.array([Decimal(100), Decimal(0), Decimal(-7)], pa.decimal128(20, 0)),
    "a/b = c%": pa.array([1]),
}  # fmt: skip


@pytest.mark.variants
@pytest.mark.parametrize("column", COLUMNS)
def test_folders_have_the_names_that_spark_gives_them(column: str, spark: SparkSession, tmp_path: Path) -> None:
    values = COLUMNS[column]
    table = pa.table({column: values, "n": pa.array(range(len(values)))})
    spark.createDataFrame(table).coalesce(1).write.mode("overwrite").partitionBy(column).parquet(str(tmp_path))
    of_spark = {
        str(file.parent.relative_to(tmp_path)): pq.ParquetFile(file).read()["n"].to_pylist()
        for file in tmp_path.rglob("*.parquet")
    }
    assert {folder: part["n"].to_pylist() for folder, part in split(table.to_batches()[0], (column,))} == of_spark


@pytest.mark.long
def test_spark_reads_partition_folders_back(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.date32()), ("city", pa.string()), ("n", pa.int64())])
    days = [dt.date(2024, 5, 1), dt.date(2024, 5, 2), None]
    rows: list[dict[str, Any]] = [{"day": day, "city": city, "n": n} for n, city in enumerate(STRINGS) for day in days]
    layout = Layout(partition_by=("day", "city"))
    for folder, part in split(pa.Table.from_pylist(rows, schema).to_batches()[0], layout.partition_by):
        (tmp_path / folder).mkdir(parents=True)
        write(Parquet(), layout.data_schema(schema), part.to_pylist(), tmp_path / folder)
    read = spark.read.schema("n long, day date, city string").parquet(str(tmp_path))
    found = {(row.n, row.day, row.city) for row in read.collect()}
    assert found == {(row["n"], row["day"], row["city"]) for row in rows}
