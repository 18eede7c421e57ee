"""Values come back as they were written, whatever their type and partition. What does not fit is refused by name."""

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, MonthTransform, Transform, TruncateTransform, VoidTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tests.sinks.iceberg.conftest import Place, Query
from tests.sinks.iceberg.test_readers import duckdb_reads
from twopc import Participant, Round
from twopc.errors import ConfigurationError, RecordRefused, RoundAborted, SchemaMismatch
from twopc_iceberg.columns import KEPT, aligned, check_columns

UTC = dt.timezone.utc
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 1)  # noqa: DTZ001  # as a column without a zone has it
OLD = NOON.replace(1969, 12, 31)
ID = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")

FITS: list[tuple[IcebergType, pa.DataType, Any, Any]] = [
    (BooleanType(), pa.bool_(), True, True),
    (IntegerType(), pa.int8(), -128, -128),
    (IntegerType(), pa.int16(), 32767, 32767),
    (IntegerType(), pa.uint16(), 65535, 65535),
    (IntegerType(), pa.int32(), -(2**31), -(2**31)),
    (LongType(), pa.int32(), 2**31 - 1, 2**31 - 1),
    (LongType(), pa.uint32(), 2**32 - 1, 2**32 - 1),
    (LongType(), pa.int64(), -(2**63), -(2**63)),
    (FloatType(), pa.float32(), 1.5, 1.5),
    (DoubleType(), pa.float32(), 1.5, 1.5),
    (DoubleType(), pa.float64(), -0.1, -0.1),
    (DecimalType(12, 3), pa.decimal128(9, 1), Decimal("99999999.9"), Decimal("99999999.900")),
    (DecimalType(38, 10), pa.decimal128(38, 10), Decimal("-0.0000000001"), Decimal("-0.0000000001")),
    (StringType(), pa.string(), "Grüße", "Grüße"),
    (StringType(), pa.large_string(), "", ""),
    (StringType(), pa.dictionary(pa.int32(), pa.string()), "a", "a"),
    (BinaryType(), pa.binary(), b"\0\xff", b"\0\xff"),
    (FixedType(3), pa.binary(3), b"abc", b"abc"),
    (FixedType(3), pa.binary(), b"abc", b"abc"),
    (DateType(), pa.date32(), dt.date(1900, 1, 1), dt.date(1900, 1, 1)),
    (TimeType(), pa.time64("us"), dt.time(23, 59, 59, 999999), dt.time(23, 59, 59, 999999)),
    (TimeType(), pa.time32("s"), dt.time(1), dt.time(1)),
    (TimestampType(), pa.timestamp("us"), NOON, NOON),
    (TimestampType(), pa.timestamp("s"), NOON.replace(microsecond=0), NOON.replace(microsecond=0)),
    (TimestamptzType(), pa.timestamp("us", "UTC"), NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC)),
    (TimestamptzType(), pa.timestamp("us", "Asia/Tokyo"), NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC)),
    (UUIDType(), pa.string(), str(ID).upper(), ID),
    (UUIDType(), pa.binary(16), ID.bytes, ID),
]

DOES_NOT_FIT: list[tuple[IcebergType, pa.DataType]] = [
    (DecimalType(9, 2), pa.decimal128(10, 2)),
    (DecimalType(9, 2), pa.decimal128(9, 3)),
    (FixedType(3), pa.binary(4)),
    (TimestampType(), pa.timestamp("us", "UTC")),
    (TimestamptzType(), pa.timestamp("us")),
    (ListType(9, StringType(), element_required=False), pa.string()),
    (ListType(9, IntegerType(), element_required=False), pa.list_(pa.int64())),
]
"""Beside what the README's table leaves out."""


OTHER_TYPES = [
    *(pa.null(), pa.uint64(), pa.date64(), pa.time64("ns"), pa.timestamp("ns"), pa.timestamp("ns", "UTC")),
    *(pa.duration("us"), pa.month_day_nano_interval(), pa.string_view(), pa.binary_view()),
    *(pa.list_(pa.int32()), pa.struct([("x", pa.int32())]), pa.map_(pa.string(), pa.int32()), pa.decimal128(38, 38)),
]
"""No column of one value keeps these."""


def columns(**types: IcebergType) -> Schema:
    return Schema(*[NestedField(number, name, kind) for number, (name, kind) in enumerate(types.items(), 1)])


def write(place: Place, batch: pa.RecordBatch) -> None:
    place.run(1 + max((int(mark) for mark in place.marks().values()), default=-1), batch)


