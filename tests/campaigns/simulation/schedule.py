"""One run of the real code in the simulated world: one scenario and one schedule, with every check."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import orjson

from tests.campaigns.simulation.checkpoint import Checkpoint
from tests.campaigns.simulation.database_model import KeyedTable, SimulatedSqlSink, keyed_tables
from tests.campaigns.simulation.disk import Disk, Folder, OperatingSystem
from tests.campaigns.simulation.kafka_model import Broker, SimulatedKafkaSink
from tests.campaigns.simulation.ledger import FolderAsLog, Ledger, commits_last
from tests.campaigns.simulation.machines import Forgotten, Machines
from tests.campaigns.simulation.object_store import ObjectStore
from tests.campaigns.simulation.promises import Broken, Promise, Violation
from tests.campaigns.simulation.records import Records, RowsFormat, contents_of, rows_between, sum_of_hashes, written_to
from tests.campaigns.simulation.scenario import REAL_SLOTS, Scenario
from tests.campaigns.simulation.spark_model import FAILS, MINUTES_AT_MOST, Batch, Spark
from tests.campaigns.simulation.stage import SimulatedStage
from tests.campaigns.simulation.table_model import SimulatedTableSink, Table, tables_of
from tests.campaigns.simulation.world import STEPS_AT_MOST, Drawn, Fault, Faults, Op, Planned, Step, World
from twopc import commits, failures, participant, performer, repetition
from twopc.errors import RepeatedFailure, Retriable
from twopc.log import commit_log, entries, entry_json, steps
from twopc.log import store as log_store
from twopc.log.store import LocalStore, LogStore
from twopc.participant import Participant
from twopc.phases import Phase
from twopc.sink import TwoPhaseCommitSink
from twopc.stores import disk, folder
from twopc.transaction import Committable
from twopc.transactional_ids import Round
from twopc_files.layout import Layout
from twopc_files.sink import FileSink
from twopc_files.stores import local
from twopc_files.stores.local import Local
from twopc_kafka import ending, hanging, leases
from twopc_kafka import sink as kafka_sink
from twopc_sql import sink as sql_sink

ResultT = TypeVar("ResultT")

WITH_TABLES = ("t", "kt", "ft", "kft", "tt", "ktt")
"""The sinks of every fifth seed."""

WITH_KEYS = ("d", "kd", "fd", "dt", "dd")
"""The sinks of every thirteenth seed."""

NAP = Op("wait before a repeat", None)


@dataclass(slots=True)
class Result:
    """The result of one run."""

    scenario: Scenario
    violation: Broken | None
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
        self._hidden_since = {}

    def validate(self, schema: object) -> None:
        """Accept all: the simulation's records are not Arrow data."""

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:
        self._broker.on_complete(self.transactional_ids.sink, batch_id)


class _Clock:
    """Replaces ``time`` in the real code by the world's clock."""

    world: World

    def monotonic(self) -> float:
        return (self.world.now_ms - self.world.suspended_ms) / 1000

    perf_counter = monotonic
    time = monotonic

    def sleep(self, seconds: float) -> None:  # the argument is ignored: its jitter is random
        self.world.idle(NAP)


_CLOCK = _Clock()
_MACHINES = Machines()
_OS = OperatingSystem()


def _until_answered(
    _what: str, call: Callable[..., ResultT], *arguments: object, patience_s: float | None = None, **_of_logging: object
) -> ResultT:
    """Replaces ``until_answered``, which waits by the real clock. A call with limited patience is made twice."""
    if patience_s is not None:
        with contextlib.suppress(Retriable):
            return call(*arguments)
        _CLOCK.sleep(0)
        return call(*arguments)
    while True:
        try:
            return call(*arguments)
        except Retriable:
            _CLOCK.sleep(0)


def _until_stable(_store: object, look: Callable[[], ResultT]) -> ResultT:
    """Replaces ``_until_stable``, which waits by the real clock. The simulated stores never contradict themselves, so a
    look that another process disturbed is repeated at once."""
    while True:
        with contextlib.suppress(steps.Changed):
            return look()


_JSON = SimpleNamespace(dumps=lambda value: orjson.dumps(value).decode(), loads=orjson.loads)


class _Ids:
    """Unique ids, the same in every run of a schedule."""

    count = 0

    def new(self) -> str:
        self.count += 1
        return f"{self.count:012d}"

    def token(self, _length: int) -> str:
        self.count += 1
        return f"{self.count:016x}"


