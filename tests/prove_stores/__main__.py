"""``make prove-stores``: the file sink is killed at every step on every store; see ``docs/stores.md``."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from tests.prove_stores.case import AT_MOST_S, Campaign, Outcome, killed_at, moments
from tests.prove_stores.places import SEAMS, warm_up
from tests.s3_server import S3Server

COUNTED = ("lost", "duplicates", "leftovers", "half_batches_seen", "undecided_seen", "foreign_removed")
TOLD_AT_MOST = 20
CASE_AT_MOST_S = 3 * AT_MOST_S
"""Both processes of a case have ended by then. If not, a worker of the pool is gone, and so is its case."""

console = Console()


def prove(campaign: Campaign, stride: int, pool: Any, progress: Progress) -> dict[str, Any]:
    """Kill a writer at every ``stride``-th moment of a store, and report."""
    started = time.monotonic()
    steps, names, told = pool.apply_async(moments, (campaign,)).get(CASE_AT_MOST_S)
    told = [f"undisturbed: {what}" for what in told]
    work = range(0, 0 if told else len(names), stride)
    bar = progress.add_task(campaign.store, total=len(work), found="an undisturbed run failed" if told else "")
    outcomes: list[Outcome] = []
    results = pool.imap_unordered(partial(killed_at, campaign), work)
    for _ in work:
        outcome = results.next(CASE_AT_MOST_S)
        outcomes.append(outcome)
        failed = sum(bool(outcome.findings.told) for outcome in outcomes)
        progress.update(bar, advance=1, found=f"{failed} failed" if failed else "")
    told += [
        f"killed {names[o.moment]} (moment {o.moment}): {what}"
        for o in sorted(outcomes, key=lambda outcome: outcome.moment)
        for what in o.findings.told
    ]
    kills = sum(outcome.was_killed for outcome in outcomes)
    if not (kills or told):
        told = ["nothing was killed, and so nothing is proved"]
    return {
        "steps": steps,
        "moments": len(names),
        "kills": kills,
        **{name: sum(getattr(outcome.findings, name) for outcome in outcomes) for name in COUNTED},
        "failures": len(told),
        "told": told[:TOLD_AT_MOST],
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> int:
    """The exit code: 1 if anything is wrong."""
    given = parsed_arguments()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    warm_up()
    report: dict[str, Any] = {}
    with ExitStack() as stack:
        server = S3Server(given.folder / "s3.log")
        if {"s3", "copy"} & set(given.stores):
            stack.enter_context(server)
        # Forked while this process has no thread; none of the workers ever makes one.
        pool = stack.enter_context(multiprocessing.get_context("fork").Pool(given.processes))
        columns = (*Progress.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[found]}"))
        progress = stack.enter_context(Progress(*columns, console=console))
        for store in given.stores:
            campaign = Campaign(store, given.folder.resolve() / "work", server.storage_options)
            report[store] = prove(campaign, given.steps_stride, pool, progress)
            (given.folder / "report.json").write_text(json.dumps(report, indent=1))
    console.print_json(data=report)
    return 1 if any(of_store["failures"] for of_store in report.values()) else 0


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove_stores", description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=sorted(SEAMS), default=list(SEAMS))
    parser.add_argument("--steps-stride", type=int, default=1, help="kill at every n-th moment only")
    parser.add_argument("--processes", type=int, default=2, help="cases at a time")
    parser.add_argument("--folder", type=Path, default=Path("build/stores"), help="where to work; emptied first")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
