"""What is read back is what was written, in both formats; and what a format can't write is refused."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twopc import Committable, Participant, Round
from twopc.errors import SchemaMismatch
from twopc_files import parquet
from twopc_files.formats import check_schema
from twopc_files.json_lines import RECORDS_AT_ONCE, JsonLines
from twopc_files.parquet import Parquet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twopc_files.sink import FileSink

MakeSink: TypeAlias = "Callable[..., FileSink]"
PreCommit: TypeAlias = "Callable[..., Committable]"

NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 1, tzinfo=dt.timezone.utc)


def committed(folder: Path) -> Path:
    [file] = (path for path in folder.iterdir() if path.is_file())
    return file


def json_of(column: pa.Array, folder: Path, make_sink: MakeSink, pre_commit: PreCommit) -> list[Any]:
    make_sink().commit(pre_commit(pa.record_batch({"c": column}), format="json"))
    return [json.loads(line)["c"] for line in committed(folder).read_text().splitlines()]


@pytest.mark.parametrize(
    ("column", "written"),
    [
        (pa.array([1, None]), [1, None]),
        (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (pa.array([1.5, None, float("nan")]), [1.5, None, "NaN"]),
        (pa.array([float("inf"), -float("inf")], pa.float32()), ["Infinity", "-Infinity"]),
        (pa.array(['ä\n"', None]), ['ä\n"', None]),
        (pa.array([b"\x00\xff", None]), ["AP8=", None]),
        (pa.array([Decimal("12.30"), None], pa.decimal128(38, 2)), ["12.30", None]),
        (pa.array([Decimal("1e-10")], pa.decimal128(38, 10)), ["0.0000000001"]),
        (pa.array([dt.date(2024, 5, 1), None]), ["2024-05-01", None]),
        (pa.array([dt.time(12, 0, 1)]), ["12:00:01"]),
        (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")), ["2024-05-01T12:00:00.000001"]),
        (pa.array([NOON], pa.timestamp("us", "UTC")), ["2024-05-01T12:00:00.000001+00:00"]),
        (pa.array([NOON], pa.timestamp("us", "Europe/Berlin")), ["2024-05-01T14:00:00.000001+02:00"]),
        (pa.array([[b"a", None], None]), [["YQ==", None], None]),
        (pa.array([[1, 2], []]), [[1, 2], []]),
        (pa.array([{"d": Decimal("1.0")}, None]), [{"d": "1.0"}, None]),
        (pa.array([{"i": 1, "n": {"b": b"a"}}]), [{"i": 1, "n": {"b": "YQ=="}}]),
        (pa.array([[{"f": float("nan")}]]), [[{"f": "NaN"}]]),
        (pa.array([[("k", b"a"), ("n", None)]], pa.map_(pa.string(), pa.binary())), [{"k": "YQ==", "n": None}]),
        (pa.array([[(7, 1)]], pa.map_(pa.int32(), pa.int32())), [{"7": 1}]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array([None, None]), [None, None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_json_loses_nothing_that_it_has_no_type_for(
    column: pa.Array, written: list[Any], folder: Path, make_sink: MakeSink, pre_commit: PreCommit
) -> None:
    assert json_of(column, folder, make_sink, pre_commit) == written


def test_a_map_with_one_key_twice_fails_and_loses_no_entry(pre_commit: PreCommit) -> None:
    twice = pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int32()))
    with pytest.raises(ValueError, match="one key twice"):
        pre_commit(pa.record_batch({"c": twice}), format="json")


def test_a_long_record_batch_becomes_json_in_parts_and_in_order(
    folder: Path, make_sink: MakeSink, pre_commit: PreCommit
) -> None:
    values = list(range(2 * RECORDS_AT_ONCE + 7))
    assert json_of(pa.array(values), folder, make_sink, pre_commit) == values


def test_parquet_keeps_types_nullability_and_values(folder: Path, make_sink: MakeSink, pre_commit: PreCommit) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("price", pa.decimal128(38, 2)),
            pa.field("tags", pa.list_(pa.struct([pa.field("k", pa.string()), pa.field("v", pa.binary())]))),
            pa.field("more", pa.map_(pa.string(), pa.float64())),
        ]
    )
    tags = [{"k": "a", "v": b"\0"}]
    rows = [
        {"id": 1, "at": NOON, "price": Decimal("12.30"), "tags": tags, "more": [("x", 1.5)]},
        {"id": 2, "at": None, "price": None, "tags": None, "more": None},
    ]
    [batch] = pa.Table.from_pylist(rows, schema).to_batches()
    make_sink().commit(pre_commit(batch))
    table = pq.read_table(committed(folder))
    assert table.schema.equals(schema)
    assert table.to_pylist() == rows


@pytest.mark.parametrize("compression", parquet.COMPRESSIONS)
def test_every_compression_that_is_offered_can_be_read(
    compression: str, folder: Path, make_sink: MakeSink, pre_commit: PreCommit
) -> None:
    make_sink().commit(pre_commit(compression=compression))
    column = pq.ParquetFile(committed(folder)).metadata.row_group(0).column(0)
    assert column.compression == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    assert pq.read_table(committed(folder)).num_rows == 2


def test_parquet_is_written_while_records_come_and_small_batches_share_a_row_group(
    folder: Path, make_sink: MakeSink
) -> None:
    sink = make_sink(compression="none", row_group_bytes="10000")
    with Participant({"orders": sink}, Round(1, 0), 0) as participant:
        before = pa.total_allocated_bytes()
        for start in range(0, 100_000, 100):
            participant.write("orders", pa.record_batch({"n": pa.array(range(start, start + 100))}))
            assert pa.total_allocated_bytes() - before < 1_000_000
        [staged] = (folder / "_twopc").iterdir()
        assert staged.stat().st_size > 100_000
        sink.commit(participant.pre_commit()["orders"])
    file = pq.ParquetFile(committed(folder))
    assert file.metadata.num_row_groups < 100
    assert file.read()["n"].to_pylist() == list(range(100_000))


UNION = pa.sparse_union([pa.field("a", pa.int32()), pa.field("b", pa.string())])


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        (Parquet(), UNION),
        (Parquet(), pa.list_(UNION)),
        (Parquet(), pa.struct([])),
        (Parquet(), pa.month_day_nano_interval()),
        (JsonLines(), UNION),
        (JsonLines(), pa.list_(UNION)),
        (JsonLines(), pa.duration("us")),
        (JsonLines(), pa.timestamp("ns")),
        (JsonLines(), pa.struct([pa.field("t", pa.timestamp("ns"))])),
        (JsonLines(), pa.map_(pa.binary(), pa.int32())),
        (JsonLines(), pa.struct([pa.field("a", pa.int32()), pa.field("a", pa.int32())])),
        (JsonLines(), pa.float16()),
    ],
    ids=str,
)
def test_a_type_that_the_format_cant_write_is_refused_by_the_name_of_its_column(kind: Any, type_: pa.DataType) -> None:
    schema = pa.schema([pa.field("fine", pa.int64()), pa.field("odd one", type_)])
    with pytest.raises(SchemaMismatch, match=r"column 'odd one'.*Nothing was written"):
        check_schema(kind, schema)


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_schema_without_columns_or_with_one_twice_is_refused(kind: str, make_sink: MakeSink) -> None:
    with pytest.raises(SchemaMismatch, match="no column at all"):
        make_sink(format=kind).validate(pa.schema([]))
    with pytest.raises(SchemaMismatch, match="column 'id' is there 2 times"):
        make_sink(format=kind).validate(pa.schema([("id", pa.int64()), ("x", pa.int64()), ("id", pa.int8())]))


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_the_types_that_spark_has_are_accepted(kind: str, make_sink: MakeSink) -> None:
    numbers = [
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(38, 18),
    ]
    plain = [pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")]
    nested = [pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.list_(pa.int32())))]))]
    types = [*numbers, *plain, *nested, pa.null()]
    make_sink(format=kind).validate(pa.schema([(f"c{n}", type_) for n, type_ in enumerate(types)]))
