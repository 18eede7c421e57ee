"""``make jepsen``: three brokers, queries, cut networks and kills; and a checker on the readers' side.

``make jepsen SECONDS=600 SEED=1``; see ``docs/internals/jepsen.md``.
"""

import argparse
import contextlib
import fcntl
import itertools
import os
import random
import shutil
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks.peers import PeerMissing
from tests.campaigns.jepsen import clocks, contents, progress
from tests.campaigns.jepsen.brokers import Cluster
from tests.campaigns.jepsen.checker import COUNTS, Found, Sent, check, check_together
from tests.campaigns.jepsen.defects import planted
from tests.campaigns.jepsen.flink import FLINK, compared, compiled
from tests.campaigns.jepsen.flink import KIND as OF_FLINK
from tests.campaigns.jepsen.nemesis import KINDS as FAULTS
from tests.campaigns.jepsen.nemesis import NEED_CLOCKS, Fault, Nemesis, deck, left_out
from tests.campaigns.jepsen.network import Network, enter_namespace
from tests.campaigns.jepsen.postgres import NetworkedPostgres
from tests.campaigns.jepsen.query import KINDS as OURS
from tests.campaigns.jepsen.query import Query
from tests.campaigns.jepsen.reader import READERS, sightings
from tests.campaigns.model.observed import checked as checked_traces
from tests.campaigns.model.observed import read
from tests.campaigns.report import Report
from tests.support.full_disks import enter_namespace as enter_disks_namespace
from twopc_kafka_broker.errors import JarsNotAvailable
from twopc_kafka_broker.jars import broker_classpath

STUCK_S = 240
"""After so long without a batch although nothing is struck, a query counts as stuck."""

READING_S = 120
"""How long readers may take to the end, when nothing is written any more."""

LOOKS_AT_PROGRESS = 12
"""How often the brokers are asked for the offsets at the end, if they do not answer."""

LINE_INTERVAL_S = 5
IN_RECOVERY = 1 / 3
"""The share of strikes that do not wait for the recovery from the ones before."""

OVERLAPPING = 0.6
"""The share of strikes that get another one beside them."""

PROGRESS_COUNTS = ("progress_ahead", "progress_behind")

KINDS = {**OURS, FLINK: OF_FLINK}

console = Console()


Times = dict[str, float]
"""Seconds, by query."""


@dataclass(frozen=True)
class Recovery:
    """One recovery.

    Attributes:
        seconds: the time from the last heal until a query had run two more batches, and ``STUCK_S`` if it had not.
        unavailable_s: the longest since the first strike that a committed reader saw no new record of a query.
        struck: the faults since the recovery before.
    """

    seconds: Times
    unavailable_s: Times
    struck: Sequence[Fault]

    def report(self) -> dict[str, Any]:
        """Return the recovery as JSON."""
        struck = [fault.what for fault in self.struck]
        return {"seconds": self.seconds, "unavailable_s": self.unavailable_s, "struck": struck}


class Pauses:
    """Measures the longest time that a committed reader has seen no new record of a query."""

    def __init__(self, queries: Sequence[Query]) -> None:
        self._queries = queries
        self.begin()

    def begin(self) -> None:
        """Forget what was before."""
        now = time.monotonic()
        self._since = {query.name: (query.visible, now) for query in self._queries}
        self.longest_s = dict.fromkeys(self._since, 0.0)

    def look(self) -> None:
        """Look for new records."""
        now = time.monotonic()
        for query in self._queries:
            before, since = self._since[query.name]
            self.longest_s[query.name] = max(self.longest_s[query.name], round(now - since, 1))
            if query.visible != before:
                self._since[query.name] = (query.visible, now)