def test_a_value_of_each_type_that_fits_comes_back_as_it_was_written(place: Place) -> None:
    place.create(columns(**{f"x{number}": kind for number, (kind, *_) in enumerate(FITS)}))
    values = {f"x{number}": pa.array([value, None], given) for number, (_, given, value, _) in enumerate(FITS)}
    write(place, pa.record_batch(values))
    first, second = place.records()
    assert first == {f"x{number}": read for number, (*_, read) in enumerate(FITS)}
    assert {*second.values()} == {None}


@pytest.mark.parametrize(("kind", "given"), DOES_NOT_FIT, ids=str)
def test_a_type_some_of_whose_values_do_not_fit_is_refused_by_its_column(kind: IcebergType, given: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="column 'x"):
        check_columns(pa.schema([("x", given)]), columns(x=kind), "the table")


def test_a_column_that_the_table_lacks_is_refused(place: Place) -> None:
    with pytest.raises(SchemaMismatch, match=r"no column 'valeu'\. It has: value"):
        place.sink().validate(pa.schema([("valeu", pa.string())]))


@pytest.mark.parametrize("validates", [True, False])
def test_a_column_that_was_renamed_between_batches_loses_no_value(
    validates: bool, place: Place, tmp_path: Path
) -> None:
    """By the coordinator before the batch, or else by the task."""
    query = Query(place, tmp_path / "log")
    query.run(0, value=["a"])
    with place.table().update_schema() as update:
        update.add_column("number", LongType())
        update.rename_column("value", "renamed")
    query.run(1, value=["b"])  # with the schema that the query knows, by the ids of its columns
    with pytest.raises(SchemaMismatch, match="has no column 'value'"):
        query.run(2, validates, value=["c"])
    assert sorted(str(each["renamed"]) for each in place.records()) == ["a", "b"]


def test_a_column_that_got_another_type_between_batches_is_refused(place: Place, tmp_path: Path) -> None:
    query = Query(place, tmp_path / "log")
    query.run(0, value=["1.99"])
    with place.table().update_schema() as update:
        update.delete_column("value")
    with place.table().update_schema() as update:
        update.add_column("value", LongType())
    with pytest.raises(RoundAborted, match="none of its columns is one that was written"):
        query.run(1, value=["2"])  # with the schema that the query knows
    with pytest.raises(SchemaMismatch, match="not every value fits into long"):
        query.run(1, value=["2"])
    assert place.records() == [{"value": None}]


def test_records_with_a_column_that_the_table_lacks_are_never_cut(place: Place) -> None:
    schema = place.table().schema()
    with pytest.raises(SchemaMismatch, match="no column 'other'"):
        aligned(pa.record_batch({"value": ["a"], "other": ["b"]}), schema, schema.as_arrow())


def test_a_nested_column_that_the_table_lacks_is_refused(place: Place) -> None:
    place.create(columns(s=StructType(NestedField(5, "a", StringType()))))
    with pytest.raises(SchemaMismatch, match=r"no column 's\.b'"):
        place.sink().validate(pa.schema([("s", pa.struct([("b", pa.string())]))]))


def test_two_columns_of_one_name_are_refused_however_deep(place: Place) -> None:
    place.create(columns(s=StructType(NestedField(5, "a", StringType()))))
    twice = pa.struct([("a", pa.string()), ("a", pa.string())])
    for schema in (pa.schema([("s", twice)]), pa.schema([("s", twice), ("s", twice)])):
        with pytest.raises(SchemaMismatch, match=r"must be unique: rename or drop '(s\.a|s)'"):
            place.sink().validate(schema)


def test_a_time_that_no_day_has_is_refused_by_its_place(place: Place) -> None:
    place.create(columns(x=TimeType()))
    batch = pa.record_batch({"x": pa.array([0, None, 86_400_000_000], pa.int64()).cast(pa.time64("us"))})
    with pytest.raises(RecordRefused, match="the time is not in 0 to 24 o'clock") as refused:
        place.vote(batch)
    assert refused.value.record == 2


