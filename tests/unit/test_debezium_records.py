"""A record of Debezium is a row with exactly the source's values, or it is refused with what repairs it."""

import base64
import json
import traceback
from decimal import Decimal
from typing import Any

import pytest

from twopc.errors import RecordRefused
from twopc.spark.debezium_records import UNAVAILABLE, Decoder, Place, Row
from twopc.spark.debezium_values import Column

PLACE = Place("shop.public.orders", 2, 17)
ID, NAME = Column("id", "integer", 32), Column("name", "text")
OF_CONNECT = "org.apache.kafka.connect.data."


def decoder(*columns: Column, **given: Any) -> Decoder:
    return Decoder(columns or (ID, NAME), ("id",), **given)


def envelope(op: str, **parts: Any) -> dict[str, Any]:
    source = {"connector": "postgresql", "lsn": 30, "sequence": '["20","30"]', "ts_ms": 1}
    return {"op": op, "before": None, "after": None, "source": source, "ts_ms": 2, **parts}


def rows(given: Any, key: Any = None, decode: Decoder | None = None, place: Place = PLACE) -> list[Row]:
    value = None if given is None else json.dumps(given).encode()
    return [*(decode or decoder()).rows(None if key is None else json.dumps(key).encode(), value, place)]


def with_schema(payload: dict[str, Any], *fields: dict[str, Any]) -> dict[str, Any]:
    row = {"type": "struct", "fields": [{"field": "id", "type": "int32", "optional": False}, *fields]}
    described = {"type": "struct", "fields": [{**row, "field": "before"}, {**row, "field": "after"}]}
    return {"schema": described, "payload": payload}


@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_a_change_is_a_row_with_its_operation(op: str) -> None:
    [row] = rows(envelope(op, after={"id": 1, "name": "x"}))
    assert (row.values, row.op) == ([1, "x"], op)
    [row] = rows(with_schema(envelope(op, after={"id": 1, "name": "x"}), {"field": "name", "type": "string"}))
    assert (row.values, row.op) == ([1, "x"], op)


def test_a_delete_has_its_key_alone_whatever_before_has_besides() -> None:
    for before in ({"id": 1, "name": ""}, {"id": 1, "name": None}, {"id": 1}):
        [row] = rows(envelope("d", before=before))
        assert (row.values, row.op) == ([1, None], "d")


def test_a_delete_without_before_takes_the_key_of_the_record() -> None:
    [row] = rows(envelope("d"), key={"id": 1})
    assert row.values == [1, None]
    with pytest.raises(RecordRefused, match=r"partition 2, offset 17 .* REPLICA IDENTITY FULL.*message\.key\.columns"):
        rows(envelope("d"))


ROW = {"id": 5, "name": "x", "code": "new"}


@pytest.mark.parametrize("flattened", [False, True])
def test_a_delete_believes_the_key_of_the_record_and_not_the_defaults_in_before(flattened: bool) -> None:
    before = {"id": 0, "name": ""}
    record = before | {"__deleted": "true"} if flattened else envelope("d", before=before)
    decode = decoder(flattened=flattened, order="offset")
    [row] = rows(record, key={"id": 5}, decode=decode)
    assert row.values == [5, None]


@pytest.mark.parametrize(
    "record",
    [envelope("d", before=ROW), envelope("u", after=ROW), envelope("c", after=ROW), ROW, ROW | {"__deleted": "true"}],
)
@pytest.mark.parametrize("key", [{"id": 5}, {"code": None}, 5])
def test_a_key_that_the_record_does_not_have_is_refused(record: dict[str, Any], key: Any) -> None:
    flattened = "op" not in record
    by_code = Decoder([ID, Column("code", "text")], ["code"], flattened=flattened, order="offset")
    with pytest.raises(
        RecordRefused, match=r"its key in Kafka lacks a column of 'key' \(code\).*message\.key\.columns"
    ):
        rows(record, key=key, decode=by_code)


