"""A record that a format can't hold is refused by its place, before any record of its batch is written."""

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import orc, types

from tests.sinks.files.conftest import MakeSink
from tests.support.pyarrow_versions import has_null_text
from tests.support.typed_records import unchecked_text
from twopc import Participant, Round
from twopc.errors import RecordRefused
from twopc.refusals import Check, Rule, checker, first_true
from twopc_files.delimited import Csv
from twopc_files.formats import Format
from twopc_files.json_lines import JsonLines
from twopc_files.lines import Text
from twopc_files.orc import Orc
from twopc_files.parquet import Parquet

UTC = dt.timezone.utc
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=UTC)
FIRST = dt.datetime(1, 1, 1, tzinfo=UTC)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
NINETEEN_SIXTY = dt.datetime(1960, 1, 1, tzinfo=UTC)
FRACTION = NINETEEN_SIXTY.replace(microsecond=1)


def of(column: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"first": pa.nulls(len(column), pa.int64()), "c": column})


def refusal(kind: Format, records: pa.RecordBatch) -> RecordRefused:
    with pytest.raises(RecordRefused) as refused:
        kind.checker(records.schema)(records)
    return refused.value


def write(kind: Format, records: pa.RecordBatch) -> bytes:
    """Write records that are not refused."""
    kind.checker(records.schema)(records)
    file = io.BytesIO()
    writer = kind.open(file, records.schema)
    writer.write(records)
    writer.finish()
    return file.getvalue()


def moments(*values: dt.datetime | None, unit: str = "us", zone: str | None = "UTC") -> pa.Array:
    return pa.array(values, pa.timestamp(unit, zone))


def counted(number: int, type_: pa.DataType) -> pa.Array:
    """Return a null, a fine value and one of this number, as Arrow stores it."""
    return pa.array([None, 0, number], pa.int64()).cast(pa.int64() if type_.bit_width == 64 else pa.int32()).cast(type_)


MAPS = pa.map_(pa.string(), pa.int32())
DAY_10000 = counted(2_932_897, pa.date32())
MOST = 2**63 - 1

SECONDS_IN_OFFSETS = {
    "an offset with seconds": (
        moments(None, NOON, dt.datetime(1890, 1, 1, tzinfo=UTC), zone="Europe/Berlin"),
        "its zone's offset from UTC had seconds at that time",
    ),
    "the latest offset with seconds": (
        moments(None, NOON, dt.datetime(1972, 1, 7, tzinfo=UTC), zone="Africa/Monrovia"),
        "its zone's offset from UTC had seconds at that time",
    ),
}
OFFSETS_ARE_ROUNDED = SECONDS_IN_OFFSETS["an offset with seconds"][0][2].as_py().utcoffset().seconds % 60 == 0
"""Older versions of pyarrow take pytz's zones, whose offsets have whole minutes: such values are kept."""

