"""What the campaigns that kill a plain query at every step share: the cases of a kind of place, and the report."""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn

from tests.campaigns.every_step.blows import STARTS_AT_MOST, Struck, cases_for, struck, usual
from tests.campaigns.every_step.case import Outcome, killed_at, moments
from tests.campaigns.every_step.place import Places
from tests.campaigns.every_step.processes import AT_MOST_S
from tests.campaigns.report import Report
from tests.support.progress_lines import ProgressLines

TOLD_AT_MOST = 20
CASE_AT_MOST_S = 3 * AT_MOST_S
"""The longest time of a case. By then both of its processes have ended, or a worker of the pool is gone."""

BLOW_AT_MOST_S = (STARTS_AT_MOST + 2) * AT_MOST_S
"""The longest time of a case in which the query may be restarted."""

Proof: TypeAlias = "Callable[[Workers], dict[str, Any]]"

console = Console()


class Workers:
    """Processes that run cases, with a line of progress per kind of place.

    Upholds: they are forked while the campaign's process has no thread, and never start one.

    Args:
        processes: how many cases run at the same time.
        counted: the kinds of findings.
    """

    def __init__(self, processes: int, counted: Sequence[str]) -> None:
        self._pool: Any = multiprocessing.get_context("fork").Pool(processes)
        self._counted = counted
        columns = (*ProgressLines.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[found]}"))
        self._progress = ProgressLines(*columns, console=console)

    @contextmanager
    def running(self) -> Iterator[Workers]:
        with self._pool, self._progress:
            yield self

    def ask(self, call: Callable[[Places], Any], places: Places, at_most_s: float) -> Any:
        """Return the result of one call in a worker."""
        return self._pool.apply_async(call, (places,)).get(at_most_s)

    def run(self, name: str, case: Callable[[int], Any], work: Sequence[int], at_most_s: float) -> list[Any]:
        """Run all cases. Return their results in order of completion."""
        bar = self._progress.add_task(name, total=len(work), found="" if work else "an undisturbed run failed")
        outcomes: list[Any] = []
        results = self._pool.imap_unordered(case, work)
        for _ in work:
            outcomes.append(results.next(at_most_s))
            failed = sum(bool(outcome.findings.told) for outcome in outcomes)
            self._progress.update(bar, advance=1, found=f"{failed} failed" if failed else "")
        return outcomes

    def bar(self, name: str, total: int) -> Callable[[], None]:
        """Add a line of progress. Return what advances it by one."""
        bar = self._progress.add_task(name, total=total, found="")
        return lambda: self._progress.advance(bar)

    def summary(self, outcomes: Sequence[Any], *told: Sequence[str]) -> dict[str, Any]:
        """Return the part of the report that all kinds of cases share. ``told`` has the failures, in groups."""
        all_told = [what for group in told for what in group]
        return {
            **{name: sum(outcome.findings.counts.get(name, 0) for outcome in outcomes) for name in self._counted},
            "failures": len(all_told),
            "told": all_told[:TOLD_AT_MOST],
        }


def prove(places: Places, stride: int, workers: Workers) -> dict[str, Any]:
    """Kill a writer at every ``stride``-th moment. Return the report."""
    started = time.monotonic()
    steps, names, told = workers.ask(moments, places, CASE_AT_MOST_S)
    work = range(0, 0 if told else len(names), stride)
    outcomes: list[Outcome] = workers.run(places.name, partial(killed_at, places), work, CASE_AT_MOST_S)
    kills = sum(outcome.was_killed for outcome in outcomes)
    return {
        "steps": steps,
        "moments": len(names),
        "kills": kills,
        **workers.summary(
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


def prove_by_blows(places: Places, kills: int, seed: int, workers: Workers) -> dict[str, Any]:
    """Kill each of the victims ``kills`` times during commits. Return the report."""
    started = time.monotonic()
    as_usual = workers.ask(usual, places, BLOW_AT_MOST_S)
    told = as_usual.told or ([] if as_usual.commits else ["it committed nothing"])
    work = range(0 if told else cases_for(places.victims, kills))
    outcomes: list[Struck] = workers.run(places.name, partial(struck, places, seed, as_usual), work, BLOW_AT_MOST_S)
    names = sorted({name for together in places.victims for name in together})
    killed = {name: sum(name in outcome.killed for outcome in outcomes) for name in names}
    return {
        "cases": len(outcomes),
        "usual_commit_ms": round(as_usual.commit_s * 1000, 1),
        **{f"{name}_kills": count for name, count in killed.items()},
        "amid_a_commit": sum(outcome.in_flight > 0 for outcome in outcomes),
        "stops": {" and ".join(who): sum(o.stops for o in outcomes if o.killed == who) for who in places.victims},
        "mended": sum(outcome.mended for outcome in outcomes),
        **workers.summary(
            outcomes,
            [f"undisturbed: {what}" for what in told],
            [
                f"case {o.number}, {' and '.join(o.killed) or 'nothing'} killed: {what}"
                for o in sorted(outcomes, key=lambda outcome: outcome.number)
                for what in o.findings.told
            ],
            [f"{name}: {count} kills of {kills}" for name, count in killed.items() if not told and count < kills],
        ),
        "seconds": round(time.monotonic() - started, 1),
    }


def skipped(reason: str) -> Proof:
    """Return what reports that a kind of place is not possible here."""
    return lambda _: {"skipped": reason, "failures": 0}


def parser(campaign: str, description: str | None, kills: int) -> argparse.ArgumentParser:
    """Return a parser of what these campaigns take. ``kills``: how many there are by default."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.campaigns {campaign}", description=description)
    parser.add_argument("--steps-stride", type=int, default=1, help="kill only at every n-th moment")
    what = "kills amid commits: of the server, if there is one, and of the writer"
    parser.add_argument("--kills", type=int, default=kills, help=what)
    parser.add_argument("--seed", type=int, default=1, help="selects the kills amid commits")
    parser.add_argument("--processes", type=int, default=2, help="concurrent cases")
    parser.add_argument("--folder", type=Path, default=Path("build") / campaign, help="working folder; emptied first")
    return parser


def run_all(
    given: argparse.Namespace, proofs_in: Callable[[Path, ExitStack], Mapping[str, Proof]], counted: Sequence[str]
) -> int:
    """Prove every kind of place, and write the report of each as it ends. Return the exit code: 1 if anything is wrong.

    Args:
        given: what ``parser`` has parsed.
        proofs_in: returns the proofs, given the campaign's folder and what ends their servers.
        counted: the kinds of findings.
    """
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    report, found = Report(given.folder / "report.json"), dict[str, Any]()
    with ExitStack() as servers:
        proofs = proofs_in(given.folder.resolve(), servers)
        workers = Workers(given.processes, counted)
        with workers.running():
            for name, proof in proofs.items():
                found[name] = proof(workers)
                report.write(found)
    report.show()
    failed = [name for name, of_place in found.items() if of_place["failures"]]
    return report.end(f"{len(found)} kinds of places; failed: {', '.join(failed) or 'none'}", failed=bool(failed))
