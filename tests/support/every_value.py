"""Shared by the tests of databases that every value is either kept exactly or refused (invariant 13)."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa

from twopc import Participant, Round
from twopc.errors import SchemaMismatch

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
"""The values tried on a column of every type."""

_rounds = itertools.count()


def write_good(place: Any, values: pa.Array) -> list[Any] | None:
    """Empty the table, write the values that its column ``value`` accepts, and return them; None if it refuses the
    type."""
    sink = place.sink()
    try:
        sink.validate(pa.schema([("value", values.type)]))
    except SchemaMismatch:
        return None
    place.ask("DELETE FROM {}")
    with Participant({"orders": sink}, Round(1, next(_rounds)), partition=0, max_bad_records=99) as task:
        refused = {error.record for error in task.write("orders", pa.record_batch({"value": values}))}
        for vote in task.pre_commit().values():  # no vote if all are refused
            place.commit(vote, sink)
    return [value for record, value in enumerate(values.to_pylist()) if record not in refused]