JSON_REFUSES = {
    "bytes": (unchecked_text(b"a", b"b", b"\xff"), "a text is not valid UTF-8"),
    "a surrogate": (unchecked_text(b"a", b"b", b"\xed\xa0\x80"), "a text is not valid UTF-8"),
    "bytes in a list": (pa.ListArray.from_arrays([0, 0, 1, 3], unchecked_text(b"", b"", b"\xff")), "not valid UTF-8"),
    "bytes of a dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([0, 0, 1]), unchecked_text(b"a", b"\xff")),
        "not valid UTF-8",
    ),
    "a key twice": (pa.array([None, [("k", 1), ("l", 1)], [("k", 1), ("k", 2)]], MAPS), "a map has a key twice"),
    "a key twice in a struct": (
        pa.array([None, {"m": [("k", 1)]}, {"m": [("k", 1), ("k", 1)]}], pa.struct([("m", MAPS)])),
        "a map has a key twice",
    ),
    "year 10000": (DAY_10000, "the year is not in 1 to 9999"),
    "year 0": (counted(-719_163, pa.date32()), "the year is not in 1 to 9999"),
    "no year of Python's": (counted(-(2**31), pa.date32()), "the year is not in 1 to 9999"),
    "in UTC": (counted(MOST, pa.timestamp("us", "UTC")), "the year is not in 1 to 9999"),
    "without a zone": (counted(-MOST, pa.timestamp("s")), "the year is not in 1 to 9999"),
    "year 0 in New York": (moments(None, NOON, FIRST, zone="America/New_York"), "the year is not in 1 to 9999"),
    "year 10000 in India": (moments(None, NOON, LAST, zone="+05:30"), "the year is not in 1 to 9999"),
    **({} if OFFSETS_ARE_ROUNDED else SECONDS_IN_OFFSETS),
    "24 o'clock": (counted(86_400_000_000, pa.time64("us")), "the time is not in 0 to 24 o'clock"),
    "before 0 o'clock": (counted(-1, pa.time32("s")), "the time is not in 0 to 24 o'clock"),
}
CSV_REFUSES = {
    name: JSON_REFUSES[name] for name in ("bytes", "year 10000", "year 0", "in UTC", "without a zone", "24 o'clock")
}
TEXT_REFUSES = {
    repr(value): (pa.array(["fine", "", value]), "it has a line break" if value else "it is null")
    for value in ("a\nb", "a\r", "\r\n", None)
} | {
    "bytes": JSON_REFUSES["bytes"],
    "a byte order mark": (pa.array(["a\ufeff", "", "\ufeffb"]), "it begins with U+FEFF"),
    "a dictionary": (pa.array(["fine", "", "a\n"]).dictionary_encode(), "it has a line break"),
}
_EARLY = "Spark can't read back from an ORC file"
_FAR = "pyarrow can't read back from an ORC file. Cast the column to a string"
ORC_REFUSES: dict[str, tuple[pa.Array, str]] = {
    **{name: JSON_REFUSES[name] for name in ("bytes", "a key twice")},
    "a fraction": (moments(NOON, None, FRACTION), "it has a fraction of a second before 1970, which " + _EARLY),
    "in a zone": (moments(NOON, None, FRACTION, zone="Europe/Berlin"), _EARLY),
    "a moment": (moments(NOON, None, dt.datetime(1677, 9, 21, 0, 12, 43, tzinfo=UTC)), _FAR),
    "seconds": (moments(NOON, None, FIRST, unit="s"), _FAR),
    "a late moment": (moments(NOON, None, dt.datetime(2262, 4, 11, 23, 47, 17, tzinfo=UTC)), _FAR),
    "a day": (pa.array([None, dt.date(1582, 10, 15), dt.date(1582, 10, 14)]), "it has a day before 1582-10-15"),
    "in a list": (pa.array([None, [], [NOON, FRACTION]], pa.list_(pa.timestamp("us", "UTC"))), _EARLY),
    "in a struct": (pa.array([None, {"a": []}, {"a": [{"b": dt.date(1, 1, 1)}]}]), _EARLY),
    "a value of a map": (pa.array([None, [], [("a", FRACTION)]], pa.map_(pa.string(), moments().type)), _EARLY),
    "a key of a map": (pa.array([None, [], [(dt.date(1, 1, 1), 1)]], pa.map_(pa.date32(), pa.int8())), _EARLY),
    "too many seconds": (counted(MOST, pa.timestamp("s", "UTC")), "the year is not in 1 to 9999"),
}
_REQUIRED = pa.list_(pa.field("item", pa.int64(), nullable=False))
_PART = pa.struct([pa.field("a", pa.int64(), nullable=False)])
PARQUET_REFUSES = {
    **{name: JSON_REFUSES[name] for name in ("bytes", "bytes in a list", "a key twice", "a key twice in a struct")},
    "seconds": (counted(MOST, pa.timestamp("s")), "the year is not in 1 to 9999"),
    "a null in a list": (pa.array([None, [1], [1, None]], _REQUIRED), "the schema of the records allows no null"),
    "a null in a struct": (pa.array([None, {"a": 1}, {"a": None}], _PART), "the schema of the records allows no null"),
}
REFUSED = [
    pytest.param(kind, column, reason, id=f"{type(kind).__name__}, {name}")
    for kind, cases in (
        (JsonLines(), JSON_REFUSES),
        (Csv(), CSV_REFUSES),
        (Orc(), ORC_REFUSES),
        (Parquet(), PARQUET_REFUSES),
    )
    for name, (column, reason) in cases.items()
]


