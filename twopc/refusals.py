"""Finds records with a value that a file or a table can't hold, however deeply nested. A whole record batch is checked
before any of it is written, so that a sink can refuse one record and write the others."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from twopc.bad_records import are_in_years, are_utf8, first_bad
from twopc.columns import ADVICE
from twopc.errors import RecordRefused

Check: TypeAlias = Callable[[pa.RecordBatch], None]
"""Raises RecordRefused for the first record of a batch that breaks a rule."""

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason to refuse a record.

    Attributes:
        concerns: returns whether the rule applies to this column, or to this part of a nested column.
        first: returns the position of the first value that breaks the rule, or None.
        reason: what is wrong with the value, and what to do; never the value.
    """

    concerns: Callable[[pa.Field], bool]
    first: Callable[[pa.Array], int | None]
    reason: str


def checker(schema: pa.Schema, rules: Iterable[Rule]) -> Check:
    """Return a check of records of ``schema`` against ``rules``. Columns that no rule concerns cost nothing."""
    concerned = [
        (number, field, rule)
        for number, field in enumerate(schema)
        for rule in rules
        if any(rule.concerns(part) for part in parts(field))
    ]

    def check(batch: pa.RecordBatch) -> None:
        for number, field, rule in concerned:
            if found := first_record(batch.column(number), field, rule):
                raise RecordRefused(rule.reason, record=found[0], column=found[1])

    return check


def parts(field: pa.Field) -> Iterator[pa.Field]:
    """Yield ``field`` and all fields nested in its type."""
    yield field
    if types.is_dictionary(field.type):
        yield from parts(field.with_type(field.type.value_type))
    for number in range(field.type.num_fields):
        yield from parts(field.type.field(number))


def first_record(column: pa.Array, field: pa.Field, rule: Rule, below: str = "") -> tuple[int, str] | None:
    """Return the position of the first record with a value that breaks ``rule``, however deeply nested, and the path to
    that value, such as ``orders.element.id``. ``below`` is the start of the path. None if no value breaks the rule.

    Data below a null is ignored. The types of ``field`` may allow fewer nulls than those of ``column``.
    """
    path = f"{below}{field.name}"
    position = rule.first(column) if rule.concerns(field) else None
    found = [] if position is None else [(position, path)]
    if types.is_dictionary(field.type):
        inner = first_record(column.dictionary_decode(), field.with_type(field.type.value_type), rule, below)
        found += [inner] if inner else []
    elif types.is_struct(field.type):
        present = column.drop_null() if column.null_count else column
        inside = (first_record(*each, rule, f"{path}.") for each in zip(present.flatten(), field.type, strict=True))
        found += [(_among_all(column, at), where) for at, where in filter(None, inside)]
    elif types.is_map(field.type):
        lists = entries(column)
        members = map(pa.Field.with_name, field.type.field(0).type, ("key", "value"))
        sides = zip(pc.list_flatten(lists).flatten(), members, strict=True)
        inside = (first_record(side, each, rule, f"{path}.") for side, each in sides)
        found += [(holder(lists, at), where) for at, where in filter(None, inside)]
    elif field.type.num_fields == 1:
        inner = first_record(pc.list_flatten(column), field.type.field(0).with_name("element"), rule, f"{path}.")
        found += [(holder(column, inner[0]), inner[1])] if inner else []
    return min(found, default=None)


def holder(lists: pa.Array, item: int) -> int:
    """Return the position of the list that holds an item. ``item``: its position among the items of all lists."""
    # Without null lists, which may have hidden items: pyarrow leaves these out of the items, but not of the parents.
    parents = pc.list_parent_indices(lists.drop_null() if lists.null_count else lists)
    return _among_all(lists, parents[item].as_py())


def _among_all(column: pa.Array, position: int) -> int:
    """Return the position in ``column`` of the value at ``position`` among its non-null values."""
    return int(pc.indices_nonzero(column.is_valid())[position].as_py()) if column.null_count else position


