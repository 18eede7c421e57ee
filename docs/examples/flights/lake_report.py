"""The outcome of the lakehouse demonstration: DuckDB joins the topic and both tables, and counts the differences."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from flights import CHECKED, airlines, expected, flights
from lake_tables import RESULT
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import duckdb

CONTENTS = f"hash({', '.join(CHECKED)})"
EXPECTED = pa.schema([field for field in RESULT if field.name in CHECKED])


@dataclass(frozen=True)
class Found:
    """One target system compared with what was sent. A record with wrong contents counts as lost and as a duplicate."""

    records: int
    lost: int
    duplicates: int


@dataclass(frozen=True)
class Comparison:
    """The result of DuckDB's comparison.

    Attributes:
        torn: batches that differ between target systems.
    """

    found: Mapping[str, Found]
    torn: frozenset[int]


def sent(records: int) -> pa.Table:
    """Return the records that a reader of each result must see, computed without Spark."""
    names = airlines()
    rows = [expected(flight, names) for flight in itertools.islice(flights(), records)]
    return pa.Table.from_pylist(rows, EXPECTED)


def compare(reader: duckdb.DuckDBPyConnection, sent: pa.Table, results: Mapping[str, str]) -> Comparison:
    """Compare the results, each a table expression in SQL, with what was sent and with each other."""
    reader.register("sent_records", sent)
    reader.execute(f"CREATE TEMP TABLE sent AS SELECT id, {CONTENTS} AS contents, count(*) AS n"  # noqa: S608
                   " FROM sent_records GROUP BY ALL")  # fmt: skip
    for name, scan in results.items():
        reader.execute(
            f"CREATE TEMP TABLE {name} AS SELECT id, batch, {CONTENTS} AS contents, count(*) AS n"  # noqa: S608
            f" FROM {scan} GROUP BY ALL"
        )
    return Comparison({name: _against_sent(reader, name) for name in results}, _torn(reader, list(results)))


def _against_sent(reader: duckdb.DuckDBPyConnection, name: str) -> Found:
    sql = f"""
        SELECT coalesce(sum(found.n), 0),
            coalesce(sum(greatest(coalesce(sent.n, 0) - coalesce(found.n, 0), 0)), 0),
            coalesce(sum(greatest(coalesce(found.n, 0) - coalesce(sent.n, 0), 0)), 0)
        FROM sent FULL JOIN (SELECT id, contents, sum(n) AS n FROM {name} GROUP BY ALL) AS found
            USING (id, contents)"""  # noqa: S608  # a name of ours
    row = reader.execute(sql).fetchone()
    assert row is not None
    return Found(*map(int, row))


def _torn(reader: duckdb.DuckDBPyConnection, names: list[str]) -> frozenset[int]:
    first, *others = names
    joins = " ".join(f"FULL JOIN {name} USING (id, batch, contents)" for name in others)
    differs = " OR ".join(f"{name}.n IS DISTINCT FROM {first}.n" for name in others)
    rows = reader.execute(f"SELECT DISTINCT batch FROM {first} {joins} WHERE {differs}").fetchall()  # noqa: S608
    return frozenset(int(batch) for (batch,) in rows)


@dataclass(frozen=True)
class LakeReport:
    """Everything that is written to ``report.json``.

    Attributes:
        seen_torn: batches that a reader of a table saw in part while drivers were killed.
        early: how many records were visible before their batch was decided.
    """

    sent: int
    comparison: Comparison
    seen_torn: frozenset[int]
    early: int
    kills: list[str]
    recovered_commits: int
    recovered_aborts: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        found = self.comparison.found
        return {
            "kills": len(self.kills),
            "lost": sum(each.lost for each in found.values()),
            "duplicates": sum(each.duplicates for each in found.values()),
            "torn": len(self.comparison.torn | self.seen_torn),
            "early": self.early,
            "sent": self.sent,
            "recovered_commits": self.recovered_commits,
            "recovered_aborts": self.recovered_aborts,
            "seconds": round(self.seconds, 1),
            "details": {name: asdict(each) for name, each in found.items()},
            "killed": self.kills,
        }

    @property
    def is_exact(self) -> bool:
        """Whether each target system has each record once, no batch was torn, and no record was visible too early."""
        value = self.to_json()
        return not any(value[name] for name in ("lost", "duplicates", "torn", "early")) and all(
            each.records == self.sent for each in self.comparison.found.values()
        )

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")

    def show(self, console: Console) -> None:
        """Print the report as a table."""
        found, value = self.comparison.found, self.to_json()
        table = Table(title="Kafka → Spark → Kafka, Iceberg and Delta, with the driver killed on the way")
        table.add_column("flights")
        for name in found:
            table.add_column(name, justify="right")
        table.add_row("sent", *[f"{self.sent:,}"] * len(found))
        for row in ("records", "lost", "duplicates"):
            table.add_row(row, *(f"{getattr(each, row):,}" for each in found.values()))
        console.print(table)
        console.print(f"batches torn: {value['torn']}; records visible too early: {self.early}")
        console.print(f"recovered: {self.recovered_commits} commits, {self.recovered_aborts} aborts")
        for kill in self.kills:
            console.print(f"  killed {kill}")
