"""``make bench``: measure contestants in one run, as ratios to a peer. Prints a table; writes a report and plots."""

import argparse
import functools
import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import psutil

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
    scale,
    scale_spark,
    staging,
    writer,
)
from tests.benchmarks.measuring import Row

BENCHMARKS: dict[str, Callable[[bool], list[Row]]] = {
    "pipeline": pipeline.run,
    "variants": functools.partial(pipeline.run, names=pipeline.VARIANTS),
    "latency": latency.run,
    "writer": writer.run,
    "protocol": protocol.run,
    "memory": memory.run,
    "staging": staging.run,
    "routing": routing.run,
    "files": files.run,
    "lake": lake.run,
    "changes": changes.run,
    "changes-beside-spark": changes.run_beside_spark,
    "changes-large": changes.run_large,
    "log": log.run,
    "scale": lambda quick: [*scale.run(quick), *scale_spark.run(quick)],
}


def main() -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="less data and fewer repeats, for a first look")
    parser.add_argument("--report", type=Path, default=Path("build/bench/report.json"))
    parser.add_argument("--plots", type=Path, default=Path("build/bench"), help="folder for the plots")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # contestants are ended on the way out
    report = json.loads(given.report.read_text()) if given.report.exists() else {}
    for name in given.names or BENCHMARKS:
        _tell(f"{name} ...")
        rows = BENCHMARKS[name](given.quick)
        figures = {row.key: row.spread[1] for row in rows if row.key}  # listed first in the report
        report = figures | report | figures | {"machine": _machine(), name: [row.to_json() for row in rows]}
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(json.dumps(report, indent=1))
        given.report.with_suffix(f".{name}.md").write_text(_table(rows))
        _tell(_table(rows))
        plots.draw(name, report[name], given.plots)
    _tell(f"full report: {given.report}")


def _tell(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # for the operator


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


def _table(rows: list[Row]) -> str:
    lines = ["| what | minimum | median | maximum | unit | runs |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        cells = (row.what, *(f"{value:.3g}" for value in row.spread), row.unit, str(len(row.values)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join((*lines, ""))


if __name__ == "__main__":
    main()