def entries(maps: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of structs, which more pyarrow functions accept."""
    return maps.cast(pa.list_(maps.type.field(0)))


def first_true(mask: pa.BooleanArray) -> int | None:
    """Return the position of the first true value, or None."""
    position: int = pc.index(mask, True).as_py()
    return None if position < 0 else position


def first_null(column: pa.Array) -> int | None:
    """Return the position of the first null, or None."""
    return first_true(column.is_null()) if column.null_count else None


# Kinds of types. ------------------------------------------------------------------------------------------------------


def is_string(kind: pa.DataType) -> bool:
    """Return whether a type is a string type that Spark and all readers of files support."""
    return bool(types.is_string(kind) or types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a type is bytes of variable length."""
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is a list: with offsets, or of a fixed size."""
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


# Rules that several sinks share. ----------------------------------------------------------------------------


def is_text(field: pa.Field) -> bool:
    """Return whether the values are strings, in any of Arrow's layouts."""
    return is_string(field.type) or bool(types.is_string_view(field.type))


NOT_UTF8 = Rule(
    is_text,
    lambda column: first_bad(column, are_utf8),
    f"a text is not valid UTF-8. {ADVICE}",
)


def outside(numbers: pa.Array, least: int, most: int) -> pa.BooleanArray:
    """Return a mask of the numbers that are below ``least`` or above ``most``."""
    return pc.or_(pc.less(numbers, least), pc.greater(numbers, most))


def counted(column: pa.Array) -> tuple[pa.Array, int]:
    """Return dates or timestamps as integers since 1970 in UTC, and the number of these units in a day."""
    if types.is_date32(column.type):
        return column.cast(pa.int32()), 1
    unit = "ms" if types.is_date64(column.type) else column.type.unit
    return column.cast(pa.int64()), DAY_S * PER_SECOND[unit]


def day_number(day: dt.date) -> int:
    """Return the number of days from 1970-01-01 to ``day``."""
    return (day - dt.date(1970, 1, 1)).days


OTHER_YEAR = f"the year is not in 1 to 9999, in UTC too, and not every reader knows such years. {ADVICE}"

YEARS = Rule(
    lambda field: bool(types.is_date(field.type) or types.is_timestamp(field.type)),
    lambda column: first_bad(column, are_in_years),
    OTHER_YEAR,
)
"""The year of a date, or of a timestamp in UTC."""


def _outside_of_a_day(column: pa.Array) -> int | None:
    whole = pa.int32() if types.is_time32(column.type) else pa.int64()
    return first_true(outside(column.cast(whole), 0, DAY_S * PER_SECOND[column.type.unit] - 1))


TIMES = Rule(
    lambda field: bool(types.is_time(field.type)), _outside_of_a_day, f"the time is not in 0 to 24 o'clock. {ADVICE}"
)


def _first_key_twice(maps: pa.MapArray) -> int | None:
    lists = entries(maps.drop_null() if maps.null_count else maps)
    keys = pc.list_flatten(lists).flatten()[0]
    if isinstance(keys.type, pa.BaseExtensionType):
        keys = keys.storage
    if types.is_dictionary(keys.type):  # a dictionary may repeat a value
        keys = keys.dictionary_decode()
    if keys.type.num_fields:
        keys = pa.array(map(repr, keys.to_pylist()), pa.string())
    keys = keys.dictionary_encode()
    parents = pc.list_parent_indices(lists).cast(pa.int64())
    pairs = pc.add(pc.multiply(parents, len(keys.dictionary)), keys.indices.cast(pa.int64()))
    numbers = pairs.dictionary_encode().indices  # equal to the pair's position up to the first repetition
    twice = first_true(pc.not_equal(numbers, pa.array(range(len(numbers)), numbers.type)))
    return None if twice is None else holder(entries(maps), twice)


KEY_TWICE = Rule(
    lambda field: bool(types.is_map(field.type)),
    _first_key_twice,
    f"a map has a key twice, and most readers keep one of its values. {ADVICE}",
)
