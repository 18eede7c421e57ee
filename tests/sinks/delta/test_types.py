"""Which Arrow types a column takes, and that every reader finds each value as it was given."""

from __future__ import annotations

import datetime as dt
import math
import re
import tempfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sinks.delta.conftest import Place
from tests.sinks.delta.test_readers import READERS, Reader
from twopc_delta.columns import _fits

README = Path(__file__).parents[3] / "plugins" / "delta" / "README.md"

COLUMNS: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL(20, 4)": pa.decimal128(20, 4),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}

ARROW = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4), pa.date32(), pa.date64()),
    *(pa.time32("ms"), pa.time64("us"), pa.duration("us"), pa.month_day_nano_interval()),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Paris")),
    *(pa.decimal128(20, 4), pa.decimal128(18, 2), pa.decimal128(20, 5), pa.decimal128(21, 4), pa.decimal256(20, 4)),
    *(pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.string()), pa.struct({"x": pa.string()})),
    *(pa.map_(pa.string(), pa.string()), pa.run_end_encoded(pa.int32(), pa.string())),
]


def test_a_column_takes_exactly_the_types_that_the_readme_names() -> None:
    rows = re.findall(r"^\| `([A-Z_]+(?:\(.*?\))?)` \| (`.*`) \|$", README.read_text(), re.MULTILINE)
    documented = {name: set(re.findall(r"`([^`]+)`", taken)) for name, taken in rows}
    assert documented == {name: {str(each) for each in ARROW if _fits(each, type)} for name, type in COLUMNS.items()}


# Spark writes years outside of 1 to 9999, too, and neither Python nor a reader of Spark's in Python has them.
DATES = st.dates() | st.sampled_from([dt.date.min, dt.date.max, dt.date(1582, 10, 4), dt.date(1582, 10, 15)])
FIRST, LAST = dt.datetime.min, dt.datetime.max  # noqa: DTZ901  # the zone is added where the type has one
MOMENTS = st.datetimes() | st.sampled_from([FIRST, LAST, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)])  # noqa: DTZ001
TEXTS = st.text(max_size=40) | st.sampled_from(
    ["", "\0", "'", '"', "\\", "z" * 32 + "\U0010ffff", "e\u0301", "🐎", "x" * 10_000, "NULL", "NaN", " "]
)
FLOATS = [0.0, -0.0, math.nan, math.inf, -math.inf]


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.sampled_from([-(2 ** (bits - 1)), -1, 0])


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): whole(8),
    pa.int16(): whole(16),
    pa.int32(): whole(32),
    pa.int64(): whole(64),
    pa.float32(): st.floats(width=32) | st.sampled_from([*FLOATS, 2.0**-149]),
    pa.float64(): st.floats() | st.sampled_from([*FLOATS, 5e-324]),
    pa.decimal128(20, 4): st.decimals(Decimal(-(10**16)) + 1, Decimal(10**16) - 1, places=4),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=20),
    pa.date32(): DATES,
    pa.timestamp("us", "UTC"): MOMENTS.map(lambda at: at.replace(tzinfo=dt.timezone.utc)),
    pa.timestamp("us"): MOMENTS,
}
NESTED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.list_(pa.list_(pa.string())): st.lists(st.none() | st.lists(st.none() | TEXTS, max_size=2), max_size=2),
    pa.struct({"x": pa.int64(), "y": pa.struct({"z": pa.string()})}): st.fixed_dictionaries(
        {"x": st.none() | whole(64), "y": st.none() | st.fixed_dictionaries({"z": st.none() | TEXTS})}
    ),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(TEXTS, st.none() | whole(64), max_size=2).map(
        lambda found: [*found.items()]
    ),
}
TYPES = {**VALUES, **NESTED}
SCHEMA = pa.schema({"id": pa.int64(), **{f"c{number}": type for number, type in enumerate(TYPES)}})
RECORDS = st.lists(st.tuples(*(st.none() | values for values in TYPES.values())), min_size=1, max_size=8)


