"""Protobuf schemas as a registry has them, without Spark."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from twopc.errors import ConfigurationError
from twopc_kafka.registry.protobuf_schemas import Message, differences, framings, unreadable

MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
ORDERS = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "money.proto";
message Key { int64 id = 1; }
message Order {
  message Line {
    message Tax { shop.Money amount = 1; }
    repeated Tax taxes = 1;
  }
  repeated Line lines = 1;
  google.protobuf.Timestamp at = 2;
}
"""


def message(fields: str, syntax: str = "proto3", more: str = "") -> Any:
    source = f'syntax = "{syntax}"; message Order {{ {fields} }} {more}'
    return Message.chosen({"order.proto": source}, "Order").descriptor


@pytest.mark.parametrize(
    ("indexes", "framed"),
    [
        ([0], ["00", "0200"]),
        ([1], ["0202"]),
        ([0, 0], ["040000"]),
        ([2, 1, 0], ["06040200"]),
        ([64], ["028001"]),
        ([0, 8191], ["0400fe7f"]),
    ],
)
def test_indexes_are_zigzag_varints_after_their_count_and_the_first_message_is_one_zero(
    indexes: list[int], framed: list[str]
) -> None:
    assert [each.hex() for each in framings(indexes)] == framed


@pytest.mark.parametrize("form", ["source", "base64"])
def test_a_schema_is_compiled_with_those_that_it_imports_in_either_form(form: str) -> None:
    def as_registered(file: Any) -> str:
        return base64.standard_b64encode(file.SerializeToString()).decode()

    [other] = Message.chosen({"other": MONEY}, None).files
    money = MONEY if form == "source" else as_registered(other)
    found = Message.chosen({"money.proto": money, "orders.proto": ORDERS}, None).files
    assert [each.name for each in found] == ["money.proto", "google/protobuf/timestamp.proto", "orders.proto"]
    again = {"money.proto": money, "orders.proto": as_registered(found[-1])}
    assert Message.chosen(again, None).files == found


@pytest.mark.parametrize(
    ("name", "full_name", "indexes"),
    [
        (None, "shop.Key", [0]),
        ("shop.Order", "shop.Order", [1]),
        ("shop.Order.Line", "shop.Order.Line", [1, 0]),
        ("shop.Order.Line.Tax", "shop.Order.Line.Tax", [1, 0, 0]),
    ],
)
def test_a_message_is_found_by_its_full_name_with_its_place(
    name: str | None, full_name: str, indexes: list[int]
) -> None:
    found = Message.chosen({"money.proto": MONEY, "orders.proto": ORDERS}, name)
    assert (found.descriptor.full_name, found.indexes) == (full_name, indexes)