def test_a_null_value_changes_nothing_and_is_a_delete_only_where_that_was_said() -> None:
    assert rows(None, key={"id": 1}) == []
    [row] = rows(None, key={"id": 1}, decode=decoder(tombstones="delete", order="offset", flattened=True))
    assert (row.values, row.op) == ([1, None], "d")
    with pytest.raises(RecordRefused, match="neither a key nor a value"):
        rows(None)


@pytest.mark.parametrize(("deleted", "op"), [("true", "d"), (True, "d"), ("false", "u"), (None, "u")])
def test_a_flattened_record_says_by_text_whether_it_deletes(deleted: Any, op: str) -> None:
    record = {"id": 3, "name": "q"} | ({} if deleted is None else {"__deleted": deleted})
    [row] = rows(record, decode=decoder(flattened=True, order="offset"))
    assert (row.values, row.op) == ([3, None if op == "d" else "q"], op)


def test_the_other_shape_is_refused_with_the_argument_that_takes_it() -> None:
    with pytest.raises(RecordRefused, match="flattened=True and order='offset'"):
        rows({"id": 3, "name": "q", "__deleted": "true"})
    with pytest.raises(RecordRefused, match="it is an envelope"):
        rows(envelope("c", after={"id": 1, "name": "x"}), decode=decoder(flattened=True, order="offset"))


def test_a_changed_key_is_a_delete_and_a_row() -> None:
    deleted, written = rows(envelope("u", before={"id": 1, "name": "x"}, after={"id": 2, "name": "x"}))
    assert (deleted.values, deleted.op, written.values, written.op) == ([1, None], "d", [2, "x"], "u")


def test_a_key_of_before_that_is_a_default_deletes_no_row() -> None:
    """With REPLICA IDENTITY USING INDEX, ``before`` has the index's columns alone."""
    record = envelope("u", before={"id": 0, "code": "old"}, after=ROW)
    assert [(row.values, row.op) for row in rows(record, key={"id": 5})] == [([5, "x"], "u")]
    assert [(row.values[0], row.op) for row in rows(record, key={"id": 0})] == [(0, "d"), (5, "u")]


def test_messages_are_left_out_and_unknown_operations_are_refused() -> None:
    assert rows(envelope("m")) == []
    with pytest.raises(RecordRefused, match="operation 'x' is unknown"):
        rows(envelope("x"))


def test_a_truncate_is_refused_with_its_place_and_a_way_on() -> None:
    with pytest.raises(RecordRefused, match=r"truncated=\[\('shop\.public\.orders', 2, 17\)\].*skipped\.operations=t"):
        rows(envelope("t"))
    [row] = rows(envelope("t"), decode=decoder(truncated=frozenset({PLACE})))
    assert row.op == "t"
    with pytest.raises(RecordRefused, match="out of the frame that debezium gets"):
        rows(envelope("t"), decode=decoder(order="offset"))


# Order. ---------------------------------------------------------------------------------------------------------


def order_of(op: str = "u", place: Place = PLACE, **source: Any) -> tuple[int, ...]:
    given = {"connector": "postgresql", **source}
    [row] = rows(envelope(op, source=given, after={"id": 1, "name": "x"}), place=place)
    return row.order


def test_transactions_of_postgresql_are_in_the_order_of_their_commits() -> None:
    """The second one has changed the row earlier, and waited for the first."""
    first = order_of(lsn=30, sequence='["10","30"]')
    second = order_of(lsn=20, sequence='["35","20"]')
    assert first < second


def test_a_snapshot_of_postgresql_is_later_than_what_it_has_seen_and_older_than_what_follows() -> None:
    """A snapshot, and the first transaction of a new slot, have no earlier commit."""
    seen = order_of(lsn=100, sequence='["90","100"]')
    snapshot = order_of("r", lsn=200, sequence='[null,"200"]')
    first = order_of(lsn=210, sequence='[null,"210"]')
    second = order_of(lsn=205, sequence='["220","205"]')
    assert seen < snapshot < first < second
    assert snapshot < order_of(lsn=210, sequence='["90","210"]')


