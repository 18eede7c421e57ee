"""What is written is in each format's own form; and what a format can't hold is refused. See also test_readers."""

import datetime as dt
import errno
import gzip
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest

from tests.sinks.files.conftest import MakeSink, PreCommit
from tests.support.pyarrow_versions import has_null_text
from twopc import Participant, Round
from twopc.errors import SchemaMismatch
from twopc_files import orc, parquet
from twopc_files.delimited import Csv
from twopc_files.formats import Format, check_schema
from twopc_files.json_lines import RECORDS_AT_ONCE, JsonLines
from twopc_files.lines import Text
from twopc_files.orc import Orc
from twopc_files.parquet import Parquet

NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 1, tzinfo=dt.timezone.utc)


def committed(folder: Path) -> Path:
    [file] = (path for path in folder.iterdir() if path.is_file())
    return file


def written(kind: Format, *batches: pa.RecordBatch) -> bytes:
    file = io.BytesIO()
    writer = kind.open(file, batches[0].schema)
    for batch in batches:
        writer.write(batch)
    writer.finish()
    return file.getvalue()


def of(column: pa.Array, **more: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"c": column, **more})


def json_of(column: pa.Array) -> list[Any]:
    return [json.loads(line)["c"] for line in written(JsonLines(), of(column)).splitlines()]


@pytest.mark.parametrize(
    ("column", "expected"),
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
        (pa.array([dt.time(12, 0, 1), dt.time(14, 10, 13, 40_101)]), ["12:00:01", "14:10:13.040101"]),
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
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_json_loses_nothing_that_it_has_no_type_for(column: pa.Array, expected: list[Any]) -> None:
    assert json_of(column) == expected


def test_a_long_record_batch_becomes_json_in_parts_and_in_order() -> None:
    values = list(range(2 * RECORDS_AT_ONCE + 7))
    assert json_of(pa.array(values)) == values


@pytest.mark.parametrize(
    "kind",
    [*map(Parquet, parquet.COMPRESSIONS), *map(Orc, orc.COMPRESSIONS)],
    ids=lambda kind: f"{kind.name}-{kind.compression}",
)
def test_every_compression_that_is_offered_can_be_read(kind: Parquet | Orc) -> None:
    data = io.BytesIO(written(kind, of(pa.array([1, 2]))))
    if isinstance(kind, Parquet):
        compression = pq.ParquetFile(data).metadata.row_group(0).column(0).compression
    else:
        compression = paorc.ORCFile(data).compression
    assert compression == {"none": "UNCOMPRESSED"}.get(kind.compression, kind.compression.upper())
    read = pq.read_table if isinstance(kind, Parquet) else paorc.read_table
    assert read(data)["c"].to_pylist() == [1, 2]


def test_parquet_is_written_while_records_come_and_small_batches_share_a_row_group(
    folder: Path, make_sink: MakeSink
) -> None:
    sink = make_sink(compression="none", row_group_bytes="20000")
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
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


def test_short_record_batches_are_counted_with_the_objects_around_them() -> None:
    """What would be 8 bytes a record takes a hundred times as much until it is written."""
    batch = of(pa.array([1]))
    file = pq.ParquetFile(io.BytesIO(written(Parquet(row_group_bytes=70_000), *[batch] * 1000)))
    assert 10 <= file.metadata.num_row_groups <= 11


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["a", "", None]), ['"a"', '""', ""]),
        (pa.array(['q"u', "a,b", "n\nl"]), ['"q""u"', '"a,b"', '"n\nl"']),
        (pa.array([1, None]), ["1", ""]),
        (pa.array([0.1, float("nan"), None]), ['"0.1"', '"NaN"', ""]),
        (pa.array([float("inf"), -float("inf")], pa.float32()), ['"Infinity"', '"-Infinity"']),
        (pa.array([True, False]), ["true", "false"]),
        (pa.array([Decimal("1.50")], pa.decimal128(38, 2)), ["1.50"]),
        (pa.array([dt.date(1, 1, 1)]), ["0001-01-01"]),
        (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")), ["2024-05-01 12:00:00.000001"]),
        (pa.array([NOON], pa.timestamp("us", "Europe/Berlin")), ["2024-05-01 12:00:00.000001Z"]),
        (pa.array(["a", None]).dictionary_encode(), ['"a"', ""]),
        (pa.array([None]), [""]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_csv_has_one_form_for_each_type(column: pa.Array, expected: list[str]) -> None:
    lines = written(Csv(), of(column, n=pa.array([1] * len(column)))).decode()
    assert lines == '"c","n"\n' + "".join(f"{value},1\n" for value in expected)


@has_null_text
def test_csv_has_one_header_or_none_and_the_delimiter_and_null_that_were_asked_for() -> None:
    batch = of(pa.array(["a", None]), d=pa.array([None, 1]))
    assert written(Csv(), batch, batch).decode() == '"c","d"\n"a",\n,1\n"a",\n,1\n'
    assert written(Csv(header=False, delimiter="\t", null_value="\\N"), batch).decode() == '"a"\t\\N\n\\N\t1\n'


def test_text_is_one_line_a_record() -> None:
    batch = of(pa.array(["a", "", "ä"]))
    assert written(Text(), batch, batch.slice(0, 0), batch.slice(1)).decode() == "a\n\nä\n\nä\n"
    assert written(Text(), of(pa.array(["a", "b"], pa.large_string()))) == b"a\nb\n"


INNER = pa.struct([("b", pa.int64())])


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (INNER, None),
        (pa.list_(INNER), [None, {"b": 1}]),
        (pa.large_list(INNER), [None, {"b": 1}]),
        (pa.list_(INNER, 2), [None, {"b": 1}]),
        (pa.map_(pa.string(), INNER), [("k", None), ("l", {"b": 1})]),
        (pa.struct([("deeper", pa.list_(INNER))]), {"deeper": [None, {"b": 1}]}),
    ],
    ids=str,
)
def test_orc_writes_what_follows_a_null_struct_in_a_struct_as_it_is(type: pa.DataType, value: Any) -> None:
    after = {"b": 1} if type == INNER else value
    batch = pa.record_batch({"s": pa.array([{"a": value}, None, {"a": after}], pa.struct([("a", type)]))})
    for part in (batch, batch.slice(1)):
        assert paorc.read_table(io.BytesIO(written(Orc(), part))).to_pylist() == part.to_pylist()


