"""Readers other than Spark see each batch as a whole, and once: DuckDB, pandas and polars."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.sinks.delta.conftest import Place
from tests.support.duckdb_extension import load
from tests.support.typed_records import typed
from twopc import Round

pytestmark = pytest.mark.in_turn("read")

Reader = Callable[[Place], pa.Table]


def by_duckdb(place: Place, where: str = "true") -> pa.Table:
    with duckdb.connect() as connection:
        load(connection, "delta")
        query = f"SELECT * FROM delta_scan('{place.path}') WHERE {where}"  # noqa: S608  # of the test
        return connection.execute(query).to_arrow_table()


def by_pandas(place: Place) -> pa.Table:
    # By default, pandas would make floats of whole numbers beside a null.
    frame = place.table().to_pandas(types_mapper=pd.ArrowDtype)
    return pa.Table.from_pandas(frame, preserve_index=False)


def by_polars(place: Place) -> pa.Table:
    return pl.read_delta(place.path).to_arrow()


READERS: tuple[Reader, ...] = (by_duckdb, by_pandas, by_polars)


@pytest.fixture(params=READERS, ids=lambda reader: reader.__name__)
def read(request: pytest.FixtureRequest) -> Reader:
    found: Reader = request.param
    return found


def test_a_reader_sees_nothing_before_the_commit_and_all_of_it_after(place: Place, read: Reader) -> None:
    place.append("old")
    batch = [place.pre_commit([value, value * 2], partition=number) for number, value in enumerate("abc")]
    lost = place.vote(["lost"], partition=7)
    assert read(place)["value"].to_pylist() == ["old"]
    for _ in range(2):
        place.sink().commit_batch(0, batch)
    expected = ["a", "aa", "b", "bb", "c", "cc", "old"]
    assert sorted(read(place)["value"].to_pylist()) == expected
    place.sink().abort(lost)
    assert sorted(read(place)["value"].to_pylist()) == expected


@pytest.mark.long
def test_a_reader_finds_every_batch_behind_checkpoints(place: Place, read: Reader) -> None:
    for batch_id in range(12):
        place.sink().commit_batch(batch_id, [place.pre_commit([f"{batch_id}"], Round(1, batch_id))])
    assert sorted(map(int, read(place)["value"].to_pylist())) == list(range(12))


def test_what_a_killed_trial_has_left_in_the_log_disturbs_no_reader(place: Place, read: Reader) -> None:
    place.sink().commit_batch(0, [place.pre_commit(["a"])])
    for name in (".left.probe", ".left.aside"):
        (place.log / name).write_bytes(b"")
    assert read(place)["value"].to_pylist() == ["a"]
    place.append("b")
    place.table().create_checkpoint()
    place.table().cleanup_metadata()
    assert sorted(read(place)["value"].to_pylist()) == ["a", "b"]


def test_a_reader_has_every_value_of_partitions_as_it_was_written(tmp_path: Path, read: Reader) -> None:
    place = Place(str(tmp_path / "typed"))
    written = typed()
    written = written.filter(pc.not_equal(written["value"], "").fill_null(True))  # an empty text is no partition
    place.create(written.schema, ("value", "day"))
    place.sink().commit_batch(0, [place.pre_commit(written)])
    found = read(place)
    for name in ("value", "whole", "flag", "day", "amount", "raw"):
        assert sorted(map(str, found[name].to_pylist())) == sorted(map(str, written[name].to_pylist())), name


@pytest.mark.long
def test_duckdb_skips_no_file_that_has_what_it_looks_for(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "skipped"))
    place.create(pa.schema({"value": pa.string(), "f": pa.float64()}))
    long = "z" * 32 + "\U0010ffff"
    for number, value in enumerate(("a", "z" * 40, long)):
        records = {"value": [value], "f": [(1.0, math.nan, -0.0)[number]]}
        place.sink().commit_batch(number, [place.pre_commit(records, Round(1, number))])
    for value in ("a", "z" * 40, long):
        assert by_duckdb(place, f"value = '{value}'").num_rows == 1
    assert by_duckdb(place, "f > 100").num_rows == 1  # NaN is greater than any number to DuckDB, too


def test_duckdb_finds_nan_in_a_struct_whose_path_is_the_name_of_another_column(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "nan"))
    schema = pa.schema({"a": pa.struct({"b": pa.float64()}), "a.b": pa.int64()})
    place.create(schema)
    records = pa.record_batch([[{"b": 1.0}, {"b": math.nan}], [1, 2]], schema=schema)
    place.sink().commit_batch(0, [place.pre_commit(records)])
    assert by_duckdb(place, "a.b > 100").num_rows == 1


@pytest.mark.variants
@pytest.mark.parametrize("written", [0.0, -0.0])
@pytest.mark.parametrize("where", ["f = 0", "f >= 0", "f <= 0", "f = '-0.0'::DOUBLE", "f <= '-0.0'::DOUBLE"])
def test_duckdb_finds_a_zero_of_either_sign(tmp_path: Path, written: float, where: str) -> None:
    place = Place(str(tmp_path / "zeros"))
    place.create(pa.schema({"f": pa.float64()}))
    place.sink().commit_batch(0, [place.pre_commit({"f": [written]})])
    assert by_duckdb(place, where).num_rows == 1


def test_a_column_with_a_dot_in_its_name_gets_no_bounds_of_a_field_inside_of_another(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "dots"))
    schema = pa.schema({"a": pa.struct({"b": pa.int64()}), "a.b": pa.int64(), "c": pa.int64()})
    place.create(schema)
    written = pa.record_batch([[{"b": 100}], [1], [2]], schema=schema)
    place.sink().commit_batch(0, [place.pre_commit(written)])
    [add] = place.added()
    assert json.loads(add["stats"])["maxValues"] == {"c": 2}