def test_spark_gets_a_nested_message_as_an_outermost_one_whose_fields_have_their_types() -> None:
    chosen = Message.chosen({"money.proto": MONEY, "orders.proto": ORDERS}, "shop.Order.Line.Tax")
    name, serialized = chosen.for_spark
    copy, *others = FileDescriptorSet.FromString(serialized).file
    [only] = copy.message_type
    assert f"{copy.package}.{only.name}" == name
    assert [each.type_name for each in only.field] == [".shop.Money"]
    assert [*copy.dependency] == [each.name for each in others]


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ('syntax = "proto3"; message A { B b = 1; }', None, r'^schema\.proto:1:32: "B" is not defined'),
        ('syntax = "proto3"; import "no.proto"; message A {}', None, 'Import "no.proto" was not found'),
        ('syntax = "proto3"; import "google/no.proto"; message A {}', None, 'Import "google/no.proto" was not found'),
        ('syntax = "proto3";', None, "it has no message"),
        (MONEY, "shop.Order", "it has no message 'shop.Order', only these: shop.Money"),
        (base64.b64encode(FileDescriptorProto(name="a", dependency=["b"]).SerializeToString()).decode(), None, "b"),
    ],
)
def test_a_schema_without_the_message_or_that_does_not_compile_is_refused(
    text: str, name: str | None, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Message.chosen({"a.proto": text}, name)


def test_a_message_whose_place_clients_count_otherwise_is_refused() -> None:
    source = 'syntax = "proto3"; message A { message B {} map<string, B> m = 1; message C {} }'
    found = {"a.proto": source}
    assert Message.chosen(found, "A.B").indexes == [0, 0]
    with pytest.raises(ConfigurationError, match=r"A\.C follows a map field"):
        _ = Message.chosen(found, "A.C").indexes


def test_a_message_after_a_group_is_refused_as_clients_count_groups_otherwise() -> None:
    found = {"a.proto": 'syntax = "proto2"; message A { optional group G = 1 {} message C {} }'}
    with pytest.raises(ConfigurationError, match=r"A\.C follows a map field or a group"):
        _ = Message.chosen(found, "A.C").indexes


def test_a_schema_may_import_any_name_and_spark_gets_the_options_of_its_file() -> None:
    options = "option features.message_encoding = DELIMITED;"
    text = f'edition = "2023"; import "schema.proto"; {options} message O {{ shop.Money m = 1; }}'
    _, serialized = Message.chosen({"schema.proto": MONEY, "a.proto": text}, "O").for_spark
    copy, *_ = FileDescriptorSet.FromString(serialized).file
    assert copy.options.features.message_encoding == copy.options.features.DELIMITED


LINES = "message Line {{ {} n = 1; }} repeated Line lines = 1;"


@pytest.mark.parametrize(
    ("writer", "reader", "told"),
    [
        ("int64 a = 1;", "int64 renamed = 1; string more = 2;", None),
        ("int64 a = 1; string more = 2;", "int64 a = 1;", None),
        ("int64 a = 1;", "string a = 1;", "Order.a: int64 would be read as string"),
        ("int64 a = 1;", "repeated int64 a = 1;", "Order.a: int64 would be read as repeated int64"),
        ("map<string, int32> a = 1;", "map<string, int64> a = 1;", "int32> would be read as map<string, int64>"),
        ("int64 a = 1;", "optional int64 a = 1;", "Order.a: a field that is not set would be read as another"),
        ("optional int64 a = 1;", "int64 a = 1;", "Order.a: a field that is not set would be read as another"),
        (LINES.format("int64"), LINES.format("sint64"), "Order.Line.n: int64 would be read as sint64"),
        ("enum E { A = 0; B = 1; } E a = 1;", "enum E { A = 0; C = 1; } E a = 1;", "Order.a: Order.E has other"),
        ("enum E { A = 0; } E a = 1;", "enum E { A = 0; C = 1; } E a = 1;", None),
        (
            "enum E { A = 0; B = 1; } E a = 1;",
            "enum E { option allow_alias = true; A = 0; C = 1; B = 1; } E a = 1;",
            "Order.a: Order.E has other",
        ),
        ("string a = 1; string b = 2;", "string a = 1; string b = 2;", None),
        ("oneof x { string a = 1; string b = 2; }", "oneof y { string b = 2; string a = 1; int32 c = 3; }", None),
        (
            "optional string a = 1; optional string b = 2;",
            "oneof x { string a = 1; string b = 2; }",
            "Order.x: of two fields that are both set, one would be read",
        ),
        ("Order a = 1; int32 b = 2;", "Order a = 1; int64 b = 2;", "Order.b: int32 would be read as int64"),
    ],
)
def test_schemas_differ_where_a_field_of_one_number_has_another_meaning(
    writer: str, reader: str, told: str | None
) -> None:
    found = [*differences(message(writer), message(reader))]
    assert len(found) == (told is not None)
    assert not told or told in found[0]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("map<string, uint64> a = 1; bytes b = 2; sfixed64 c = 3;", None),
        ("repeated fixed32 a = 1;", "Order.a: Protobuf's repeated fixed32 is not supported"),
        ("map<string, fixed64> a = 1;", "Order.AEntry.value: Protobuf's fixed64 is not supported"),
        ("message Empty {} Empty a = 1;", "Order.a: Protobuf's Order.Empty is not supported"),
        ("message Inner { Order a = 1; } Inner a = 1;", "Order.Inner.a: a message within itself is not supported"),
    ],
)
def test_what_spark_would_read_otherwise_is_named(fields: str, told: str | None) -> None:
    assert [*unreadable(message(fields))] == ([told] if told else [])