def plain(value: Any) -> Any:
    """A value as each reader has it: polars has no maps, and each has another zone and other types of bytes."""
    if isinstance(value, dict):
        values = [plain(each) for each in value.values()]
        return tuple(values) if [*value] == ["key", "value"] else {**dict(zip(value, values, strict=True))}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(each) for each in value)
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.timezone.utc).replace(tzinfo=None) if value.tzinfo else value
    return bytes(value) if isinstance(value, bytearray) else value


def written(records: list[tuple[Any, ...]], folder: str) -> tuple[Place, pa.RecordBatch]:
    columns = [pa.array(range(len(records)), pa.int64())]
    columns += [pa.array([record[at] for record in records], type) for at, type in enumerate(TYPES)]
    batch = pa.record_batch(columns, schema=SCHEMA)
    place = Place(folder)
    place.create(SCHEMA)
    place.sink().commit_batch(0, [place.pre_commit(batch)])
    return place, batch


def require_equal(place: Place, batch: pa.RecordBatch, readers: Sequence[Reader] = READERS) -> None:
    for read in readers:
        found = read(place).sort_by("id")
        for name in SCHEMA.names:
            told = [repr(plain(value)) for value in found[name].to_pylist()]
            assert told == [repr(plain(value)) for value in batch[name].to_pylist()], (read, name)


EDGES: list[tuple[Any, ...]] = [
    tuple(None for _ in TYPES),
    (
        *(True, -128, -(2**15), -(2**31), -(2**63), -0.0, math.nan, Decimal("-9999999999999999.9999"), "", b""),
        *(dt.date.min, FIRST.replace(tzinfo=dt.timezone.utc), FIRST, [], None, []),
    ),
    (
        *(False, 127, 2**15 - 1, 2**31 - 1, 2**63 - 1, math.inf, -0.0, Decimal("0.0001"), "\0'\"\\🐎", b"\0\xff"),
        *(dt.date.max, LAST.replace(tzinfo=dt.timezone.utc), LAST, [[None, "a"], None, []]),
        *({"x": None, "y": {"z": ""}}, [("", None), ("k", -1)]),
    ),
]


def test_every_reader_finds_the_edges_of_each_type_as_they_were_given(tmp_path: Path) -> None:
    require_equal(*written(EDGES, str(tmp_path / "edges")))


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
@given(RECORDS)
def test_every_reader_finds_each_value_as_it_was_given(records: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        require_equal(*written(records, str(Path(folder, "drawn"))))


@pytest.mark.parametrize(
    ("type", "values"),
    [
        (pa.bool_(), [True, False, None]),
        (pa.string(), ["a", "b", "c" * 32 + "\U0010ffff"]),
        (pa.string(), ["a", "\U0010ffff" * 40]),
        (pa.int64(), [1, 2**63 - 1]),
        (pa.date32(), [dt.date.min, dt.date.max]),
        (pa.decimal128(38, 10), [Decimal("1234567890123456789.0123456789"), Decimal(-1)]),
        (pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, 0, 0, 0, 999_999, tzinfo=dt.timezone.utc), None]),
    ],
)
def test_deltalakes_filters_skip_no_file_that_has_the_value(
    tmp_path: Path, type: pa.DataType, values: list[Any]
) -> None:
    """It finds nothing by a column without bounds, beside one that has them."""
    place = Place(str(tmp_path / "filtered"))
    place.create(pa.schema({"x": type, "id": pa.int64()}))
    place.sink().commit_batch(0, [place.pre_commit({"x": pa.array(values, type), "id": [*range(len(values))]})])
    dataset = place.table().to_pyarrow_dataset()
    for number, value in enumerate(values):
        if value is not None:
            where = ds.field("x") == pa.scalar(value, type)
            assert dataset.to_table(filter=where)["id"].to_pylist() == [number]