def test_orc_writes_null_structs_of_a_slice_as_they_are() -> None:
    nested = pa.list_(pa.struct([("name", pa.string())]))
    batch = of(pa.array([{"n": 1, "m": {"o": 2}}, None, None, {"n": 3, "m": None}] * 3))
    batch = batch.append_column("l", pa.array([[{"name": "a"}, None], None, [None], []] * 3, nested))
    parts = [batch.slice(start, length) for start, length in ((0, 2), (2, 1), (3, 7), (10, 2))]
    assert paorc.read_table(io.BytesIO(written(Orc(), *parts))).to_pylist() == batch.to_pylist()


def test_a_committed_file_of_compressed_lines_is_known_by_its_name(
    folder: Path, make_sink: MakeSink, pre_commit: PreCommit
) -> None:
    make_sink().commit(pre_commit(format="json", compression="gzip"))
    assert committed(folder).name.endswith(".json.gz")
    assert gzip.decompress(committed(folder).read_bytes()) == b'{"value":"a"}\n{"value":"b"}\n'


ALL = [Parquet(), Parquet(row_group_bytes=1), JsonLines(), JsonLines("gzip"), Csv(), Csv(compression="zstd"), Orc()]
ALL += [Orc(stripe_bytes=1), Text(), Text("gzip")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("kind", ALL, ids=str)
def test_a_full_disk_is_told_by_its_number_and_the_writer_can_be_let_go_of(kind: Format) -> None:
    batch = of(pa.array([f"{n}" for n in range(100_000)]))
    with open("/dev/full", "wb", buffering=0) as file:  # noqa: PTH123
        writer = kind.open(file, batch.schema)

        def write_and_finish() -> None:
            writer.write(batch)
            writer.finish()

        with pytest.raises(OSError, match="No space left") as told:
            write_and_finish()
        assert told.value.errno == errno.ENOSPC
        writer.discard()
        writer.discard()


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_a_writer_leaves_its_file_open_and_says_nothing_after_it_is_let_go_of(kind: Format) -> None:
    file = io.BytesIO()
    writer = kind.open(file, pa.schema([("c", pa.string())]))
    writer.write(of(pa.array(["a"])))
    before = file.getvalue()
    writer.discard()
    assert file.getvalue() == before
    writer = kind.open(file, pa.schema([("c", pa.string())]))
    writer.write(of(pa.array(["a"])))
    writer.finish()
    assert not file.closed


UNION = pa.sparse_union([pa.field("a", pa.int32()), pa.field("b", pa.string())])
VARIANT = pa.struct(  # as Spark hands it over
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
KEPT_BY_NONE = [
    *(
        VARIANT,
        pa.list_(VARIANT),
        pa.month_day_nano_interval(),
        pa.duration("us"),
        pa.null(),
        pa.float16(),
        pa.date64(),
    ),
    *(pa.time64("ns"), pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.decimal128(5, -2), pa.decimal256(38, 2)),
    *(pa.run_end_encoded(pa.int32(), pa.int64()), pa.list_view(pa.int32()), pa.uuid()),
    pa.map_(pa.struct([("a", pa.int32())]), pa.int32()),
    pa.struct([pa.field("a", pa.int32()), pa.field("A", pa.int32())]),
]


REFUSED: list[tuple[Format, pa.DataType]] = [
    (Parquet(), UNION),
    (Parquet(), pa.list_(UNION)),
    (Parquet(), pa.struct([])),
    *((kind, type_) for kind in (Parquet(), JsonLines(), Csv(), Orc()) for type_ in KEPT_BY_NONE),
    (JsonLines(), UNION),
    (JsonLines(), pa.list_(UNION)),
    (JsonLines(), pa.struct([pa.field("t", pa.timestamp("ns"))])),
    (JsonLines(), pa.map_(pa.binary(), pa.int32())),
    (JsonLines(), pa.struct([pa.field("a", pa.int32()), pa.field("a", pa.int32())])),
    (Csv(), pa.list_(pa.int32())),
    (Csv(), pa.struct([pa.field("a", pa.int32())])),
    (Csv(), pa.map_(pa.string(), pa.int32())),
    (Csv(), pa.binary()),
    (Orc(), UNION),
    (Parquet(), pa.list_(pa.int8(), 0)),
    (Parquet(), pa.binary(0)),
    (Parquet(), pa.dictionary(pa.int8(), pa.list_(pa.int8()))),
    (Orc(), pa.struct([pa.field("a`b", pa.int8())])),
    (Orc(), pa.timestamp("us")),
    (Orc(), pa.list_(pa.struct([pa.field("t", pa.timestamp("us"))]))),
    (Orc(), pa.uint32()),
    (Orc(), pa.time64("us")),
    (Text(), pa.int64()),
    (Text(), pa.binary()),
]


def test_a_type_that_the_format_cant_write_is_refused_by_the_name_of_its_column() -> None:
    for kind, type_ in REFUSED:
        schema = pa.schema([pa.field("fine", pa.string()), pa.field("odd one", type_)])
        with pytest.raises(SchemaMismatch, match=r"column 'odd one'.*Nothing was written"):
            check_schema(kind, schema)


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "orc", "text"])
def test_a_schema_without_columns_or_names_or_with_one_twice_is_refused(kind: str, make_sink: MakeSink) -> None:
    with pytest.raises(SchemaMismatch, match="have no columns"):
        make_sink(format=kind).validate(pa.schema([]))
    with pytest.raises(SchemaMismatch, match="an empty name"):
        make_sink(format=kind).validate(pa.schema([("", pa.string())]))
    for other in ("id", "Id"):
        with pytest.raises(SchemaMismatch, match=f"columns 'id', '{other}' have one name to readers"):
            make_sink(format=kind).validate(pa.schema([("id", pa.int64()), ("x", pa.int64()), (other, pa.int8())]))


def test_text_of_two_columns_is_refused(make_sink: MakeSink) -> None:
    with pytest.raises(
        SchemaMismatch, match=r"columns a, b can't be written to a .txt file \(text files have exactly one"
    ):
        make_sink(format="text").validate(pa.schema([("a", pa.string()), ("b", pa.string())]))
