"""Which Arrow types a column takes, and that readers find a record by its value."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.sinks.delta.conftest import Place
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
