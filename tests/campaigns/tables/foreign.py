"""Other writers of the tables, which know nothing of twopc: they append, compact and expire."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from tests.campaigns.every_step.processes import note, noted
from tests.campaigns.tables.table import LakeTable

Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class ForeignWriter:
    """Appends numbered records. It keeps a list of those that it has begun, and of those that it has appended.

    Attributes:
        work: the folder of the lists.
        tables: by name.
        schema: the schema of all tables.
        record: returns the record of a number.
    """

    work: Path
    tables: Mapping[str, LakeTable]
    schema: pa.Schema
    record: Callable[[int], Row]

    def append(self, name: str) -> int:
        """Append a record to a table. Return its number."""
        begun = self._noted(name, "begun")
        number = len(begun)
        self._note(name, "begun", [*begun, number])
        row = dict(zip(self.schema.names, self.record(number), strict=True))
        self.tables[name].append(pa.Table.from_pylist([row], self.schema))
        self._note(name, "done", [*self._noted(name, "done"), number])
        return number

    def maintain(self, name: str) -> None:
        self.tables[name].compact()
        self.tables[name].expire()

    def appended(self, name: str) -> int:
        """Return how many records were appended."""
        return len(self._noted(name, "done"))

    def changed(self, name: str, found: Iterable[Row]) -> list[Row]:
        """Return the records that are not there as often as they should be: once; or perhaps not at all, if the append
        was killed or got no answer."""
        seen = Counter(found)
        begun = {self.record(number) for number in self._noted(name, "begun")}
        done = {self.record(number) for number in self._noted(name, "done")}
        return [row for row in begun | seen.keys() if not (row in done) <= seen[row] <= (row in begun)]

    def _noted(self, name: str, what: str) -> list[int]:
        return noted(self.work, f"{name}-{what}") or []

    def _note(self, name: str, what: str, numbers: list[int]) -> None:
        note(self.work, f"{name}-{what}", numbers)