@pytest.mark.variants
@pytest.mark.parametrize(("kind", "given"), [(IntegerType(), pa.int32()), (LongType(), pa.int64())])
@pytest.mark.parametrize("width", [7, 10_000])
def test_a_number_whose_partition_its_type_can_not_hold_is_refused_by_its_place(
    kind: IcebergType, given: pa.DataType, width: int, place: Place
) -> None:
    """``truncate`` goes towards minus infinity, and would wrap around to the largest numbers."""
    place.create(columns(x=kind), PartitionSpec(PartitionField(1, 1000, TruncateTransform(width), "x_trunc")))
    least = -(2 ** (given.bit_width - 1))
    first = least + -least % width  # the first that is held
    with pytest.raises(RecordRefused, match="x_trunc is below the least") as refused:
        place.vote(pa.record_batch({"x": pa.array([0, None, least], given)}))
    assert refused.value.record == 2
    write(place, pa.record_batch({"x": pa.array([first, -1, 5], given)}))
    assert place.table().scan(row_filter=f"x = {first}").count() == 1
    assert place.table().scan(row_filter="x < 0").count() == 2


def test_a_width_that_iceberg_for_java_can_not_add_is_refused_by_name(place: Place) -> None:
    place.create(columns(x=IntegerType()), PartitionSpec(PartitionField(1, 1000, TruncateTransform(2**30 + 1), "p")))
    with pytest.raises(ConfigurationError, match=r"truncate\[1073741825\].*Use a width of 1073741824"):
        place.sink().open()


