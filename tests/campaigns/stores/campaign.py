"""``make prove-stores``: kill a writer of files at every step on every store. See ``docs/stores.md``."""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn

from tests.campaigns.report import Report
from tests.campaigns.stores.blows import STARTS_AT_MOST, VICTIMS, Struck, cases_for, struck, usual_completion_s
from tests.campaigns.stores.case import AT_MOST_S, Campaign, Outcome, killed_at, moments
from tests.campaigns.stores.go_servers import PROGRAMS
from tests.campaigns.stores.places import SEAMS, warm_up
from tests.support.progress_lines import ProgressLines
from tests.support.s3_server import S3Server

COUNTED = ("lost", "duplicates", "leftovers", "half_batches_seen", "undecided_seen", "foreign_removed")
TOLD_AT_MOST = 20
CASE_AT_MOST_S = 3 * AT_MOST_S
"""The longest time of a case. By then both of its processes have ended, or a worker of the pool is gone."""

BLOW_AT_MOST_S = (STARTS_AT_MOST + 2) * AT_MOST_S
"""The longest time of a case in which the query may be restarted."""

console = Console()


def prove(campaign: Campaign, stride: int, pool: Any, progress: ProgressLines) -> dict[str, Any]:
    """Kill a writer at every ``stride``-th moment on a store. Return the report."""
    started = time.monotonic()
    steps, names, told = pool.apply_async(moments, (campaign,)).get(CASE_AT_MOST_S)
    work = range(0, 0 if told else len(names), stride)
    outcomes: list[Outcome] = run_cases(campaign.store, partial(killed_at, campaign), work, pool, progress)
    kills = sum(outcome.was_killed for outcome in outcomes)
    return {
        "steps": steps,
        "moments": len(names),
        "kills": kills,
        **summary(
            outcomes,
            [f"undisturbed: {what}" for what in told],
            [
                f"killed {names[o.moment]} (moment {o.moment}): {what}"
                for o in sorted(outcomes, key=lambda outcome: outcome.moment)
                for what in o.findings.told
            ],
            [] if kills or told else ["nothing was killed, so nothing is proved"],
        ),
        "seconds": round(time.monotonic() - started, 1),
    }


def prove_by_blows(campaign: Campaign, kills: int, seed: int, pool: Any, progress: ProgressLines) -> dict[str, Any]:
    """Kill the server and the writer of a store ``kills`` times each during completions. Return the report."""
    started = time.monotonic()
    usual_s, told = pool.apply_async(usual_completion_s, (campaign,)).get(BLOW_AT_MOST_S)
    work = range(0 if told else cases_for(kills))
    outcomes: list[Struck] = run_cases(
        campaign.store, partial(struck, campaign, seed, usual_s), work, pool, progress, BLOW_AT_MOST_S
    )
    killed = {victim: sum(victim in outcome.killed for outcome in outcomes) for victim in ("server", "writer")}
    return {
        "cases": len(outcomes),
        "usual_completion_ms": round(usual_s * 1000, 1),
        **{f"{victim}_kills": count for victim, count in killed.items()},
        "amid_a_completion": sum(outcome.in_flight > 0 for outcome in outcomes),
        "stops": {" and ".join(who): sum(o.stops for o in outcomes if o.killed == who) for who in VICTIMS},
        "mended": sum(outcome.mended for outcome in outcomes),
        **summary(
            outcomes,
            [f"undisturbed: {what}" for what in told],
            [
                f"case {o.number}, {' and '.join(o.killed)} killed: {what}"
                for o in sorted(outcomes, key=lambda outcome: outcome.number)
                for what in o.findings.told
            ],
            [f"{victim}: {count} kills of {kills}" for victim, count in killed.items() if not told and count < kills],
        ),
        "seconds": round(time.monotonic() - started, 1),
    }


def run_cases(
    name: str, case: Any, work: range, pool: Any, progress: ProgressLines, at_most_s: float = CASE_AT_MOST_S
) -> list[Any]:
    """Run all cases. Return their results in order of completion."""
    bar = progress.add_task(name, total=len(work), found="" if work else "an undisturbed run failed")
    outcomes: list[Any] = []
    results = pool.imap_unordered(case, work)
    for _ in work:
        outcomes.append(results.next(at_most_s))
        failed = sum(bool(outcome.findings.told) for outcome in outcomes)
        progress.update(bar, advance=1, found=f"{failed} failed" if failed else "")
    return outcomes


def summary(outcomes: Sequence[Any], *told: Sequence[str]) -> dict[str, Any]:
    """Return the part of the report that all kinds of cases share. ``told`` has the failures, in groups."""
    all_told = [what for group in told for what in group]
    return {
        **{name: sum(getattr(outcome.findings, name) for outcome in outcomes) for name in COUNTED},
        "failures": len(all_told),
        "told": all_told[:TOLD_AT_MOST],
    }


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if anything is wrong."""
    given = parsed_arguments(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    warm_up()
    report, found = Report(given.folder / "report.json"), dict[str, Any]()
    with ExitStack() as stack:
        server = S3Server(given.folder / "s3.log")
        if {"s3", "copy"} & set(given.stores):
            stack.enter_context(server)
        obstacles = {store: PROGRAMS[store].install() for store in given.stores if store in PROGRAMS}
        # Fork while this process has no thread. No worker ever starts one.
        pool = stack.enter_context(multiprocessing.get_context("fork").Pool(given.processes))
        columns = (*ProgressLines.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[found]}"))
        progress = stack.enter_context(ProgressLines(*columns, console=console))
        for store in given.stores:
            campaign = Campaign(store, given.folder.resolve() / "work", server.storage_options)
            if obstacle := obstacles.get(store):
                found[store] = {"skipped": obstacle, "failures": 0}
            elif store in PROGRAMS:
                found[store] = prove_by_blows(campaign, given.kills, given.seed, pool, progress)
            else:
                found[store] = prove(campaign, given.steps_stride, pool, progress)
            report.write(found)
    report.show()
    failed = [store for store, of_store in found.items() if of_store["failures"]]
    return report.end(f"{len(found)} stores; failed: {', '.join(failed) or 'none'}", failed=bool(failed))


def parsed_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns stores", description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=sorted([*SEAMS, *PROGRAMS]), default=list(SEAMS))
    parser.add_argument("--steps-stride", type=int, default=1, help="kill only at every n-th moment")
    parser.add_argument(
        "--kills", type=int, default=100, help="kills of the server, and of the writer, on stores with a server"
    )
    parser.add_argument("--seed", type=int, default=1, help="selects those kills")
    parser.add_argument("--processes", type=int, default=2, help="concurrent cases")
    parser.add_argument("--folder", type=Path, default=Path("build/stores"), help="working folder; emptied first")
    return parser.parse_args(arguments)