_IDS = _Ids()


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Replace clock, disk and randomness by the world's, in the code under test only."""
    parse_once = functools.lru_cache(maxsize=20_000)(functools.partial(entry_json.parse, where="the simulated log"))
    minutes = SimpleNamespace(time=functools.partial(next, itertools.count(0, entries.A_START_S)))  # all failures count
    uuids = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=_IDS.new()))
    replaced: tuple[tuple[ModuleType, str, object], ...] = (
        (performer, "time", _CLOCK),
        (kafka_sink, "time", _CLOCK),
        (failures, "time", _CLOCK),
        (sql_sink, "until_answered", _until_answered),
        (ending, "time", _CLOCK),
        (hanging, "time", _CLOCK),
        (commits, "until_answered", _until_answered),
        (performer, "until_answered", _until_answered),
        (participant, "until_answered", _until_answered),
        (participant, "sum_of_hashes", sum_of_hashes),
        (entry_json, "_laid_out", lambda value: orjson.dumps(value).decode()),  # the line layout can't be produced in C
        (entry_json, "json", _JSON),
        (entry_json, "parse", lambda data, _where: parse_once(data)),
        (entries, "_new_id", _IDS.new),
        (entries, "time", minutes),
        (repetition, "MINUTES_AT_MOST", MINUTES_AT_MOST),
        (entries, "_now", lambda: "2026-01-01T00:00:00.000+00:00"),
        (commit_log, "parse", lambda data, _where: parse_once(data)),
        (commit_log, "parse_id", lambda data, _where: parse_once(data).entry_id),
        (commit_log, "_until_stable", _until_stable),
        (steps, "ENTRIES_KEPT", steps.ENTRIES_KEPT),
        (leases, "json", _JSON),
        (leases, "_to_json", orjson.dumps),
        (leases, "open_slot", _MACHINES.open_slot),
        (leases, "_boot", _MACHINES.boot),
        (leases, "_searched", Forgotten()),
        (leases, "secrets", SimpleNamespace(token_hex=_IDS.token)),
        (leases, "BATCH_SLOTS", REAL_SLOTS),
        (log_store, "mount_of", lambda _: None),
        (disk, "os", _OS),
        (folder, "uuid", uuids),
        (local, "os", _OS),
        (local, "open", lambda path, mode: path.open(mode)),
    )
    with contextlib.ExitStack() as stack:
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        for module, name, stand_in in replaced:
            stack.enter_context(mock.patch.object(module, name, stand_in, create=name == "open"))
        yield


def run_schedule(scenario: Scenario, schedule: Mapping[int, Fault], *, traced: bool = False) -> Result:
    """Run with the faults of a schedule. Call it within ``simulated``."""
    return _run(scenario, Planned(schedule), traced)


def run_drawn(scenario: Scenario, seed: int) -> Result:
    """Run a scenario with faults drawn by a seed. Call it within ``simulated``."""
    rng = random.Random(seed)
    return _run(scenario, Drawn(rng, rng.choice((2, 3, 4)), rng.choice((8, 16, 30))), traced=False)


def run_seed(seed: int) -> Result:
    """Run a scenario and faults drawn by a seed. Call it within ``simulated``."""
    rng = random.Random(seed)
    scenario = _scenario_of(seed, rng)
    return _run(scenario, Drawn(rng, rng.choice((1, 2, 3, 4, 6)), rng.choice((8, 25, 60))), traced=False)