@pytest.mark.variants
@pytest.mark.parametrize(
    "texts", [["m", "z" * 5000], ["z" * 5000, "m"], ["m", "\ud7ff" * 20], ["\U0010ffff" * 20, "m"]]
)
def test_a_text_is_found_whatever_the_bounds_of_its_file(
    texts: list[str], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row group for each. Of texts longer than 4 kB Arrow keeps no bounds."""
    monkeypatch.setattr("twopc_iceberg.writer.ROW_GROUP_BYTES", 1)
    place.create(columns(x=StringType(), y=BinaryType()))
    participant = Participant({"orders": place.sink()}, Round(1, 0), partition=0)
    for text in texts:
        participant.write("orders", pa.record_batch({"x": [text], "y": [text.encode()]}))
    place.sink().commit_batch(0, place.sink().seal([participant.pre_commit()["orders"]], 0.0))
    for text in texts:
        found = place.table().scan(row_filter=EqualTo("x", text))  # type: ignore[call-arg, arg-type]
        assert found.count() == 1
        found = place.table().scan(row_filter=EqualTo("y", text.encode()))  # type: ignore[call-arg, arg-type]
        assert found.count() == 1


def test_a_required_column_must_be_there_and_have_values(place: Place) -> None:
    place.create(Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "value", StringType())))
    with pytest.raises(SchemaMismatch, match=r"'id' of .* is required"):
        place.sink().validate(pa.schema([("value", pa.string())]))
    with pytest.raises(RecordRefused, match="is null, and the column is required") as refused:
        place.vote({"id": pa.array([1, None])})
    assert (refused.value.record, refused.value.column) == (1, "id")


def test_a_column_with_a_default_of_version_3_must_be_there() -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "count", LongType(), write_default=5))
    with pytest.raises(SchemaMismatch, match=r"column .count. of the table has a default, .*: add it"):
        check_columns(pa.schema([("id", pa.int64())]), schema, "the table")


NESTED = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "tags", ListType(3, StringType(), element_required=True)),
    NestedField(4, "by_name", MapType(5, StringType(), 6, DoubleType(), value_required=False)),
    NestedField(
        7,
        "person",
        StructType(
            NestedField(8, "name", StringType(), required=True),
            NestedField(9, "age", IntegerType()),
            NestedField(
                10, "places", ListType(11, StructType(NestedField(12, "city", StringType())), element_required=False)
            ),
        ),
    ),
)


def test_nested_values_come_back_whatever_the_order_of_their_fields(place: Place) -> None:
    place.create(NESTED)
    person = pa.struct([("places", pa.list_(pa.struct([("city", pa.string())]))), ("name", pa.string())])
    batch = pa.record_batch(
        {
            "person": pa.array(
                [{"places": [{"city": "x"}, None], "name": "a"}, None, {"places": [], "name": ""}], person
            ),
            "by_name": pa.array([[("k", 1.5)], None, []], pa.map_(pa.string(), pa.float64())),
            "tags": pa.array([["a", "b"], [], None], pa.list_(pa.string())),
        }
    )
    with place.table().update_schema() as update:
        update.make_column_optional("person.name")
    write(place, batch.slice(0, 1))
    write(place, batch.slice(1))
    records = sorted(place.records(), key=str)
    assert {
        "id": None,
        "tags": ["a", "b"],
        "by_name": [("k", 1.5)],
        "person": {"name": "a", "age": None, "places": [{"city": "x"}, None]},
    } in records
    assert {"id": None, "tags": [], "by_name": None, "person": None} in records
    assert {"id": None, "tags": None, "by_name": [], "person": {"name": "", "age": None, "places": []}} in records


@pytest.mark.parametrize(
    ("values", "kind", "column"),
    [
        ({"tags": [["a"], ["b", None]]}, pa.list_(pa.string()), "tags.element"),
        ({"person": [{"name": "a"}, {"name": None}]}, pa.struct([("name", pa.string())]), "person.name"),
    ],
)
def test_a_nested_null_where_none_may_be_is_refused(
    values: dict[str, Any], kind: pa.DataType, column: str, place: Place
) -> None:
    place.create(NESTED)
    [(name, rows)] = values.items()
    with pytest.raises(RecordRefused) as refused:
        place.vote({name: pa.array(rows, kind)})
    assert (refused.value.record, refused.value.column) == (1, column)


def test_text_that_is_no_uuid_is_refused_without_its_value(place: Place) -> None:
    place.create(columns(x=UUIDType()))
    with pytest.raises(RecordRefused, match="no UUID") as refused:
        place.vote({"x": [str(ID), "hunter2"]})
    assert refused.value.record == 1
    assert "hunter2" not in str(refused.value)


def test_bytes_of_another_length_are_refused(place: Place) -> None:
    place.create(columns(x=FixedType(3)))
    with pytest.raises(RecordRefused) as refused:
        place.vote({"x": pa.array([b"abc", None, b"ab"])})
    assert refused.value.record == 2


def test_names_that_avro_would_not_take_are_written_and_read(place: Place) -> None:
    place.create(columns(**{"a-b": LongType(), "c.d": StringType(), "größe": LongType()}))
    write(place, pa.record_batch({"a-b": [1], "c.d": ["x"], "größe": [2]}))
    assert place.records() == [{"a-b": 1, "c.d": "x", "größe": 2}]


def test_a_partition_by_a_field_of_a_struct_and_twice_by_one_column(place: Place) -> None:
    schema = columns(s=StructType(NestedField(5, "day", DateType())), **{"s.name": StringType()})
    spec = PartitionSpec(
        PartitionField(5, 1000, IdentityTransform(), "day"),
        PartitionField(5, 1001, MonthTransform(), "month"),
        PartitionField(2, 1002, IdentityTransform(), "name"),
    )
    place.create(schema, spec)
    day = pa.array([{"day": dt.date(2024, 2, 29)}, {"day": None}, None], pa.struct([("day", pa.date32())]))
    write(place, pa.record_batch({"s": day, "s.name": ["a", "b", "c"]}))
    assert sorted(record["s.name"] for record in place.records()) == ["a", "b", "c"]


def test_long_bounds_of_partitions_are_left_out_of_the_committable(place: Place) -> None:
    place.create(columns(x=StringType()), PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x")))
    long = ["a" * 120, "b" * 120]
    write(place, pa.record_batch({"x": [f"{each}{'c' * 2000}"[:200] * 5 for each in long]}))
    assert place.table().scan(row_filter=f"x = '{long[0] + 'c' * 80}{(long[0] + 'c' * 80) * 4}'").count() == 1
    [manifest] = place.snapshot().manifests(place.table().io)
    assert manifest.partitions is None


@pytest.mark.parametrize(("precision", "scale"), [(4, 2), (38, 0)])
def test_a_decimal_whose_partition_its_type_can_not_hold_is_refused_by_its_place(
    precision: int, scale: int, place: Place
) -> None:
    """``truncate`` goes towards minus infinity: to -100.00 for a decimal(4, 2)."""
    least, most = (Decimal((sign, (9,) * precision, -scale)) for sign in (1, 0))
    place.create(
        Schema(NestedField(1, "amount", DecimalType(precision, scale))),
        PartitionSpec(PartitionField(1, 1000, TruncateTransform(10), "amount_trunc")),
    )
    of_type = pa.decimal128(precision, scale)
    with pytest.raises(RecordRefused, match="amount_trunc is below the least decimal") as refused:
        place.vote(pa.record_batch({"amount": pa.array([most, None, least], of_type)}))
    assert (refused.value.column, refused.value.record) == ("amount", 2)
    write(place, pa.record_batch({"amount": pa.array([most, None], of_type)}))
    assert [record["amount"] for record in place.records()] == [most, None]


def test_records_with_values_that_do_not_fit_are_left_out(place: Place) -> None:
    place.create(columns(x=UUIDType(), y=FixedType(3)))
    texts = [str(ID), "hunter2", str(ID), str(ID)]
    vote, refused = place.vote_without_bad({"x": texts, "y": pa.array([b"abc", b"abc", b"ab", None])})
    assert sorted(refused) == [1, 2]
    place.sink().commit_batch(0, [vote])
    assert [row["y"] for row in place.records()] == [b"abc", None]


FAR_DAY = pa.array([0, 3_663_000, None], pa.date32())
FAR_TIME = pa.array([0, 3 * 10**17, None], pa.timestamp("us", "UTC"))
NO_TEXT = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"a\xff", None], pa.binary()).buffers())


@pytest.mark.variants
@pytest.mark.parametrize("by", [None, IdentityTransform()])
@pytest.mark.parametrize(
    ("kind", "values", "why"),
    [
        (DateType(), FAR_DAY, "the year is not in 1 to 9999"),
        (TimestamptzType(), FAR_TIME, "the year is not in 1 to 9999, in UTC too"),
        (StringType(), NO_TEXT, "a text is not valid UTF-8"),
        (UUIDType(), NO_TEXT.slice(1), "a text is not valid UTF-8"),
    ],
)
def test_a_value_that_pyiceberg_does_not_hold_is_refused_and_can_be_left_out(
    place: Place, kind: IcebergType, values: pa.Array, why: str, by: IdentityTransform[Any] | None
) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, by, "p")) if by else PartitionSpec()
    place.create(columns(x=kind), spec)
    with pytest.raises(RecordRefused, match=why):
        place.vote(pa.record_batch({"x": values}))
    vote, refused = place.vote_without_bad({"x": values})
    assert refused == [len(values) - 2]
    place.sink().commit_batch(0, [vote])
    assert len(place.records()) == len(values) - 1


@pytest.mark.parametrize("by", [[], [IdentityTransform()], [VoidTransform()]], ids=str)
def test_a_null_struct_comes_back_though_it_has_a_required_field(by: list[Transform[Any, Any]], place: Place) -> None:
    name = NESTED.find_field("person.name").field_id
    place.create(NESTED, PartitionSpec(*[PartitionField(name, 1000, each, "name") for each in by]))
    person = pa.struct([("name", pa.string())])
    write(place, pa.record_batch({"id": [1, 2], "person": pa.array([None, {"name": "a"}], person)}))
    write(place, pa.record_batch({"id": [3]}))
    assert {row["id"]: row["person"] and row["person"]["name"] for row in place.records()} == {1: None, 2: "a", 3: None}
    found = duckdb_reads(place, "id, person.name").to_pylist()
    assert {row["id"]: row["name"] for row in found} == {1: None, 2: "a", 3: None}


def test_a_map_with_a_key_twice_and_a_null_behind_a_null_list_are_refused_by_their_places(place: Place) -> None:
    """A null list may have elements, which no reader sees."""
    place.create(NESTED)
    maps = pa.MapArray.from_arrays([0, 2, 4], [*"abaa"], [1.0, 2.0, 3.0, 4.0])
    tags = pa.ListArray.from_arrays([0, 2, 3], ["a", "b", None], mask=pa.array([True, False]))
    for column, values in {"by_name": maps, "tags": tags}.items():
        _, refused = place.vote_without_bad({column: values})
        assert refused == [1]


def test_the_readme_has_the_table_of_what_is_kept() -> None:
    rows = ["| column | Arrow types that it keeps | cast others to |", "| --- | --- | --- |"]
    for kind, kept in KEPT.items():
        name = kind.__name__.removesuffix("Type").lower().replace("integer", "int")
        given = ", ".join([*map(str, kept.given), *([kept.more] if kept.more else [])])
        rows.append(f"| `{name}` | {given} | `{kept.cast}` |")
    table = "\n".join(rows)
    readme = Path(__file__).parents[3] / "plugins/iceberg/README.md"
    assert table in readme.read_text(encoding="utf-8"), f"{readme} must have this table:\n{table}"


@pytest.mark.parametrize("kind", [*KEPT], ids=lambda kind: str(kind.__name__))
def test_every_other_type_is_refused_with_the_cast_that_works(kind: type[IcebergType]) -> None:
    """Accepted by a list of what is kept: a type that pyarrow gets tomorrow is not among them."""
    with_parameters: list[IcebergType] = [DecimalType(9, 2), FixedType(4)]
    schema = columns(x=next((each for each in with_parameters if isinstance(each, kind)), None) or kind())
    for given in OTHER_TYPES:
        with pytest.raises(SchemaMismatch, match=f"Cast it to {KEPT[kind].cast}"):
            check_columns(pa.schema([("x", given)]), schema, "the table")
