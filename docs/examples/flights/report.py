"""The outcome of the demonstration, as a table and as JSON."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from watch import Watcher


@dataclass(frozen=True)
class Visible:
    """What one reader saw, compared with what it should have seen."""

    records: int
    lost: int
    duplicates: int
    early: int

    @classmethod
    def compare(cls, watcher: Watcher, sent: Counter[tuple[int, int]]) -> Visible:
        """Compare contents by key. A record with wrong contents counts as lost and as a duplicate."""
        return cls(watcher.records, (sent - watcher.seen).total(), (watcher.seen - sent).total(), watcher.early)


@dataclass(frozen=True)
class Report:
    """Everything that is written to ``report.json``."""

    sent: int
    kafka: Visible
    parquet: Visible
    baseline: Visible
    kills: list[str]
    recovered_commits: int
    recovered_aborts: int
    protocol_ms: float
    protocol_transactions: int
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether no record was lost, duplicated or visible too early."""
        return all(seen == Visible(self.sent, 0, 0, 0) for seen in (self.kafka, self.parquet))

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        value = {
            "sent": self.sent,
            "kafka_visible": self.kafka.records,
            "parquet_visible": self.parquet.records,
            "lost": self.kafka.lost + self.parquet.lost,
            "duplicates": self.kafka.duplicates + self.parquet.duplicates,
            "early": self.kafka.early + self.parquet.early,
            "kills": len(self.kills),
            "recovered_commits": self.recovered_commits,
            "recovered_aborts": self.recovered_aborts,
            "baseline_duplicates": self.baseline.duplicates,
            "baseline_lost": self.baseline.lost,
            "protocol_ms": round(self.protocol_ms, 1),
            "protocol_transactions": self.protocol_transactions,
            "seconds": round(self.seconds, 1),
            "details": {name: asdict(getattr(self, name)) for name in ("kafka", "parquet", "baseline")},
            "killed": self.kills,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1), encoding="utf-8")

    def show(self, console: Console) -> None:
        """Print the report as a table."""
        table = Table(title="Kafka → Spark → Kafka and Parquet, with the driver killed on the way")
        table.add_column("flights")
        for name in ("twopc: Kafka", "twopc: Parquet", "Spark's own Kafka sink"):
            table.add_column(name, justify="right")
        columns = (self.kafka, self.parquet, self.baseline)
        table.add_row("sent", *[f"{self.sent:,}"] * 3)
        table.add_row("visible", *(f"{seen.records:,}" for seen in columns))
        table.add_row("lost", *(_marked(seen.lost) for seen in columns))
        table.add_row("duplicated", *(_marked(seen.duplicates) for seen in columns))
        table.add_row("visible too early", _marked(self.kafka.early), _marked(self.parquet.early), "", end_section=True)
        table.add_row("kills survived", *[str(len(self.kills))] * 3)
        table.add_row("recovered: committed", f"{self.recovered_commits} transactions")
        table.add_row("recovered: aborted", f"{self.recovered_aborts} transactions")
        table.add_row("pre-commit to commit", f"{self.protocol_ms:.0f} ms (median)")
        table.add_row("transactions a batch", str(self.protocol_transactions))
        table.add_row("seconds", f"{self.seconds:.0f}")
        console.print(table)
        for kill in self.kills:
            console.print(f"  killed {kill}")


def _marked(count: int) -> str:
    return f"[red]{count:,}[/red]" if count else "[green]0[/green]"


def protocol_time(events: list[dict[str, object]]) -> tuple[float, int]:
    """Return the median time in ms from the last pre-commit to the end of phase two, and the median number of
    transactions, of the batches that were written without a restart."""
    batches = [event for event in events if event["event"] == "BatchFinished" and not event["already_decided"]]
    counts = [sum(event["transactions"].values()) for event in batches]  # type: ignore[attr-defined]
    after = ("sealing", "deciding", "committing")
    times = [sum(event["phases_ms"][phase] for phase in after) for event in batches]  # type: ignore[index]
    return statistics.median(times), int(statistics.median(counts))