class Campaign:
    """Runs the faults, supervises the queries, and measures recovery."""

    def __init__(self, queries: Sequence[Query], nemesis: Nemesis, chance: random.Random, alone: bool) -> None:
        self._queries, self._nemesis, self._chance = queries, nemesis, chance
        self._overlapping, self._in_recovery = (0.0, 0.0) if alone else (OVERLAPPING, IN_RECOVERY)
        self._active: list[tuple[float, Fault]] = []
        self._began = self._shown = time.monotonic()
        self._doing = "starting"
        self._ours = [query for query in queries if query.is_ours]
        self._pauses = Pauses(queries)
        self._struck: list[Fault] = []
        self.recoveries: list[Recovery] = []
        self.stuck: list[str] = []

    def strike(self, seconds: float) -> None:
        """Strike for so long. Return when all faults are healed and all queries have recovered."""
        until = time.monotonic() + seconds
        self._doing = "striking"
        while time.monotonic() < until and not self.stuck:
            self._start()
            while self._chance.random() < self._overlapping:
                self._watch(self._chance.uniform(0, 3))
                self._start()
            self._watch(float("inf"), lambda: not self._active)
            if self._chance.random() >= self._in_recovery or time.monotonic() >= until:
                self.recover()
            self._watch(self._chance.uniform(0, 1.5))

    def _start(self) -> None:
        if not self._struck:
            self._pauses.begin()
        fault = self._nemesis.draw()
        self._show(fault.what)
        self._struck.append(fault)
        self._active.append((0.0, fault))
        self._tick()

    def recover(self) -> None:
        """Wait until each query has run a batch of which no part was before the last heal."""
        healed, before = time.monotonic(), {query.name: query.batches for query in self._queries}
        seconds: Times = {}

        def has_recovered() -> bool:
            for query in self._queries:
                if query.batches >= before[query.name] + 2:
                    seconds.setdefault(query.name, round(time.monotonic() - healed, 1))
            return len(seconds) == len(self._queries)

        if not self._watch(STUCK_S, has_recovered):
            self.stuck += [query.name for query in self._ours if query.name not in seconds]
            for query in self._queries:
                query.write_stacks()
        seconds = {**dict.fromkeys(before, STUCK_S), **seconds}
        self.recoveries.append(Recovery(seconds, dict(self._pauses.longest_s), self._struck))
        self._struck = []

    def finish(self) -> None:
        """Stop the queries, and wait until all readers have read to the end."""
        self._doing = "stopping"
        for query in self._queries:
            query.stop()
        self._close()
        for query in self._queries:
            query.recover()
        self._close()
        self._doing = "reading to the end"
        for query in self._queries:
            query.read_until(contents.ends(query.settings.topic, "read_uncommitted"))
        self._watch(READING_S, lambda: not any(query.readers_that_read_on() for query in self._queries))
        for query in self._queries:
            self.stuck += [f"{reader} of {query.name}" for reader in query.readers_that_read_on() if query.is_ours]

    def _close(self) -> None:
        if not self._watch(STUCK_S, lambda: all(query.is_closed for query in self._queries)):
            self.stuck += [f"the end of {query.name}" for query in self._ours if not query.is_closed]

    def _watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Supervise for so long, or until something is the case. Return whether it is."""
        deadline = time.monotonic() + seconds
        while not (reached := until()) and time.monotonic() < deadline:
            self._tick()
            time.sleep(0.05)
        return reached

    def _tick(self) -> None:
        now = time.monotonic()
        due = [each for each in self._active if each[0] <= now]
        self._active = [each for each in self._active if each[0] > now]
        for _, fault in due:
            with contextlib.suppress(StopIteration):
                self._active.append((time.monotonic() + next(fault.steps), fault))
        self._nemesis.supervise()
        for query in self._queries:
            query.supervise()
        self._pauses.look()
        if now - self._shown > LINE_INTERVAL_S:
            self._show("")

    def _show(self, what: str) -> None:
        """Print a line of progress."""
        self._shown = time.monotonic()
        batches = ", ".join(f"{query.name} {query.batches}" for query in self._queries)
        doing = f"{len(self._active)} faults" if self._active else self._doing
        elapsed = f"{self._shown - self._began:4.0f} s  {batches}; {doing}"
        console.print(f"{elapsed}{'; next: ' if what else ''}{what}", highlight=False, soft_wrap=True)


def _slowest_s(recovery: Recovery) -> float:
    return max(recovery.seconds.values())


def recovered(recoveries: Sequence[Recovery], query: str) -> dict[str, Any]:
    """Return how long a query was unavailable and took to recover, and the same for each kind of fault that struck
    alone."""
    alone: dict[str, list[Recovery]] = defaultdict(list)
    for recovery in recoveries:
        if len(recovery.struck) == 1:
            alone[recovery.struck[0].kind].append(recovery)
    return {
        "recovery_s": _of([each.seconds[query] for each in recoveries]),
        "unavailable_s": _of([each.unavailable_s[query] for each in recoveries]),
        "unavailable_alone_s": {
            kind: _of([each.unavailable_s[query] for each in found]) for kind, found in sorted(alone.items())
        },
        "recovery_alone_s": {
            kind: _of([each.seconds[query] for each in found]) for kind, found in sorted(alone.items())
        },
    }


def _of(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return how many there are, their median and the longest."""
    if not seconds:
        return None
    return {"times": len(seconds), "median": round(statistics.median(seconds), 1), "longest": max(seconds)}