@pytest.mark.parametrize(("kind", "column", "reason"), REFUSED)
def test_the_record_that_a_format_cant_hold_is_refused_and_the_others_are_written(
    kind: Format, column: pa.Array, reason: str
) -> None:
    error = refusal(kind, of(column))
    assert (error.record, str(error.column).partition(".")[0]) == (2, "c")
    assert reason in error.reason
    assert refusal(kind, of(column).slice(1)).record == 1
    assert write(kind, of(column).slice(0, 2))


@pytest.mark.parametrize(("column", "reason"), TEXT_REFUSES.values(), ids=TEXT_REFUSES)
def test_a_record_that_is_no_line_of_text_is_refused(column: pa.Array, reason: str) -> None:
    error = refusal(Text(), pa.record_batch({"c": column}))
    assert (error.record, error.column) == (2, "c")
    assert reason in error.reason
    assert write(Text(), pa.record_batch({"c": column.slice(0, 2)})).count(b"\n") == 2


@has_null_text
def test_a_null_that_would_be_an_empty_line_of_csv_is_refused_as_readers_would_skip_it() -> None:
    records = pa.record_batch({"c": pa.array(["a", None])})
    error = refusal(Csv(), records)
    assert (error.record, error.column) == (1, "c")
    assert "Set the option 'null_value'" in error.reason
    assert write(Csv(null_value="NULL"), records) == b'"c"\n"a"\nNULL\n'


@has_null_text
@pytest.mark.parametrize(
    ("null_value", "column"),
    [
        ("\\N", pa.array([None, "n", "\\N"])),
        ("a", pa.array([None, "b", "a"]).dictionary_encode()),
        ("0", pa.array([None, 10, 0])),
        ("NaN", pa.array([None, 1.0, float("nan")])),
        ("1.50", pa.array([None, Decimal("1.51"), Decimal("1.50")])),
        ("12:00:00", pa.array([None, dt.time(1), dt.time(12)], pa.time32("s"))),
        ("1969-12-31", pa.array([None, NOON.date(), dt.date(1969, 12, 31)])),
    ],
)
def test_a_value_that_csv_would_write_as_a_null_is_refused(null_value: str, column: pa.Array) -> None:
    kind = Csv(null_value=null_value)
    error = refusal(kind, of(column))
    assert (error.record, error.column) == (2, "c")
    assert "readers would take it for null" in error.reason
    assert write(kind, of(column).slice(0, 2))
    assert write(Csv(null_value="n/a"), of(column))


def test_a_null_in_a_column_without_nulls_is_refused_by_parquet_before_its_file_is_finished() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    error = refusal(Parquet(), pa.record_batch([pa.array([1, None])], schema=schema))
    assert (error.record, error.column) == (1, "id")


@pytest.mark.parametrize("kind", [JsonLines(), Csv()], ids=str)
def test_the_first_and_the_last_year_are_written(kind: Format) -> None:
    days = pa.array([dt.date.min, dt.date.max])
    assert write(kind, of(days))
    assert write(kind, of(moments(FIRST, LAST)))
    assert write(kind, of(moments(FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None), zone=None)))


def test_a_time_in_a_zone_is_written_to_json_with_its_offset_up_to_the_borders() -> None:
    last = LAST - dt.timedelta(hours=1)
    written = write(JsonLines(), pa.record_batch({"c": moments(dt.datetime(1900, 1, 1, tzinfo=UTC), last, zone="CET")}))
    assert [dt.datetime.fromisoformat(json.loads(line)["c"]) for line in written.splitlines()] == [
        dt.datetime(1900, 1, 1, tzinfo=UTC),
        last,
    ]


