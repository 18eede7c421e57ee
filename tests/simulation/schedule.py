"""One run of the real code in the simulated world, by one scenario and one schedule, with every check."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import orjson

from tests.simulation.disk import Disk, Folder, OperatingSystem
from tests.simulation.kafka_model import Broker, SimulatedKafkaSink
from tests.simulation.ledger import FolderAsLog, Ledger
from tests.simulation.object_store import ObjectStore
from tests.simulation.records import Records, RowsFormat, rows_of, share
from tests.simulation.spark_model import DRIVERS_AT_MOST, Spark
from tests.simulation.stage import SimulatedStage
from tests.simulation.world import OUTLIVING, Drawn, Fault, Faults, Op, Planned, Step, Violation, World
from twopc import commit_log, coordinator, entries, log_store, pending, transactional_ids
from twopc.errors import Retriable
from twopc.log_store import LocalStore, LogStore
from twopc.participant import Participant
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable
from twopc.transactional_ids import Round
from twopc_files.layout import Layout
from twopc_files.sink import FileSink
from twopc_files.stores import local
from twopc_files.stores.local import Local
from twopc_kafka import sink as kafka_sink

REAL_SLOTS = transactional_ids.INCARNATION_SLOTS, transactional_ids.BATCH_SLOTS

NAP = Op("wait before a repeat", None)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a schedule disturbs. With the schedule it says everything about a run.

    Attributes:
        sinks: ``k`` for Kafka, ``f`` for files, one letter a sink.
        log: ``object store`` or ``disk``.
        batches: before the one that the last, undisturbed restart adds.
        partitions: of successive incarnations, in turn.
        entries_kept: how soon the log is pruned.
        end_txn_version: 5 where Kafka raises the epoch with each end, 4 where it does not.
        stage: whether participants leave a copy of what they write.
        backlog: whether the log starts with two decided batches of which nothing is committed.
        orphans: whether the log starts with an open round that nobody has decided.
        slots: after how many incarnations and batches names recur. Where after fewer than in reality, no zombie may
            outlive them: that is beyond what the pool promises.
        stage_retries_count_on: whether the attempts of a stage that is begun anew have serial numbers of their own, as
            the bridge to Spark gives them. Without, a late attempt takes over the name of one that has voted.
    """

    sinks: str = "kf"
    log: str = "object store"
    batches: int = 1
    partitions: tuple[int, ...] = (2,)
    rows_a_batch: int = 3
    entries_kept: int = 32
    end_txn_version: int = 5
    stage: bool = False
    backlog: bool = False
    orphans: bool = False
    stage_retries_count_on: bool = True
    slots: tuple[int, int] = REAL_SLOTS


@dataclass(slots=True)
class Result:
    """What became of one run."""

    scenario: Scenario
    violation: str | None
    schedule: dict[int, Fault]
    trace: list[Step] = field(default_factory=list)
    steps: int = 0
    stopped: bool = False
    incarnations: int = 0


class SimulatedFileSink(FileSink):
    """The real sink, on the simulated disk."""

    def __init__(self, broker: Broker, disk: Disk, name: str) -> None:
        self._broker = broker
        self._store = Local(disk.path("data", name))  # type: ignore[arg-type]
        self._format = RowsFormat()  # type: ignore[assignment]
        self._layout = Layout()
        self._batch_logs = ()

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:
        self._broker.on_complete(self.transactional_ids.sink, batch_id)


class _Clock:
    """``time`` for the real code: the world's."""

    world: World

    def monotonic(self) -> float:
        return (self.world.now_ms - self.world.suspended_ms) / 1000

    perf_counter = monotonic
    time = monotonic

    def sleep(self, seconds: float) -> None:  # its jitter is random
        self.world.step(NAP, _nothing)


def _nothing() -> None:
    """Only time goes by."""


_CLOCK = _Clock()
_OS = OperatingSystem()


def _until_answered(_what: str, call: Callable[..., None], *arguments: object, tell: object) -> None:
    """As much of tenacity as the coordinator uses: a third of the time of a run would go into its own."""
    while True:
        try:
            return call(*arguments)
        except Retriable:
            _CLOCK.sleep(0)


# An entry that is indented is not encoded in C.
_JSON = SimpleNamespace(dumps=lambda value, indent: orjson.dumps(value).decode(), loads=json.loads)


def _one_moment() -> str:
    return "2026-01-01T00:00:00.000+00:00"