def checked(query: Query, most: int, console_jars: Sequence[Path]) -> dict[str, Any]:
    """Compare what each reader saw of a query with what was sent."""
    history = query.settings.history()
    sent = Sent(history.next_batch(), history.votes(), most)
    found = {
        **{library: check(sent, sightings(query.seen_by(library)), is_ordered=True) for library in READERS},
        "files": check(sent, contents.in_files(query.settings), is_ordered=False),
        "postgres": check(sent, contents.in_postgres(query.settings), is_ordered=False),
        **{
            name: check(sent, contents.in_lake(table), is_ordered=False)
            for name, table in query.settings.lake().items()
        },
    }
    if console_jars:
        found["java"] = check(sent, contents.by_java(query.settings, console_jars), is_ordered=True)
    every: list[Found] = [*found.values(), check_together(found)]
    return {
        "batches": sent.batches,
        "records": sent.records,
        **{kind: sum(each.counts[kind] for each in every) for kind in COUNTS},
        "driver_starts": query.starts,
        "driver_ends": dict(query.ends),
        "checkpoint_lost": dict(query.checkpoint.lost),
        "checkpoint_repairs": dict(query.checkpoint.repairs),
        "recognized": history.recognitions,
        **checked_progress(query, sent),
        "leftovers": contents.leftovers(query.settings),
        "readers": {name: each.report() for name, each in found.items()},
        "torn_examples": every[-1].examples["torn"],
    }


def checked_progress(query: Query, sent: Sent) -> dict[str, Any]:
    """Return how often the consumer group's offsets were ahead of the output, and by how many batches they are behind
    at the end: all, if a transaction with offsets was left open."""
    if not query.is_loop:
        return dict.fromkeys(PROGRESS_COUNTS, 0)
    lines = query.progress.read_text(encoding="utf-8").splitlines()
    ahead = progress.ahead(lines, sent.most)
    looks = itertools.islice(progress.committed(query.settings, "read_committed"), LOOKS_AT_PROGRESS)
    behind = max(0, sent.batches - min(next(filter(None, looks), [0])))
    return {
        "progress_ahead": len(ahead),
        "progress_behind": behind,
        "progress_looks": len(lines),
        "progress_examples": ahead[:10],
    }


def downloaded() -> tuple[Path, ...]:
    """Download all jars, as the campaign's network reaches no repository. Return those of the console consumer; none if
    they could not be downloaded."""
    broker_classpath()
    try:
        return contents.console_jars()
    except JarsNotAvailable as error:
        console.print(f"Java reads nothing: {error}", highlight=False)
        return ()


def held_back(topic: str) -> dict[int, str]:
    """Return the partitions that a committed reader can't read to the end, and where an open transaction stops it."""
    committed, written = contents.ends(topic, "read_committed"), contents.ends(topic, "read_uncommitted")
    return {number: f"{committed[number]} of {end}" for number, end in written.items() if committed[number] < end}


def jepsen(
    arguments: argparse.Namespace, folder: Path, console_jars: Sequence[Path], no_disks: str | None
) -> dict[str, Any]:
    """Run the campaign. Return the report."""
    chance = random.Random(arguments.seed)  # noqa: S311  # it chooses the faults
    steps_clocks = not clocks.why_not() and not {*NEED_CLOCKS}.isdisjoint(arguments.only or FAULTS)
    network = Network(clocks.Clocks(folder / "clocks") if steps_clocks else None)
    with contextlib.ExitStack() as processes:
        postgres = processes.enter_context(NetworkedPostgres(network))
        cluster = Cluster(folder, network)
        processes.callback(cluster.close)
        if not no_disks:
            cluster.mount_disks()
        cluster.start()
        queries = []
        for kind in arguments.queries:
            given = {
                "records": arguments.records,
                "pace_s": arguments.pace,
                "defect": arguments.mutant,
                "has_lake": arguments.lake,
            }
            query = KINDS[kind].run_by(kind, KINDS[kind], folder, network, conninfo=postgres.conninfo, **given)
            cluster.create_topic(query.settings.topic)
            cluster.create_topic(query.settings.source)
            query.create_tables()
            if not no_disks:
                query.mount_disks()
            processes.callback(query.close)
            query.start()
            queries.append(query)
        missing = left_out(queries, no_disks)
        kinds = [kind for kind in arguments.only or FAULTS if kind not in missing]
        if not kinds:
            raise SystemExit(f"no kind of fault can strike: {missing}")
        nemesis = Nemesis(network, cluster, postgres, queries, chance, deck(kinds, arguments.alone))
        campaign = Campaign(queries, nemesis, chance, arguments.alone)
        campaign.recover()
        if campaign.stuck:
            raise SystemExit(f"no first batch of {', '.join(campaign.stuck)}; see {folder}")
        campaign.strike(arguments.seconds)
        campaign.finish()
        console.print("comparing")
        after_first = campaign.recoveries[1:]
        results = {
            query.name: {
                **(checked(query, arguments.records, console_jars) if query.is_ours else compared(query)),
                "held_back": held_back(query.settings.topic),
                **recovered(after_first, query.name),
            }
            for query in queries
        }
    found = {query.name: results.pop(query.name) for query in queries if query.is_ours}
    return {
        "seed": arguments.seed,
        "mutant": arguments.mutant,
        "seconds": arguments.seconds,
        "alone": arguments.alone,
        "faults": nemesis.faults.total(),
        "records": sum(of["records"] for of in found.values()),
        **{kind: sum(of[kind] for of in found.values()) for kind in (*COUNTS, *PROGRESS_COUNTS)},
        "stuck": len(campaign.stuck),
        "leftovers": sum(len(of["leftovers"]) for of in found.values()),
        "longest_recovery_s": max((each.seconds[name] for each in after_first for name in found), default=None),
        "stuck_names": campaign.stuck,
        "slowest_recoveries": [each.report() for each in sorted(after_first, key=_slowest_s, reverse=True)[:5]],
        "faults_by_kind": dict(sorted(nemesis.faults.items())),
        "kinds_left_out": {kind: why for kind, why in missing.items() if kind in (arguments.only or FAULTS)},
        "brokers_that_ended": dict(nemesis.ended_by_themselves),
        "queries": found,
        **results,  # of Flink
    }


