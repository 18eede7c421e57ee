"""Other users of a case's tables: writers, while the query runs and while it is down; and another query."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

import twopc
from tests.campaigns.every_step.processes import note, noted
from tests.campaigns.every_step.query import KINDS, SCHEMA, Record
from tests.campaigns.every_step.steps import Steps
from tests.campaigns.tables.foreign import ForeignWriter
from tests.campaigns.tables.table import LakeTable
from twopc import Participant, Round
from twopc.events import Event, PhaseEntered
from twopc.phases import Phase

ACTS_AT = ((0, Phase.DECIDING), (1, Phase.COMMITTING), (2, Phase.DECIDING))
"""Where the writers act while the query runs: after the sinks have looked at their tables, and before they commit."""


class Others:
    """All other users of the tables of one case."""

    def __init__(self, work: Path, tables: Mapping[str, LakeTable]) -> None:
        self._work, self._tables = work, tables
        self._writer = ForeignWriter(work, tables, SCHEMA, _record)

    def plant(self) -> None:
        """Append a record, and leave a pending transaction of another query in each table."""
        self.write()
        for name, table in self._tables.items():
            sink = table.sink()
            sink.bind(name, "other")
            # Its batch has a number that no batch of the query has, so that its files have none either.
            with Participant({name: sink}, Round(1, 9), partition=0) as participant:
                participant.write(name, pa.record_batch({"batch": [9], "partition": [0], "n": [0], "kind": ["a"]}))
                participant.pre_commit()
            sink.close()
            note(self._work, f"{name}-planted", sorted(table.files()))

    def write(self) -> None:
        """Append a record to each table, and every other time maintain the table."""
        for name in self._tables:
            if self._writer.append(name) % 2:
                self._writer.maintain(name)

    def changed(self, name: str, found: list[Record]) -> list[str]:
        """Return what is missing or doubled of the others' records and files."""
        planted = noted(self._work, f"{name}-planted") or []
        gone = set(planted) - self._tables[name].files()
        return [*(f"record {row}" for row in self._writer.changed(name, found)), *(f"file {path}" for path in gone)]

    def left_by_query(self, name: str) -> list[str]:
        """Return the files of transactions that are not the other query's."""
        planted = noted(self._work, f"{name}-planted") or []
        return sorted(self._tables[name].files() - set(planted))


class Beside:
    """Has the others write beside the query, in its process. This is no step of the query."""

    def __init__(self, others: Others, steps: Steps) -> None:
        self._others, self._steps = others, steps

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        if isinstance(event, PhaseEntered) and (event.batch_id, event.phase) in ACTS_AT:
            with self._steps.aside():
                self._others.write()


def _record(number: int) -> Record:
    return (-1, -1, number, KINDS[number % len(KINDS)])