class _Ids:
    """Unique ids, the same in every run of a schedule."""

    count = 0

    def new(self) -> str:
        self.count += 1
        return f"{self.count:012d}"


_IDS = _Ids()


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Put the world in the place of clock, disk and randomness, for the code under test alone."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    parse = functools.lru_cache(maxsize=20_000)(entries.parse)
    uuids = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=_IDS.new()))
    with (
        mock.patch.object(coordinator, "time", _CLOCK),
        mock.patch.object(pending, "time", _CLOCK),
        mock.patch.object(kafka_sink, "time", _CLOCK),
        mock.patch.object(coordinator, "until_answered", _until_answered),
        mock.patch.object(entries, "json", _JSON),
        mock.patch.object(commit_log, "parse", parse),
        mock.patch.object(entries, "parse", parse),
        mock.patch.object(commit_log, "ENTRIES_KEPT", commit_log.ENTRIES_KEPT),
        mock.patch.object(transactional_ids, "INCARNATION_SLOTS", transactional_ids.INCARNATION_SLOTS),
        mock.patch.object(transactional_ids, "BATCH_SLOTS", transactional_ids.BATCH_SLOTS),
        mock.patch.object(entries, "_new_id", _IDS.new),
        mock.patch.object(entries, "_now", _one_moment),
        mock.patch.object(log_store, "os", _OS),
        mock.patch.object(log_store, "uuid", uuids),
        mock.patch.object(local, "os", _OS),
        mock.patch.object(local, "open", lambda path, mode: path.open(mode), create=True),
    ):
        try:
            yield
        finally:
            logging.disable(disabled)


def run_schedule(scenario: Scenario, schedule: Mapping[int, Fault], *, traced: bool = False) -> Result:
    """Run with the faults of a schedule. Within ``simulated``."""
    return _run(scenario, Planned(schedule), traced)


def run_drawn(scenario: Scenario, seed: int) -> Result:
    """Run a scenario with faults that a seed draws. Within ``simulated``."""
    rng = random.Random(seed)
    return _run(scenario, Drawn(rng, rng.choice((2, 3, 4)), rng.choice((8, 16, 30))), traced=False)


def run_seed(seed: int) -> tuple[Scenario, Result]:
    """Run a scenario and faults that a seed draws. Within ``simulated``."""
    rng = random.Random(seed)
    scenario = Scenario(
        sinks=rng.choice(("kf", "kf", "kk", "ff", "k", "f")),
        log=rng.choice(("object store", "object store", "disk")),
        batches=rng.choice((1, 2, 2, 3)),
        partitions=rng.choice(((1,), (2,), (1, 2), (2, 1), (3, 2))),
        rows_a_batch=rng.choice((3, 3, 2, 0)),
        entries_kept=rng.choice((32, 1, 2)),
        end_txn_version=rng.choice((5, 5, 4)),
        stage=rng.random() < 0.25,
        backlog=rng.random() < 0.1,
        slots=rng.choice((REAL_SLOTS, (8, 2))),
    )
    budget, gap = rng.choice((1, 2, 3, 4, 6)), rng.choice((8, 25, 60))
    without = () if scenario.slots == REAL_SLOTS else OUTLIVING
    return scenario, _run(scenario, Drawn(rng, budget, gap, without), traced=False)


def _run(scenario: Scenario, faults: Faults, traced: bool) -> Result:
    _IDS.count = 0
    transactional_ids.INCARNATION_SLOTS, transactional_ids.BATCH_SLOTS = scenario.slots
    commit_log.ENTRIES_KEPT = scenario.entries_kept
    world = World(faults, records_trace=traced)
    _CLOCK.world = world
    disk = _OS.disk = Disk(world)
    broker = Broker(world, scenario.end_txn_version)
    ledger = Ledger(broker, disk)
    world.on_time_out = broker.time_out
    world.on_power_cut = disk.power_cut
    _disk_for(scenario, disk)
    spark = Spark(
        world,
        ledger,
        _log_of(scenario, world, disk, ledger),
        lambda: _sinks_of(scenario, broker, disk),
        scenario.partitions,
        scenario.rows_a_batch,
        scenario.batches,
        SimulatedStage(disk, _OS) if scenario.stage else None,
        scenario.stage_retries_count_on,
    )
    if scenario.backlog or scenario.orphans:
        _leave_something_behind(scenario, spark)

    def expire() -> None:
        ledger.expired = True
        broker.expire()

    def suspend() -> None:
        before_ms = world.now_ms
        broker.time_out()
        world.suspended_ms += world.now_ms - before_ms

    world.on_expiry = expire
    world.on_suspension = suspend
    spark.start_driver()
    world.run(spark.needs_a_driver)
    if world.violation is None:
        _end(scenario, world, spark, ledger, disk)
    return Result(
        scenario,
        world.violation,
        world.happened,
        world.trace,
        world.steps,
        spark.stopped is not None,
        ledger.incarnation,
    )