def test_by_offsets_a_snapshot_is_later_than_what_is_before_it_in_the_topic() -> None:
    def of(op: str, offset: int) -> tuple[int, ...]:
        record, by_offset = envelope(op, after={"id": 1, "name": "x"}), decoder(order="offset")
        [row] = rows(record, decode=by_offset, place=Place("t", 0, offset))
        return row.order

    assert of("u", 1) < of("r", 2) < of("u", 3)


def test_changes_of_one_position_are_in_the_order_of_the_topic() -> None:
    orders = [order_of(lsn=5, sequence='[null,"5"]', place=Place("t", 0, offset)) for offset in (9, 10, 11)]
    assert orders == sorted({*orders})


def test_offsets_of_two_partitions_are_compared_only_where_positions_are_equal() -> None:
    assert order_of(lsn=10, place=Place("t", 0, 900)) < order_of(lsn=20, place=Place("t", 2, 0))


def test_positions_of_mysql_begin_anew_in_each_file_and_files_count_as_numbers() -> None:
    def of(file: str, pos: int, row: int = 0) -> tuple[int, ...]:
        return order_of(connector="mysql", file=file, pos=pos, row=row)

    assert of("mysql-bin.000003", 900_000) < of("mysql-bin.000004", 154)
    assert of("mysql-bin.999999", 4) < of("mysql-bin.1000000", 4)
    assert of("mysql-bin.000003", 4, row=0) < of("mysql-bin.000003", 4, row=1)


def test_a_record_of_a_snapshot_is_older_than_a_change_whatever_its_time_is() -> None:
    change = order_of("u", lsn=5, ts_ms=1, place=Place("t", 0, 1))
    assert order_of("r", lsn=5, ts_ms=9_999, place=Place("t", 0, 2)) < change


def test_positions_of_other_sources_are_refused_with_the_argument_that_takes_them() -> None:
    with pytest.raises(RecordRefused, match=r"connector 'oracle' are not known. Give order='offset'"):
        order_of(connector="oracle", scn="1")
    with pytest.raises(RecordRefused, match="has no position"):
        order_of(connector="postgresql")
    record = envelope("u", source={"connector": "oracle"}, after={"id": 1, "name": "x"})
    [row] = rows(record, decode=decoder(order="offset"))
    assert row.order == (0, 0, 0, 1, 17, 2)


# Values. --------------------------------------------------------------------------------------------------------


def b64(number: int, length: int = 2) -> str:
    return base64.b64encode(number.to_bytes(length, "big", signed=True)).decode()


DECIMAL = Column("v", "decimal", digits=(12, 2))
WIDE = Column("v", "decimal", digits=(38, 10))


def scaled(scale: int) -> dict[str, Any]:
    return {"type": "bytes", "name": f"{OF_CONNECT}Decimal", "parameters": {"scale": str(scale)}}


def named(type_: str, name: str = "") -> dict[str, Any]:
    return {"type": type_, **({"name": name} if name else {})}


