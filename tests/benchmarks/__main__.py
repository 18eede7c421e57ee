"""``make bench``: measure contestants in one run, as ratios to a peer. Prints a table; writes a report and plots."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import metadata
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from tests.benchmarks import (
    changes,
    files,
    lake,
    latency,
    log,
    memory,
    pipeline,
    plots,
    protocol,
    routing,
    staging,
    writer,
)
from tests.benchmarks.measuring import Row

BENCHMARKS = {
    "pipeline": pipeline.run,
    "latency": latency.run,
    "writer": writer.run,
    "protocol": protocol.run,
    "memory": memory.run,
    "staging": staging.run,
    "routing": routing.run,
    "files": files.run,
    "lake": lake.run,
    "changes": changes.run,
    "log": log.run,
}


def main() -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="less data and fewer repeats, for a first look")
    parser.add_argument("--report", type=Path, default=Path("build/bench/report.json"))
    parser.add_argument("--plots", type=Path, default=Path("build/bench"), help="folder for the plots")
    given = parser.parse_args()
    console = Console()
    report = json.loads(given.report.read_text()) if given.report.exists() else {}
    for name in given.names or BENCHMARKS:
        with console.status(f"{name} ..."):
            rows = BENCHMARKS[name](given.quick)
        figures = {row.key: row.spread[1] for row in rows if row.key}  # listed first in the report
        report = figures | report | figures | {"machine": _machine(), name: [row.to_json() for row in rows]}
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(json.dumps(report, indent=1))
        console.print(_table(name, rows))
        plots.draw(name, report[name], given.plots)
    console.print(f"full report: {given.report}")


def _machine() -> dict[str, object]:
    """Return what the newest figures were measured on."""
    packages = ("pyspark", "pyarrow", "pyiceberg", "deltalake")
    return {
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
    }


def _table(name: str, rows: list[Row]) -> Table:
    table = Table(title=name)
    for column in ("what", "minimum", "median", "maximum", "unit", "runs"):
        table.add_column(column)
    for row in rows:
        table.add_row(row.what, *(f"{value:.3g}" for value in row.spread), row.unit, str(len(row.values)))
    return table


if __name__ == "__main__":
    main()