def _end(scenario: Scenario, world: World, spark: Spark, ledger: Ledger, disk: Disk) -> None:
    """One more restart that nobody disturbs, with one more batch; then everything is checked."""
    had_stopped = spark.forget_stop()
    world.faults, world.is_disturbed = Planned({}), False
    spark.batches += 1
    del spark.drivers[: len(spark.drivers)]
    spark.start_driver()
    world.run(spark.needs_a_driver)
    try:
        if world.violation:
            return
        if spark.stopped:
            ledger.check_contents_after_a_stop()
            return
        if had_stopped:
            raise Violation(f"the query had stopped and then went on: {had_stopped}")
        if spark.noted < spark.batches:
            raise Violation(f"batch {spark.noted} can't be run any more, {len(spark.drivers)} drivers")
        ledger.check_completions(_names(scenario), spark.batches - 1)
        ledger.check_quiescent()
        disk.power_cut(keeps_names=False)
        rows = [row for batch in range(spark.batches) for row in rows_of(batch, scenario.rows_a_batch)]
        ledger.check_contents(f"{name}/{row}" for name in _names(scenario) for row in rows)
    except Violation as violation:
        world.violation = str(violation)


def _leave_something_behind(scenario: Scenario, spark: Spark) -> None:
    """Two decided batches that nobody has committed yet, as an incarnation leaves them that commits late; or a round
    that was not decided, as one leaves it that was killed."""
    tail = entries.opened(None, "query")
    coordinator, sinks = spark.coordinator()
    written = [tail]
    for batch_id in range(2 if scenario.backlog else 1):
        votes = []
        for partition in range(scenario.partitions[0]):
            for name, sink in sinks.items():
                sink.bind(name, tail.log_id, coordinator._stage if sink.rolls_back_by_itself else None)
            with Participant(sinks, Round(1, batch_id), partition) as participant:
                rows = share(rows_of(batch_id, scenario.rows_a_batch), partition, scenario.partitions[0])
                for name in sinks:
                    participant.write(name, Records(tuple(f"{name}/{row}" for row in rows)))
                votes.append(participant.pre_commit())
        if not scenario.backlog:
            break
        sealed = {
            name: tuple(sink.seal([vote[name] for vote in votes if name in vote], 0.0)) for name, sink in sinks.items()
        }
        tail = entries.decided(tail, entries.Decision(Round(1, batch_id), sealed), None)
        written.append(tail)
    for slot, entry in enumerate(written):
        coordinator._store.put_if_absent(slot, entries.serialise(entry))
    if scenario.backlog:
        spark.noted = 1
        spark.batches = max(2, scenario.batches)


def _names(scenario: Scenario) -> list[str]:
    return [f"{number}{kind}" for number, kind in enumerate(scenario.sinks)]


def _sinks_of(scenario: Scenario, broker: Broker, disk: Disk) -> Mapping[str, TwoPhaseCommitSink[Any]]:
    return {
        name: SimulatedKafkaSink(broker) if name.endswith("k") else SimulatedFileSink(broker, disk, name)
        for name in _names(scenario)
    }


def _disk_for(scenario: Scenario, disk: Disk) -> None:
    """Folders that an administrator has made."""
    disk.make_folder(("data",))
    disk.make_folder(("log",))
    disk.make_folder(("stage",))
    for name in _names(scenario):
        if name.endswith("f"):
            disk.make_folder(("data", name))
    data = disk.folder(("data",))
    data.synced = dict(data.entries)
    disk.root.synced = dict(disk.root.entries)


def _log_of(scenario: Scenario, world: World, disk: Disk, ledger: Ledger) -> Callable[[], LogStore]:
    if scenario.log == "disk":
        folder = disk.root.entries["log"]
        assert isinstance(folder, Folder)
        FolderAsLog(disk, ledger, folder)
        return lambda: LocalStore("simulated://log", disk.path("log"))  # type: ignore[arg-type]
    store = ObjectStore(world)
    store.on_put = ledger.entry_is_durable
    return lambda: store


assert DRIVERS_AT_MOST < 8, "more incarnations than names: a zombie may meet its own"