TIME = "io.debezium.time."
DECODED: list[tuple[Column, dict[str, Any], Any, Any]] = [
    (DECIMAL, scaled(2), "AJY=", Decimal("1.50")),
    (DECIMAL, scaled(1), b64(-15), Decimal("-1.50")),
    (DECIMAL, scaled(4), b64(15_000, 4), Decimal("1.50")),
    (DECIMAL, scaled(2), "AA==", Decimal("0.00")),
    (
        WIDE,
        scaled(10),
        b64(12345678901234567890123456789012345678, 16),
        Decimal("1234567890123456789012345678.9012345678"),
    ),
    (WIDE, named("struct", "io.debezium.data.VariableScaleDecimal"), {"scale": 3, "value": b64(1500)}, Decimal("1.5")),
    (DECIMAL, named("string"), "1.5", Decimal("1.50")),
    (DECIMAL, named("int64"), 7, Decimal("7.00")),
    (Column("v", "date"), named("int32", f"{TIME}Date"), 20_000, 20_000),
    (Column("v", "integer", 32), named("int32", f"{TIME}Year"), 1901, 1901),
    (Column("v", "date"), named("string", f"{TIME}IsoDate"), "1970-01-02Z", 1),
    (Column("v", "timestamp_ntz"), named("int64", f"{TIME}Timestamp"), 1_500, 1_500_000),
    (Column("v", "timestamp_ntz"), named("int64", f"{OF_CONNECT}Timestamp"), 1_500, 1_500_000),
    (Column("v", "timestamp_ntz"), named("int64", f"{TIME}MicroTimestamp"), -1, -1),
    (Column("v", "timestamp_ntz"), named("int64", f"{TIME}NanoTimestamp"), -1_000, -1),
    (Column("v", "timestamp"), named("string", f"{TIME}ZonedTimestamp"), "1970-01-01T00:00:00.000001Z", 1),
    (Column("v", "timestamp"), named("string", f"{TIME}ZonedTimestamp"), "1970-01-01T02:00:00+02:00", 0),
    (NAME_OF_TIME := Column("v", "text"), named("int32", f"{TIME}Time"), 1_500, "00:00:01.5"),
    (NAME_OF_TIME, named("int64", f"{TIME}MicroTime"), 86_399_999_999, "23:59:59.999999"),
    (NAME_OF_TIME, named("string", "io.debezium.data.Json"), '{"a": 1}', '{"a": 1}'),
    (Column("v", "bytes"), named("bytes"), "AP8=", b"\0\xff"),
    (Column("v", "integer", 64), named("int64"), 2**63 - 1, 2**63 - 1),
    (Column("v", "float"), named("double"), 1.5, 1.5),
    (Column("v", "float"), named("int64"), 2**53, 2.0**53),
    (Column("v", "float", 32), named("float"), 0.1, 0.1),
    (Column("v", "float", 32), named("int32"), 2**24, 2.0**24),
    (Column("v", "boolean"), named("boolean"), True, True),
    (Column("v", "array", elements=ID), {"type": "array", "items": named("int32")}, [1, None], [1, None]),
]


@pytest.mark.parametrize(("column", "described", "value", "expected"), DECODED)
def test_a_value_is_decoded_exactly_by_its_schema(
    column: Column, described: dict[str, Any], value: Any, expected: Any
) -> None:
    record = with_schema(envelope("c", after={"id": 1, "v": value}), {"field": "v", "optional": True, **described})
    [row] = rows(record, decode=decoder(ID, column))
    assert row.values == [1, expected]
    [row] = rows(
        with_schema(envelope("c", after={"id": 1, "v": None}), {"field": "v", **described}), decode=decoder(ID, column)
    )
    assert row.values == [1, None]