def _scenario_of(seed: int, rng: random.Random) -> Scenario:
    """Return the scenario of a seed. ``rng``: has drawn nothing since it got the seed."""
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
        late_begin=rng.random() < 0.1,
        machines=rng.choice((1, 1, 2, 3)),
        slots=rng.choice((REAL_SLOTS, 2)),
        runs=rng.choice((1, 1, 2)),
        rests=rng.random() < 0.3,
        syncs_checkpoint=rng.random() < 0.5,
    )
    if scenario.backlog:
        scenario = replace(scenario, slots=REAL_SLOTS, late_begin=False)
    if seed % 5 == 4:  # drawn apart, so that all other seeds stay as they are
        turn, sinks = divmod(seed // 5, len(WITH_TABLES))
        scenario = replace(scenario, sinks=WITH_TABLES[sinks], joint=turn % 2 == 1)
    if seed % 13 == 9:
        scenario = replace(scenario, sinks=WITH_KEYS[seed // 13 % len(WITH_KEYS)])
    if seed % 7 == 6:
        scenario = replace(scenario, recompute=True, stage=False)
    if seed % 11 == 7:
        scenario = replace(scenario, sinks="p" + scenario.sinks)
    if seed % 17 == 5:
        scenario = replace(scenario, fails=FAILS[seed // 17 % len(FAILS)])
    return scenario


def _run(scenario: Scenario, faults: Faults, traced: bool) -> Result:
    _IDS.count = 0
    # For the backlog: no coordinator leaves two batches whose names would collide.
    vars(leases)["BATCH_SLOTS"] = REAL_SLOTS
    steps.ENTRIES_KEPT = scenario.entries_kept
    world = World(faults, records_trace=traced)
    _CLOCK.world = world
    _MACHINES.enter(world)
    disk = _OS.disk = Disk(world)
    broker = Broker(world, scenario.end_txn_version)
    tables: Mapping[str, Table | KeyedTable] = {
        **tables_of(world, _names(scenario)),
        **keyed_tables(world, _names(scenario)),
    }
    ledger = Ledger(broker, disk, tables)
    _disk_for(scenario, disk)
    spark = Spark(
        world,
        ledger,
        Checkpoint(scenario.rows_a_batch),
        _log_of(scenario, world, disk, ledger),
        lambda: _sinks_of(scenario, broker, disk, tables),
        scenario,
        SimulatedStage(disk, _OS) if scenario.stage else None,
    )
    if scenario.backlog or scenario.orphans:
        _leave_something_behind(scenario, spark)
    vars(leases)["BATCH_SLOTS"] = scenario.slots
    if scenario.late_begin:
        _leave_begins_under_way(scenario, spark, broker)

    _let_happen(scenario, world, spark, ledger, broker, disk, tables.values())
    spark.start_driver()
    world.run(spark.needs_a_driver)
    if world.violation is None:
        _end(scenario, world, spark, ledger, disk)
    result = Result(
        scenario,
        world.violation,
        world.happened,
        world.trace,
        world.steps,
        spark.stopped is not None,
        ledger.incarnation,
    )
    for model in (world, disk, broker, ledger, spark):
        vars(model).clear()  # they refer to each other, and would wait for the garbage collector
    return result


def _let_happen(  # all that a fault can hit
    scenario: Scenario,
    world: World,
    spark: Spark,
    ledger: Ledger,
    broker: Broker,
    disk: Disk,
    tables: Collection[Table | KeyedTable],
) -> None:
    """Define the faults that hit more than one process."""

    def time_out() -> None:
        broker.time_out()
        for table in tables:
            table.time_out()

    def expire() -> None:
        time_out()
        ledger.ids_expire()
        broker.expire()

    def suspend() -> None:
        before_ms = world.now_ms
        time_out()
        world.suspended_ms += world.now_ms - before_ms

    def cut_power(keeps_names: bool) -> None:
        disk.power_cut(keeps_names)
        _MACHINES.power_cuts()
        if not scenario.syncs_checkpoint:
            spark.checkpoint.fall_back(Fault.TWO_BEHIND if keeps_names else Fault.ONE_BEHIND)

    def befall(fault: Fault) -> None:
        if fault is Fault.LOG_BEHIND:
            _put_back(spark, ledger)
        elif not spark.log_is_backup:
            spark.checkpoint.fall_back(fault)

    world.on_expiry = expire
    world.on_suspension = suspend
    world.on_power_cut = cut_power
    world.on_other = befall
    world.on_time_out = time_out
    world.on_machine_power_cut = _MACHINES.power_cut


def _end(scenario: Scenario, world: World, spark: Spark, ledger: Ledger, disk: Disk) -> None:
    """Restart once more, undisturbed and with one more batch. Then check everything."""
    had_stopped = spark.forget_stop()
    spark.failing.end()
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
        repartitioned = scenario.recompute and not scenario.partitions_are_the_same
        is_corrected = isinstance(had_stopped, RepeatedFailure)
        if had_stopped and not ledger.is_restored and not repartitioned and not is_corrected:
            raise Violation(
                Promise.STOPS_FOR_GOOD, f"the query had stopped, but continued after a restart: {had_stopped}"
            )
        checkpoint = spark.checkpoint
        if checkpoint.noted < spark.batches:
            raise Violation(Promise.ENDS, f"batch {checkpoint.noted} was not run by {len(spark.drivers)} drivers")
        ledger.check_completions(_names(scenario), spark.batches - 1)
        ledger.check_quiescent()
        disk.power_cut(keeps_names=False)
        rows = rows_between(0, checkpoint.ends[spark.batches - 1])
        ledger.check_contents(itertools.chain.from_iterable(contents_of(name, rows) for name in _names(scenario)))
    except Violation as violation:
        world.violation = violation.broken


def _put_back(spark: Spark, ledger: Ledger) -> None:
    """Restore a backup of the log, under three conditions.

    The checkpoint records everything that the backup lacks and has not fallen back itself; otherwise the loss could not
    be detected. No process is active. No coordinator has the log open, because its next entry would supply everything
    that the backup lacks.
    """
    store, done = spark.log(), spark.checkpoint.done
    if (
        not isinstance(store, ObjectStore)
        or spark.log_is_backup
        or spark.checkpoint.has_fallen_back
        or not done
        or not spark.world.is_quiet
        or (spark.newest_coordinator and spark.newest_coordinator.phase is not Phase.CLOSED)
        or ledger.decided_batch not in done
    ):
        return
    newest, on_put = store.entries, store.on_put
    first = min(slot for slot, data in newest.items() if entry_json.parse(data, "").decided == ledger.decided_batch)
    store.entries = {slot: data for slot, data in newest.items() if slot < first}
    store.on_put = lambda _slot, _data: None
    spark.log_is_backup = True

    def restore() -> None:
        store.entries, store.on_put = newest, on_put

    spark.restore_log = restore


def _leave_something_behind(scenario: Scenario, spark: Spark) -> None:
    """Start with two decided, uncommitted batches, as an incarnation that commits late leaves them; or with an
    undecided round, as a killed incarnation leaves it."""
    tail = entries.opened(None, "query")
    coordinator, sinks = spark.coordinator()
    written = [tail]
    for batch_id in range(2 if scenario.backlog else 1):
        end = spark.checkpoint.plan(batch_id, batch_id and spark.checkpoint.ends[batch_id - 1])
        batch = Batch(batch_id, end - scenario.rows_a_batch, end)
        votes = []
        for partition in range(scenario.partitions[0]):
            for name, sink in sinks.items():
                sink.bind(name, tail.log_id, coordinator._performer.replay_copies if sink.may_time_out else None)
            with Participant(sinks, Round(1, batch_id), partition=partition) as participant:
                for name in sinks:
                    records = Records(written_to(name, batch.rows(), partition, scenario.partitions[0]))
                    hashes: Any = records.hashes() if scenario.recompute else None
                    participant.write(name, records, hashes)
                votes.append(participant.pre_commit())
        if not scenario.backlog:
            break
        sealed = {
            name: tuple(sink.seal([vote[name] for vote in votes if name in vote], 0.0)) for name, sink in sinks.items()
        }
        entry = entries.decided(tail, entries.Decision(Round(1, batch_id), sealed), batch.reads)
        tail = replace(entry, unresolved=(*tail.unresolved, *entry.unresolved))
        written.append(tail)
    for slot, entry in enumerate(written):
        spark.log().put_if_absent(slot, entry_json.serialise(entry))
    if scenario.backlog:
        spark.checkpoint.note(0)
        spark.batches = max(2, scenario.batches)


def _leave_begins_under_way(scenario: Scenario, spark: Spark, broker: Broker) -> None:
    """Start with requests in flight from a task that is dead, as is its coordinator."""
    coordinator, sinks = spark.coordinator()
    tail = entries.opened(None, "query")
    coordinator._store.put_if_absent(0, entry_json.serialise(tail))
    for name, sink in sinks.items():
        if name[-1] in "kp":
            sink.bind(name, tail.log_id)
            leased = leases.lease(sink.transactional_ids.scope, (1, 0)).name
            spark.world.later(STEPS_AT_MOST, functools.partial(broker.init, leased))


def _names(scenario: Scenario) -> list[str]:
    return [f"{number}{kind}" for number, kind in enumerate(scenario.sinks)]


def _sinks_of(
    scenario: Scenario, broker: Broker, disk: Disk, tables: Mapping[str, Table | KeyedTable]
) -> Mapping[str, TwoPhaseCommitSink[Any]]:
    def made(name: str) -> TwoPhaseCommitSink[Any]:
        if name[-1] in "kp":
            return SimulatedKafkaSink(broker, commits_last=commits_last(name))
        match tables.get(name):
            case Table() as table:
                return SimulatedTableSink(table, broker.on_complete, scenario.joint)
            case KeyedTable() as table:
                return SimulatedSqlSink(table, broker.on_complete)
        return SimulatedFileSink(broker, disk, name)

    return {name: made(name) for name in _names(scenario)}


def _disk_for(scenario: Scenario, disk: Disk) -> None:
    """Create the folders that exist before the query."""
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
