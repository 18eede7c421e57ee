"""The records that readers of tables see, and leftover files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.campaigns.every_step.query import BATCHES, Record, records, state
from tests.campaigns.tables.table import reader
from tests.support.commit_log import newest_decided
from tests.support.contents import difference

if TYPE_CHECKING:
    from tests.campaigns.every_step.place import Findings
    from tests.campaigns.tables.places import TablePlace

COUNTED = ("lost", "doubled", "resurrected", "torn", "undecided_seen", "leftovers", "foreign_changed")
"""The kinds of findings."""


def look(findings: Findings, when: str, place: TablePlace) -> None:
    """Check that no reader sees a part of a batch, or a batch that is not decided."""
    seen = [(f"{name}, as {by} reads it", found) for name, by, found in _readings(place)]
    decided = newest_decided(place.log)  # read later than the tables
    for what, found in seen:
        if place.is_keyed:
            _look_at_state(findings, f"{when}, {what}", found, decided)
            continue
        early = sorted({record[0] for record in found if record[0] > decided})
        findings.add("undecided_seen", len(early), f"{when}, {what}: batches {early} are visible, and not decided")
        for batch_id in range(BATCHES):
            expected, of_batch = Counter(records(batch_id)), Counter(r for r in found if r[0] == batch_id)
            is_torn = bool(of_batch) and bool(expected - of_batch)
            there = f"{of_batch.total()} of {expected.total()} records"
            findings.add("torn", is_torn, f"{when}, {what}: batch {batch_id} has {there}")


def _look_at_state(findings: Findings, what: str, found: list[Record], decided: int) -> None:
    """Check that a table with a key is as some batches have left it, all of them decided."""
    ours = sorted(record for record in found if record[0] >= 0)
    batches = next((batches for batches in range(BATCHES + 1) if sorted(state(batches)) == ours), None)
    findings.add("torn", batches is None, f"{what}: no number of batches leaves {ours}")
    early = batches is not None and batches > decided + 1
    findings.add("undecided_seen", early, f"{what}: {batches} batches are visible, and {decided + 1} decided")


def judge(findings: Findings, place: TablePlace) -> None:
    """Check that every reader sees each record once, and that of the query nothing else is left."""
    of_batches = [record for batch_id in range(BATCHES) for record in records(batch_id)]
    ours = state(BATCHES) if place.is_keyed else of_batches
    for name, by, found in _readings(place):
        there = difference(ours, (record for record in found if record[0] >= 0))
        old = {record for record in found if record[0] >= 0 and record not in ours}
        what = f"at the end, {name}, as {by} reads it"
        findings.add("lost", there.lost, f"{what}: {there.lost} records are missing")
        findings.add("doubled", there.duplicates, f"{what}: {there.duplicates} records are there too often")
        findings.add("resurrected", len(old), f"{what}: {old} were replaced or deleted")
        changed = place.others.changed(name, [record for record in found if record[0] < 0])
        findings.add("foreign_changed", len(changed), f"{what}: missing or doubled of others: {changed}")
    for name in place.tables:
        left = place.others.left_by_query(name)
        findings.add("leftovers", len(left), f"left behind in {name}: {left}")


def _readings(place: TablePlace) -> Iterator[tuple[str, str, list[Record]]]:
    """Read each table with each reader."""
    for name, table in place.tables.items():
        yield name, "its own library", _records(table.read())
        if scan := table.scan():
            yield name, "DuckDB", _records(reader().execute(f"SELECT * FROM {scan}").to_arrow_table())  # noqa: S608  # ours


def _records(found: pa.Table) -> list[Record]:
    columns = [found[name].to_pylist() for name in ("batch", "partition", "n", "kind")]
    return list(zip(*columns, strict=True))