REFUSED: list[tuple[Column, dict[str, Any], Any, str]] = [
    (DECIMAL, named("double"), 1.5, "decimal.handling.mode=precise or string"),
    (DECIMAL, scaled(3), b64(1501), "more than 2 digits after the point"),
    (DECIMAL, scaled(0), b64(10**10, 8), r"does not fit into DECIMAL\(12,2\)"),
    (DECIMAL, named("string"), "1E+999999999", r"does not fit into DECIMAL\(12,2\)"),
    (Column("v", "decimal", digits=(5, 2)), named("string"), "999.995", "more than 2 digits after the point"),
    (Column("v", "decimal", digits=(5, 2)), named("string"), "1000.0", r"does not fit into DECIMAL\(5,2\)"),
    (DECIMAL, named("string"), "NaN", "no finite number"),
    (Column("v", "float"), scaled(2), "AJY=", "declare DECIMAL"),
    (Column("v", "text"), scaled(2), "AJY=", "declare DECIMAL"),
    (Column("v", "float"), named("int64"), 2**53 + 1, "declare BIGINT or DECIMAL"),
    (Column("v", "array", elements=Column("v", "float")), {"items": named("int64")}, [2**53 + 1], "declare BIGINT"),
    (Column("v", "float", 32), named("double"), 1.5, "it is of type double, and FLOAT was declared"),
    (Column("v", "float", 32), named("float"), 1e39, "declare DOUBLE"),
    (Column("v", "float", 32), named("int32"), 2**24 + 1, "declare DOUBLE"),
    (Column("v", "timestamp"), named("int64", f"{TIME}MicroTimestamp"), 1, "declare TIMESTAMP_NTZ"),
    (Column("v", "timestamp_ntz"), named("int64", f"{TIME}NanoTimestamp"), 1, "nanoseconds"),
    (Column("v", "timestamp_ntz"), named("int64"), 1, "it is of type int64"),
    (Column("v", "date"), named("int32", f"{TIME}Date"), 10**7, "outside of the years"),
    (Column("v", "date"), named("int64", f"{TIME}MicroTimestamp"), 1, "declare another type"),
    (Column("v", "date"), named("string", f"{TIME}IsoDate"), "2026-13-45", "no date of the years"),
    (Column("v", "integer", 32), named("int64"), 2**31, "does not fit into 32 bits"),
    (Column("v", "integer", 64), named("int64", f"{TIME}MicroTime"), 1, "declare another type"),
    (Column("v", "date"), named("int32"), 2024, "it is of type int32, and DATE was declared"),
    (Column("v", "text"), named("string"), "\ud800", "half a surrogate pair"),
    (Column("v", "bytes"), named("bytes"), "é", "it is not base64"),
    (Column("v", "bytes"), named("bytes", "io.debezium.data.Bits"), "AQ==", "leave the column out"),
    (Column("v", "boolean"), named("int16"), 1, "declare another type"),
    (Column("v", "bytes"), named("string"), "00ff", "declare another type"),
]


@pytest.mark.parametrize(("column", "described", "value", "reason"), REFUSED)
def test_a_value_that_does_not_fit_exactly_is_refused_with_what_repairs_it(
    column: Column, described: dict[str, Any], value: Any, reason: str
) -> None:
    record = with_schema(envelope("c", after={"id": 1, "v": value}), {"field": "v", **described})
    with pytest.raises(RecordRefused, match=f"column 'v' of the record at topic .* offset 17 is refused: .*{reason}"):
        rows(record, decode=decoder(ID, column))


MALFORMED = [
    b'{"op":"c","after":{"id":1,"name":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    b'{"schema":{"fields":[1]},"payload":{"op":"c","after":{"id":1}}}',
    *(
        json.dumps(with_schema(envelope("c", after={"id": 1, "v": value}), {"field": "v", **described})).encode()
        for described, value in (
            (named("bytes", f"{OF_CONNECT}Decimal"), "AJY="),
            (named("struct", "io.debezium.data.VariableScaleDecimal"), {"scale": 2}),
            (named("struct", "io.debezium.data.VariableScaleDecimal"), {"scale": 10**30, "value": "AJY="}),
        )
    ),
]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_record_of_another_form_is_refused_with_its_place(value: bytes) -> None:
    with pytest.raises(RecordRefused, match=r"offset 17 is refused: it does not have the form of Debezium's records"):
        [*decoder(ID, DECIMAL, missing="null").rows(None, value, PLACE)]


def test_the_traceback_of_a_refused_record_has_no_value_of_it() -> None:
    described = {"field": "v", **named("struct", "io.debezium.data.VariableScaleDecimal")}
    record = with_schema(envelope("c", after={"id": 1, "v": {"scale": "hunter2", "value": "AJY="}}), described)
    with pytest.raises(RecordRefused) as refused:
        [*decoder(ID, DECIMAL, missing="null").rows(None, json.dumps(record).encode(), PLACE)]
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_a_number_has_more_digits_than_python_makes_of_an_integer() -> None:
    def value(scale: int) -> Any:
        record = envelope("c", after={"id": 1, "v": b64(10**5_000, 3_000)})
        return rows(with_schema(record, {"field": "v", **scaled(scale)}), decode=decoder(ID, DECIMAL))[0].values[1]

    assert value(5_000) == 1
    with pytest.raises(RecordRefused, match="declare a larger precision"):
        value(0)


