"""Other readers see each batch as a whole, and once: DuckDB, pandas and polars."""

import math
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, TruncateTransform
from pyiceberg.types import DoubleType, FloatType, NestedField, StructType

from tests.sinks.iceberg.conftest import Place, on_disk
from tests.sinks.iceberg.test_contract import SCHEMA
from tests.support.duckdb_extension import load
from tests.support.typed_records import typed

SPEC = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(4), "value_bucket"),
    PartitionField(7, 1001, DayTransform(), "at_day"),
    PartitionField(2, 1002, TruncateTransform(8), "whole_eights"),
)


def duckdb_reads(place: Place, select: str = "*", where: str = "true") -> pa.Table:
    with duckdb.connect() as connection:
        load(connection, "avro", "iceberg")
        scan = f"iceberg_scan('{on_disk(place.table().metadata_location)}')"
        return connection.execute(f"SELECT {select} FROM {scan} WHERE {where}").to_arrow_table()  # noqa: S608


def polars_reads(place: Place, reader: Any = "native") -> pa.Table:
    return pl.scan_iceberg(place.table(), reader_override=reader).collect().to_arrow()


@pytest.mark.long
def test_duckdb_reads_what_was_written_and_merged(place: Place) -> None:
    place.create(SCHEMA, SPEC, properties={"commit.manifest.min-count-to-merge": "2"})
    written = typed()
    for number in range(3):
        place.run(number, written.slice(number, 5) if number < 2 else written.slice(7))
    read = duckdb_reads(place)
    ours = place.table().scan().to_arrow()
    assert read.num_rows == ours.num_rows == 10 + written.num_rows - 7
    for name in ("value", "whole", "flag", "day", "amount", "raw"):
        assert sorted(map(str, read[name].to_pylist())) == sorted(map(str, ours[name].to_pylist())), name


@pytest.mark.long
@pytest.mark.parametrize("written", [0.0, -0.0])
@pytest.mark.parametrize("where", ["f = 0", "f >= 0", "f <= 0", "f = '-0.0'::DOUBLE", "f <= '-0.0'::DOUBLE"])
def test_duckdb_finds_a_zero_of_either_sign(place: Place, written: float, where: str) -> None:
    place.create(Schema(NestedField(1, "f", DoubleType())))
    place.run(0, {"f": [written]})
    assert duckdb_reads(place, where=where).num_rows == 1


def test_duckdb_finds_nan_as_the_greatest_number(place: Place) -> None:
    place.create(
        Schema(NestedField(1, "f", DoubleType()), NestedField(2, "n", StructType(NestedField(3, "f", FloatType()))))
    )
    of_struct = pa.array([{"f": 1.0}, {"f": math.nan}], pa.struct([("f", pa.float32())]))
    place.run(0, {"f": [1.0, math.nan], "n": of_struct})
    for where in ("f > 100", "f = 'NaN'", "n.f > 100"):
        assert duckdb_reads(place, where=where).num_rows == 1, where


@pytest.mark.long
@pytest.mark.parametrize("reader", ["native", "pyiceberg"])
def test_polars_reads_what_was_written_with_either_reader(reader: Any, place: Place) -> None:
    place.create(SCHEMA, SPEC)
    written = typed()
    place.run(0, written)
    read = polars_reads(place, reader)
    for name in written.schema.names:
        assert sorted(map(str, read[name].to_pylist())) == sorted(map(str, written[name].to_pylist())), name


def test_duckdb_pandas_and_polars_see_nothing_before_the_commit_and_all_of_it_after(place: Place) -> None:
    batch = place.decided(["a"], ["b"], ["c"])
    place.table().append(pa.table({"value": ["old"]}))
    assert duckdb_reads(place)["value"].to_pylist() == ["old"]
    assert polars_reads(place)["value"].to_pylist() == ["old"]
    place.sink().commit_batch(0, batch)
    assert sorted(duckdb_reads(place)["value"].to_pylist()) == ["a", "b", "c", "old"]
    assert sorted(polars_reads(place)["value"].to_pylist()) == ["a", "b", "c", "old"]
    assert sorted(place.table().scan().to_pandas()["value"]) == ["a", "b", "c", "old"]
