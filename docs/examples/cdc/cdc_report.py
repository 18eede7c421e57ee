"""The outcome of the demonstration: the rows that each reader finds in each copy, compared with the source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

Row: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True)
class Difference:
    """How the rows that a reader finds in a copy differ from the source. A duplicated row counts as extra."""

    rows: int
    missing: int
    extra: int
    different: int

    @classmethod
    def of(cls, source: Sequence[Row], copy: Sequence[Row]) -> Difference:
        """Compare rows by their first column, the key."""
        there, found = {row[0]: row for row in source}, {row[0]: row for row in copy}
        both = there.keys() & found.keys()
        different = sum(there[key] != found[key] for key in both)
        return cls(len(copy), len(there) - len(both), len(copy) - len(both), different)

    @property
    def is_none(self) -> bool:
        return not (self.missing or self.extra or self.different)


@dataclass(frozen=True)
class CdcReport:
    """Everything that is written to ``report.json``.

    Attributes:
        rows: how many rows the source has.
        copies: the differences by table, copy and reader.
        killed: when the drivers were killed.
        recovered_commits, recovered_aborts: transactions that a restarted driver had to end.
    """

    rows: int
    copies: Mapping[str, Difference]
    killed: Sequence[str]
    recovered_commits: int
    recovered_aborts: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        every = self.copies.values()
        return {
            "kills": len(self.killed),
            "rows": self.rows,
            **{name: sum(getattr(each, name) for each in every) for name in ("missing", "extra", "different")},
            "recovered_commits": self.recovered_commits,
            "recovered_aborts": self.recovered_aborts,
            "seconds": round(self.seconds, 1),
            "copies": {name: asdict(each) for name, each in self.copies.items()},
            "killed": [*self.killed],
        }

    @property
    def is_exact(self) -> bool:
        """Whether every reader finds exactly the source's rows in every copy."""
        return self.rows > 0 and all(each.is_none for each in self.copies.values())

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")

    def show(self, console: Console) -> None:
        """Print the report as a table."""
        table = Table(title="A change stream in three copies, with the driver killed on the way")
        for column in ("copy", "rows", "missing", "extra", "different"):
            table.add_column(column, justify="left" if column == "copy" else "right")
        for name, each in self.copies.items():
            table.add_row(name, *(f"{count:,}" for count in asdict(each).values()))
        console.print(table)
        console.print(f"recovered: {self.recovered_commits} commits, {self.recovered_aborts} aborts")
        for kill in self.killed:
            console.print(f"  killed {kill}")