def main(given: Sequence[str]) -> int:
    """Run the campaign. Return the exit code: 1 on any violation; with a planted defect, 1 if there is none."""
    arguments = parsed_arguments(given)
    no_disks = "full disks need root" if os.geteuid() else enter_disks_namespace("jepsen", given)
    console_jars = downloaded()
    if FLINK in arguments.queries:
        try:
            compiled()
        except PeerMissing as error:
            raise SystemExit(str(error)) from None
    enter_namespace(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that all started processes are ended
    folder = Path(arguments.folder).resolve()
    with alone_in(folder):
        return run(arguments, folder, console_jars, no_disks)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder for this campaign. Another one would remove the mount points of its disks.

    Raises:
        SystemExit: another campaign holds it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"error: another campaign runs in {folder}; choose another --folder") from None
        yield


def run(arguments: argparse.Namespace, folder: Path, console_jars: Sequence[Path], no_disks: str | None) -> int:
    """Run the campaign in its folder, which is emptied first, and check the traces. Return the exit code."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found = jepsen(arguments, folder, console_jars, no_disks)
    report = Report(folder / "report.json")
    report.write(found)  # it is kept if TLC fails
    traces = [read(name, folder / f"{name}.steps.jsonl", folder / name / "log") for name in found["queries"]]
    found |= checked_traces(traces, folder / "model")
    report.write(found)
    report.show(hidden=("queries", "slowest_recoveries", "rejected_traces"))
    counts = (*COUNTS, *PROGRESS_COUNTS, "stuck", "leftovers", "traces_rejected")
    wrong = Counter({kind: found[kind] for kind in counts})
    summary = f"{found['faults']} faults, {found['records']} records"
    if arguments.mutant:
        return report.end(
            f"{summary}; the defect was {f'found: {dict(+wrong)}' if wrong.total() else 'not found'}",
            failed=not wrong.total(),
        )
    if not wrong.total():
        return report.end(summary, failed=False)
    kept = folder.with_name(f"{folder.name}-failed-{arguments.seed}")
    shutil.rmtree(kept, ignore_errors=True)
    # A copy, as the disks vanish with this process. Kafka's indexes are sparse files that would be copied whole.
    shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("*.socket", "*.index", "*.timeindex"))
    return Report(kept / "report.json").end(f"{summary}; {dict(+wrong)}, so the folder is kept", failed=True)


def parsed_arguments(given: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns jepsen", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long to strike (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="selects the faults (default: %(default)s)")
    parser.add_argument("--queries", nargs="+", choices=KINDS, default=["arrow", "librdkafka-copies"])
    parser.add_argument("--lake", action="store_true", help="also write to an Iceberg table and a Delta table")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=(), help="kinds of faults (default: all)")
    parser.add_argument("--alone", action="store_true", help="strike each kind equally often, one fault at a time")
    parser.add_argument("--records", type=int, default=300, help="the most records per task (default: %(default)s)")
    parser.add_argument("--pace", type=float, default=0.1, help="longest pause of a task, in seconds (default: 0.1)")
    parser.add_argument("--mutant", default="", help="a defect to plant, which must be found")
    parser.add_argument("--folder", default="build/jepsen", help="working folder; emptied first")
    arguments = parser.parse_args(given)
    if arguments.queries == [FLINK]:
        parser.error("flink runs beside another query")
    try:
        with planted(arguments.mutant):
            pass
    except LookupError as error:
        parser.error(str(error))
    return arguments