def test_days_and_moments_at_the_borders_are_written_to_orc() -> None:
    first = dt.datetime(1677, 9, 21, 0, 12, 44, tzinfo=UTC)
    last = dt.datetime(2262, 4, 11, 23, 47, 16, 854775, tzinfo=UTC)
    borders = of(moments(first, NINETEEN_SIXTY, NOON, last))
    read = orc.read_table(io.BytesIO(write(Orc(), borders))).cast(borders.schema)
    assert read == pa.Table.from_batches([borders])
    assert write(Orc(), of(pa.array([dt.date(1582, 10, 15)])))


def test_what_lies_below_a_null_is_no_value() -> None:
    """Arrow may keep anything there, such as after a filter."""
    bad, gone = pa.array([2_932_897, 0, 2_932_897], pa.int32()).cast(pa.date32()), pa.array([True, False, False])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), bad, mask=gone)
    structs = pa.StructArray.from_arrays([bad], names=["day"], mask=gone)
    entries = pa.array([("k", 1), ("k", 2)] * 3, pa.struct([("key", pa.string()), ("value", pa.int32())]))
    maps = pa.MapArray.from_arrays(pa.array([0, 2, 3, 6], pa.int32()), *entries.flatten(), mask=gone)
    for column in (lists, structs, maps):
        assert refusal(JsonLines(), of(column)).record == 2
        assert write(JsonLines(), of(column.slice(0, 2)))


def test_no_reason_shows_a_value_and_the_error_names_the_record_among_those_of_its_task(make_sink: MakeSink) -> None:
    sink = make_sink(format="text")
    with Participant({"orders": sink}, Round(1, 0), partition=3) as participant:
        participant.write("orders", pa.record_batch({"value": ["a", "b"]}))
        with pytest.raises(RecordRefused) as refused:
            participant.write("orders", pa.record_batch({"value": ["c", "secret\n"]}))
    error = refused.value
    assert (error.sink, error.task, error.record, error.column) == ("orders", 3, 3, "value")
    assert "secret" not in str(error)


LARGE = Rule(
    lambda field: bool(types.is_int32(field.type)), lambda column: first_true(pc.greater(column, 9)), "it is large"
)
NUMBERS = st.sampled_from([None, 0, 9, 10, 11])
NESTED: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [(pa.int32(), NUMBERS)]
for _ in range(2):
    NESTED += [(pa.list_(type_), st.none() | st.lists(values, max_size=3)) for type_, values in NESTED[-3:]]
    NESTED += [(pa.list_(type_, 2), st.none() | st.tuples(values, values)) for type_, values in NESTED[-2:]]
    NESTED += [
        (pa.struct([("n", pa.int32()), ("d", type_)]), st.none() | st.fixed_dictionaries({"n": NUMBERS, "d": values}))
        for type_, values in NESTED[-2:]
    ]
    NESTED += [
        (pa.map_(pa.int32(), type_), st.none() | st.lists(st.tuples(st.integers(0, 9), values), max_size=3))
        for type_, values in NESTED[-2:]
    ]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # of a busy machine
@given(st.data())
def test_the_place_of_a_nested_value_is_that_of_the_first_record_that_is_refused_alone(data: st.DataObject) -> None:
    type_, values = data.draw(st.sampled_from(NESTED))
    numbers = pa.array(data.draw(st.lists(values, min_size=1, max_size=6)), type_)
    column = numbers.slice(data.draw(st.integers(0, len(numbers) - 1)))
    schema = pa.schema([("c", column.type)])
    check = checker(schema, [LARGE])
    whole = pa.record_batch([column], schema=schema)
    alone = [position for position in range(len(column)) if refused_at(check, whole.slice(position, 1)) == 0]
    assert refused_at(check, whole) == next(iter(alone), None)


def refused_at(check: Check, records: pa.RecordBatch) -> int | None:
    try:
        check(records)
    except RecordRefused as error:
        return error.record
    return None