WITHOUT: list[tuple[Column, Any, str]] = [
    (DECIMAL, "AJY=", r"schemas\.enable=true.*decimal\.handling\.mode=string.*decimals='string'"),
    (DECIMAL, 1.5, r"decimal\.handling\.mode=precise"),
    (Column("v", "float", 32), 0.1, "declare DOUBLE"),
    (Column("v", "timestamp_ntz"), 1_500, r"schemas\.enable=true.*time\.precision\.mode=isostring"),
    (Column("v", "bytes"), "AP8=", r"schemas\.enable=true"),
]


@pytest.mark.parametrize(("column", "value", "reason"), WITHOUT)
def test_what_only_a_schema_tells_is_refused_without_one(column: Column, value: Any, reason: str) -> None:
    with pytest.raises(RecordRefused, match=reason):
        rows(envelope("c", after={"id": 1, "v": value}), decode=decoder(ID, column))


def test_without_a_schema_what_is_said_of_the_connector_is_believed() -> None:
    [row] = rows(envelope("c", after={"id": 1, "v": "1.5"}), decode=decoder(ID, DECIMAL, decimals="string"))
    assert row.values == [1, Decimal("1.50")]
    [row] = rows(
        envelope("c", after={"id": 1, "v": "1970-01-01T00:00:01Z"}), decode=decoder(ID, Column("v", "timestamp"))
    )
    assert row.values == [1, 1_000_000]


def test_a_large_number_keeps_every_digit() -> None:
    text = '{"op":"c","after":{"id":1,"v":9007199254740993},"source":{"connector":"mysql","file":"b.1","pos":4}}'
    [row] = decoder(ID, Column("v", "integer", 64)).rows(None, text.encode(), PLACE)
    assert row.values == [1, 9007199254740993]


def test_a_record_that_lacks_a_column_is_refused_unless_null_is_right_for_it() -> None:
    record = envelope("c", after={"id": 1})
    with pytest.raises(RecordRefused, match=r"column 'name' .* older than the column.*missing='null'"):
        rows(record)
    [row] = rows(record, decode=decoder(missing="null"))
    assert row.values == [1, None]


def test_a_default_that_may_stand_for_null_is_refused_until_the_converter_keeps_nulls() -> None:
    def record(value: str | None) -> dict[str, Any]:
        described = {"field": "name", "type": "string", "optional": True, "default": "MANUAL"}
        return with_schema(envelope("c", after={"id": 1, "name": value}), described)

    with pytest.raises(RecordRefused, match=r"replace\.null\.with\.default=false"):
        rows(record("MANUAL"))
    assert [row.values for row in rows(record("OTHER"))] == [[1, "OTHER"]]
    assert [row.values for row in rows(record(None))] == [[1, None]]
    kept = decoder(replace_null_with_default=False)
    assert [row.values for row in rows(record("MANUAL"), decode=kept)] == [[1, "MANUAL"]]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (NAME, UNAVAILABLE),
        (Column("name", "bytes"), base64.b64encode(UNAVAILABLE.encode()).decode()),
        (Column("name", "array", elements=NAME), [UNAVAILABLE]),
    ],
)
def test_a_placeholder_is_no_value(column: Column, value: Any) -> None:
    [row] = rows(envelope("u", after={"id": 1, "name": value}), decode=decoder(ID, column))
    assert (row.values, row.unavailable) == ([1, None], ["name"])


@pytest.mark.parametrize("given", [b"\x00\x00", b"[1]", b'"text"'])
def test_what_is_no_object_of_json_is_refused(given: bytes) -> None:
    with pytest.raises(RecordRefused, match="JsonConverter"):
        [*decoder().rows(None, given, PLACE)]
