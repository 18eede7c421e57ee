"""The campaign of tables finds rows that a wrong order of batches leaves."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.campaigns.every_step.place import Findings
from tests.campaigns.every_step.query import BATCHES, PARTITIONS, SCHEMA, Record, deletes, state, upserts
from tests.campaigns.tables import contents


def findings_of(found: list[Record], decided: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in found], SCHEMA)
    others = SimpleNamespace(changed=lambda *_: [], left_by_query=lambda _: [])
    table = SimpleNamespace(read=lambda: rows, scan=lambda: None)
    place: Any = SimpleNamespace(tables={"orders": table}, log=None, is_keyed=True, others=others)
    monkeypatch.setattr(contents, "newest_decided", lambda _: decided)
    findings = Findings()
    contents.look(findings, "now", place)
    if decided == BATCHES - 1:
        contents.judge(findings, place)
    return findings.counts


def applied(*batches: int) -> list[Record]:
    """What a table has after these batches, in this order."""
    found = dict[tuple[int, int], Record]()
    for batch_id in batches:
        for partition in range(PARTITIONS):
            for row in deletes(batch_id, partition):
                found.pop(row[1:3], None)
            found.update({row[1:3]: row for row in upserts(batch_id, partition)})
    return [*found.values()]


def test_what_the_batches_leave_in_their_order_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for batches in range(BATCHES + 1):
        assert state(batches) == applied(*range(batches))
        assert findings_of(state(batches), batches - 1, monkeypatch) == {}
    assert {row[1:3] for row in state(2)} - {row[1:3] for row in state(3)}, "no row is deleted"
    assert {row[1:3] for row in state(3)} - {row[1:3] for row in state(2)}, "no row comes back"


def test_a_batch_that_is_visible_before_its_decision_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings_of(state(2), 0, monkeypatch) == {"undecided_seen": 1}


@pytest.mark.variants
@pytest.mark.parametrize("batches", [(0, 2, 1), (0, 1, 2, 1), (0, 1, 2, 0), (1, 0, 2)])
def test_a_batch_that_is_applied_late_or_again_is_found(
    batches: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings_of(applied(*batches), BATCHES - 1, monkeypatch)
    assert {"lost", "resurrected"} & found.keys()


def test_lost_doubled_and_resurrected_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = state(BATCHES)
    gone = next(row for row in state(2) if row not in rows)
    for found, kind in ((rows[1:], "lost"), ([*rows, rows[0]], "doubled"), ([*rows, gone], "resurrected")):
        assert findings_of(found, BATCHES - 1, monkeypatch)[kind] == 1
