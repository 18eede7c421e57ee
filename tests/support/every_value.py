"""What the tests of databases share in which every value comes back as it was given, or is refused (invariant 13)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.support.typed_records import same, values_of
from twopc import Participant, Round
from twopc.errors import SchemaMismatch

Kept = Sequence[tuple[str, pa.DataType]]
"""Columns as the database declares them, each with an Arrow type of which it keeps every value."""

# The first value that is not kept is named: making it smaller would take minutes of a server.
drawn = settings(max_examples=8, deadline=None, suppress_health_check=[*HealthCheck], phases=[Phase.generate])

TEXTS = [
    *("", " ", "ab", "abc   ", "ab   ", "ab ", "abcde", "7", "007", "-1", "1.005", "$1.01", "x" * 70, "xy", "a\0b"),
    *("101", "2", "B", "b,a", "12:00:00.1239", "12:00:00", "12:00:00+02", "00:00:00.6", "12:00:00.6", "1 day", "P1D"),
    *("[1,3]", "{1}", "(1,2)", "true", "2026-12-31", "2026-12-31 23:59:59.7", "2026", "10.0.0.1", "10.0.0.1/32"),
    *("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "08:00:2b:01:02:03"),
    *("08002b010203", "::FFFF", '{"b":1,"a":2}', '{"a":1,"a":2}', "[1e-20000]", "1e400", "<a/>", "'b' 'a'"),
    *("POINT(1 1)", "🐎", "e\u0301"),
]
VALUES = [
    pa.array(TEXTS),
    pa.array([12345], pa.int32()),
    pa.array([2**63 - 1], pa.int64()),
    pa.array([-1, 7], pa.int8()),
    pa.array([2**64 - 1], pa.uint64()),
    pa.array([0.1], pa.float64()),
    pa.array([True]),
    pa.array([b"\0\xff", b"abcde"], pa.binary()),
    pa.array([1], pa.int32()).cast(pa.date32()),
    pa.array([1_234_567], pa.timestamp("us")),
    pa.array([1_234_567], pa.timestamp("us", "UTC")),
    pa.array([[1, None]], pa.list_(pa.int32())),
    pa.array([["a", None, "abc   "]], pa.list_(pa.string())),
]
"""What is tried on a column of every type."""

_rounds = itertools.count()


def rows_of(kept: Kept, values: Callable[[pa.DataType], st.SearchStrategy[Any]] = values_of) -> st.SearchStrategy[Any]:
    """Up to three records of the columns c0, c1 and so on."""
    return st.lists(st.tuples(*(st.none() | values(type_) for _, type_ in kept)), min_size=1, max_size=3)


def require_kept(
    place: Any,
    kept: Kept,
    rows: list[tuple[Any, ...]],
    read: Callable[[str, pa.DataType], str],
    shown: Callable[[pa.DataType, Any, Any], Any],
) -> None:
    """Write records, and compare what the server shows of them.

    Args:
        place: a ``SinkPlace`` whose table has the columns of ``kept``, and ``n``, which counts the records.
        kept: the columns.
        rows: the records.
        read: SQL for a column, ``{}``, of a type of the database and an Arrow type.
        shown: what of an Arrow type, given and not null, the client shows as another value → that as it was given.
    """
    ahead = [rows[-1], *rows]  # a slice of arrays, as Spark's batches may be
    schema = pa.schema([(f"c{number}", type_) for number, (_, type_) in enumerate(kept)])
    columns = [pa.array(column, type_) for column, type_ in zip(zip(*ahead, strict=True), schema.types, strict=True)]
    place.ask("DELETE FROM {}")
    place.sink().validate(schema)
    batch = pa.record_batch(columns, schema=schema).slice(1)
    place.sink().commit(place.vote(batch, Round(1, next(_rounds))))
    asked = ", ".join(read(*pair).format(f"c{number}") for number, pair in enumerate(kept))
    for given_row, kept_row in zip(rows, place.ask(f"SELECT {asked} FROM {{}} ORDER BY n"), strict=True):  # noqa: S608
        for (column, type_), before, after in zip(kept, given_row, kept_row, strict=True):
            found = None if after is None else shown(type_, before, after)
            assert same(before, found), (column, type_, before, after)


def write_good(place: Any, values: pa.Array) -> list[Any] | None:
    """Empty the table, write the values that its column ``value`` takes, and return them; None if it does not take
    the type."""
    sink = place.sink()
    try:
        sink.validate(pa.schema([("value", values.type)]))
    except SchemaMismatch:
        return None
    place.ask("DELETE FROM {}")
    with Participant({"orders": sink}, Round(1, next(_rounds)), partition=0, max_bad_records=99) as task:
        refused = {error.record for error in task.write("orders", pa.record_batch({"value": values}))}
        for vote in task.pre_commit().values():  # none if all are refused
            place.commit(vote, sink)
    return [value for record, value in enumerate(values.to_pylist()) if record not in refused]
