"""A model of Spark: restarted drivers, and stages of tasks with retries, speculation and lost executors.

A sleeping task is considered lost and started again, and wakes as a zombie. A sleeping driver is replaced, and wakes
while the new one runs. Before a batch runs, the checkpoint records what it reads; afterwards it records that the batch
is done. Whenever the query stops because checkpoint and log are not of the same age, an operator repairs the
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.campaigns.simulation.checkpoint import NOTE, PLAN, READ, Checkpoint, ConcurrentUpdate, Damaged
from tests.campaigns.simulation.ledger import Ledger
from tests.campaigns.simulation.promises import Promise, Violation
from tests.campaigns.simulation.records import Records, rows_between, written_to
from tests.campaigns.simulation.scenario import Scenario
from tests.campaigns.simulation.stage import SimulatedStage
from tests.campaigns.simulation.world import Actor, Op, World
from twopc.coordinator import Coordinator
from twopc.effects import Wanted
from twopc.errors import (
    Fenced,
    InDoubt,
    OperatorRequired,
    Refused,
    RepeatedFailure,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)
from twopc.log.commit_log import read_tail
from twopc.log.entry_json import parse
from twopc.log.store import LogStore
from twopc.participant import Participant, Vote
from twopc.phases import Phase
from twopc.repetition import STARTS_AT_MOST
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable
from twopc.transactional_ids import Round

OUTAGES = 2 * STARTS_AT_MOST
TASK_FAILURES_AT_MOST = 4
DRIVERS_AT_MOST = 6
FAILURES_OF_A_DRIVER_AT_MOST = 4

REPORT = Op("spark: report the vote", OSError, changes=True)
START = Op("spark: start", None)


WAYS = {"for ever": (ValueError,), "by a sink": (ValueError,), "in turn": (ValueError, KeyError)}
"""What comes in turn until an operator ends it, for reasons that no table knows."""

FAILS = (*WAYS, "for a while", "in doubt")

MINUTES_AT_MOST = 8
"""in place of ``repetition.MINUTES_AT_MOST``: more than the rounds that a schedule's faults abort."""

DECIDES = b'"kind":"decide"', b'"decided":0,'  # in the entry of the first batch's decision


class Failing:
    """What fails the rounds of the first batch, after its tasks have voted.

    Args:
        world: the world, whose faults may each cost the count of the starts before.
        how: one of ``WAYS``; ``for a while``, by an outage; or ``in doubt``, as the log's store gives no answer to the
            decision. Nothing fails otherwise.
    """

    def __init__(self, world: World, how: str) -> None:
        self._world, self._how = world, how
        self._outages = OUTAGES if how == "for a while" else 0
        self.rounds = 0

    def end(self) -> None:
        """Correct the cause."""
        self._how, self._outages = "", 0

    def strike(self, batch_id: int) -> None:
        if batch_id != 0:
            return
        if self._outages:
            self._outages -= 1
            raise TimeoutError("the source does not answer")
        if ways := WAYS.get(self._how):
            self._count(STARTS_AT_MOST * len(ways))
            raise ways[self.rounds % len(ways)](f"record {self.rounds} can't be computed")

    def refuse_answer(self, data: bytes) -> None:
        """Let the store take no decision."""
        if self._how == "in doubt" and all(part in data for part in DECIDES):
            self._count(2 * MINUTES_AT_MOST)  # each decision is put twice
            raise TimeoutError("the store does not answer")

    def _count(self, at_most: int) -> None:
        self.rounds += 1
        if self.rounds > at_most * (1 + len(self._world.happened)):
            raise Violation(Promise.STOPS_WHEN_REPEATED, f"a round has failed {self.rounds} times in the same way")

    def require_reason(self, error: RepeatedFailure) -> None:
        if self._how not in (*WAYS, "in doubt") or self.rounds < STARTS_AT_MOST:
            what = f"after {self.rounds} failures, the query stops: {error}"
            raise Violation(Promise.STOPS_WHEN_REPEATED, what) from error


class Unanswering:
    """The log's store of a query whose decision may get no answer."""

    def __init__(self, store: LogStore, failing: Failing) -> None:
        self._store, self._failing = store, failing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_if_absent(self, slot: int, data: bytes) -> None:
        self._failing.refuse_answer(data)
        self._store.put_if_absent(slot, data)


@dataclass(frozen=True, slots=True)
class Batch:
    """A planned batch: the records from one offset to another."""

    id: int
    start: int
    end: int
    is_first: bool = True
    """Whether it is its driver's first batch, whose beginning is compared with the log."""

    @property
    def reads(self) -> dict[str, Any]:
        return {"end": self.end}

    @property
    def follows(self) -> dict[str, Any] | None:
        return {"end": self.start} if self.id and self.is_first else None

    def rows(self) -> tuple[str, ...]:
        return rows_between(self.start, self.end)


class Spark:
    """The cluster that runs one query on one checkpoint."""

    def __init__(  # all that a cluster has
        self,
        world: World,
        ledger: Ledger,
        checkpoint: Checkpoint,
        log: Callable[[], LogStore],
        sinks: Callable[[], Mapping[str, TwoPhaseCommitSink[Any]]],
        scenario: Scenario,
        stage: SimulatedStage | None = None,
    ) -> None:
        self.world = world
        self.failing = Failing(world, scenario.fails)
        self.checkpoint = checkpoint
        self.scenario = scenario
        self.batches = scenario.batches
        self.stopped: OperatorRequired | None = None
        self.mismatch: Exception | None = None
        self.drivers: list[Actor] = []
        self.newest_coordinator: Coordinator | None = None  # of the driver that read the checkpoint last
        self.log_is_backup = False
        self.restore_log: Callable[[], None] = lambda: None
        self.log = log
        self._ledger, self._sinks = ledger, sinks
        self._stage = stage
        self._tasks = 0
        self._runs = scenario.runs

    def needs_a_driver(self) -> bool:
        """Start a driver if none runs and there is work, as a supervisor does. Return whether one was started."""
        if self.stopped or any(self.world.alive(driver) for driver in self.drivers):
            return False
        if self.mismatch:
            self._repair()
        if self.checkpoint.noted >= self.batches and self._runs > 1:
            self._runs -= 1
            self.batches += 1
        if self.checkpoint.noted >= self.batches or len(self.drivers) >= DRIVERS_AT_MOST:
            return False
        self.start_driver()
        return True

    def start_driver(self) -> None:
        if self.stopped or self.mismatch or len(self.drivers) >= DRIVERS_AT_MOST:
            return
        number = len(self.drivers)
        actor = self.world.start(f"driver {number}", lambda: Driver(self, actor).run())
        actor.on_suspicion = self.start_driver
        self.drivers.append(actor)

    def next_task_id(self) -> int:
        """Return the next task id. Spark counts attempts per driver; the model, per query."""
        self._tasks += 1
        return self._tasks

    def machine_of(self, task_id: int) -> int:
        others = self.scenario.machines - 1
        return 1 + task_id % others if others else 0

    def coordinator(self) -> tuple[Coordinator, Mapping[str, TwoPhaseCommitSink[Any]]]:
        sinks = self._sinks()
        log: Any = Unanswering(self.log(), self.failing)
        coordinator = Coordinator(sinks, log, owner="query", commits_at_once=1, rest_interval_s=None)
        coordinator._performer.replay_copies = self._stage  # type: ignore[assignment]
        return coordinator, sinks

    def check_swept(self, coordinator: Coordinator, before: int) -> None:
        """Check that everything that the coordinator had to sweep is gone."""
        if not (self.log_is_backup or self.is_fenced(coordinator)):
            self._ledger.check_swept(before)

    def check_rested(self, coordinator: Coordinator, before: int) -> None:
        """Check that the log records everything as committed, and that no swept transaction is open."""
        self.check_swept(coordinator, before)
        if not (self.log_is_backup or self.is_fenced(coordinator)):
            self._ledger.check_complete()

    @property
    def opened_at(self) -> int:
        return self._ledger.opened_at

    @property
    def decided_at(self) -> int:
        return self._ledger.decided_at

    def partitions_of(self, round: Round) -> int:
        return self.scenario.partitions[round.incarnation % len(self.scenario.partitions)]

    def stop(self, error: OperatorRequired) -> None:
        if self.log_is_backup:
            self.mismatch = error
            return
        if isinstance(error, RepeatedFailure):
            self.failing.require_reason(error)
            self.stopped = error
            return
        recomputes = self.scenario.recompute and self.scenario.partitions_are_the_same
        self._ledger.query_stops(error, has_copies=self._stage is not None, recomputes=recomputes)
        self.stopped = error

    def does_not_match(self, error: Exception) -> None:
        """Note that the query has stopped because checkpoint and log are not of the same age."""
        if not (self.checkpoint.has_fallen_back or self.log_is_backup):
            raise Violation(Promise.STOPS_WITH_REASON, f"refused: {error}") from error
        self.mismatch = error

    def _repair(self) -> None:
        """Repair as an operator does, after everything has stopped."""
        self.mismatch = None
        if self.log_is_backup:
            self.world.end_all()
            self.restore_log()
            self.log_is_backup = False
        elif newest := read_tail(store := self.log()):
            kept = [parse(store.read(slot), "the simulated log") for slot in store.slots()]
            self.checkpoint.repair([*kept, newest[1]])

    def forget_stop(self) -> OperatorRequired | None:
        """Let the query be started again. Return the error for which it had stopped."""
        stopped, self.stopped = self.stopped, None
        return stopped

    def is_fenced(self, coordinator: Coordinator) -> bool:
        if coordinator.incarnation is None:
            return True
        return not self.log_is_backup and self._ledger.newest_incarnation() > coordinator.incarnation


class Driver:
    """One driver process: the query's loop over batches."""

    def __init__(self, spark: Spark, actor: Actor) -> None:
        self._spark, self._actor = spark, actor
        self._world, self._checkpoint = spark.world, spark.checkpoint
        self._coordinator, self._sinks = spark.coordinator()
        self._has_begun = False
        self._batch_id = self._repairs_seen = 0
        for sink in self._sinks.values() if spark.scenario.fails == "by a sink" else ():
            sink.seal = partial(self._refuse, sink.seal)  # type: ignore[method-assign]

    def _refuse(self, seal: Callable[..., Any], committables: Sequence[Committable], age_s: float) -> Any:
        """Seal the transactions of a batch, unless it fails there."""
        if committables:
            self._spark.failing.strike(self._batch_id)
        return seal(committables, age_s)

    def run(self) -> None:
        for _ in range(FAILURES_OF_A_DRIVER_AT_MOST):
            if not self._fails():
                return
            self._rest()

    def _fails(self) -> bool:  # noqa: C901  # one case per error
        """Run the query to its end or to the first error. Return whether to start it again in this process."""
        try:
            self._query()
        except Fenced as fenced:
            if not (self._spark.is_fenced(self._coordinator) or self._spark.log_is_backup):
                raise Violation(
                    Promise.FENCED_BY_ANOTHER, f"fenced although no newer coordinator exists: {fenced}"
                ) from fenced
            self._rest()
        except OperatorRequired as stop:
            self._require_unfenced(stop)
            if not self._spark.is_fenced(self._coordinator):
                self._spark.stop(stop)
            self._rest()
        except Damaged as damaged:  # raised before there is a coordinator, while other drivers may run
            self._spark.does_not_match(damaged)
            self._rest()
        except Refused as refused:
            # A driver that is behind is refused, too: its checkpoint has moved on, or its pending files were swept.
            is_behind = self._batch_id < self._checkpoint.noted or self._repairs_seen < self._checkpoint.repairs
            self._require_unfenced(refused)
            if not is_behind and not self._spark.is_fenced(self._coordinator):
                if self._has_begun:
                    raise Violation(
                        Promise.STOPS_WITH_REASON, f"refused after the batch was written: {refused}"
                    ) from refused
                self._spark.does_not_match(refused)
            self._rest()
        except ConcurrentUpdate as update:
            if self._checkpoint.has_fallen_back and not self._spark.is_fenced(self._coordinator):
                self._spark.does_not_match(update)
            self._end()
        except (RoundAborted, InDoubt, Retriable, OSError):
            return True
        except Exception as error:
            raise Violation(Promise.STOPS_WITH_REASON, f"unexpected {type(error).__name__}: {error}") from error
        return False

    def _require_unfenced(self, error: Exception) -> None:
        """A fenced coordinator stops as one that is fenced: the newer one may have settled what this one fails at."""
        if self._coordinator._performer.is_open and self._spark.is_fenced(self._coordinator):
            raise Violation(Promise.FENCED_STOPS, f"a fenced driver stops with {type(error).__name__}: {error}")

    def _query(self) -> None:
        self._has_begun = False
        self._batch_id, self._repairs_seen = self._checkpoint.noted, self._checkpoint.repairs
        self._spark.newest_coordinator = self._coordinator
        first, start, end = self._world.step(READ, self._checkpoint.next_batch)
        batch_id = first
        while batch_id < self._spark.batches:
            if end is None:
                end = self._world.step(PLAN, self._checkpoint.plan, batch_id, start)
            self._run_batch(Batch(batch_id, start, end, batch_id == first))
            batch_id, start, end = batch_id + 1, end, None
        self._end()

    def _run_batch(self, batch: Batch) -> None:
        self._has_begun, self._batch_id = False, batch.id

        def phase_one(round: Round) -> list[Vote]:
            self._has_begun = True
            if (
                self._repairs_seen < self._checkpoint.repairs
            ):  # it slept through a repair, and decides a batch that the repair undid
                self._checkpoint.has_fallen_back = True
            self._spark.check_swept(self._coordinator, self._spark.opened_at)
            votes = SparkJob(self._spark, self._actor, self._sinks, round, batch.rows()).run()
            if self._spark.scenario.fails != "by a sink":
                self._spark.failing.strike(batch.id)
            return votes

        def recompute(round: Round, wanted: Wanted) -> list[Vote]:
            self._has_begun = True
            return SparkJob(self._spark, self._actor, self._sinks, round, batch.rows(), wanted).run()

        finished = self._coordinator.run(
            batch.id,
            phase_one,
            reads=batch.reads,
            follows=batch.follows,
            recompute=recompute if self._spark.scenario.recompute else None,
        )
        if not finished.already_decided:
            self._spark.check_swept(self._coordinator, self._spark.decided_at)
        self._world.step(NOTE, self._checkpoint.note, batch.id)
        self._rest()

    def _rest(self) -> None:
        """Rest, as the timer does between batches. The timer survives a failed batch."""
        if not self._spark.scenario.rests:
            return
        since, faults = self._world.steps, len(self._world.happened)
        is_open = self._coordinator.phase is Phase.IDLE
        try:
            self._coordinator.rest()
        except Exception:  # noqa: BLE001  # the timer logs it
            return
        if is_open and len(self._world.happened) == faults:
            self._spark.check_rested(self._coordinator, since)

    def _end(self) -> None:
        """End the query. If the stop is not clean, the next start settles the rest."""
        if self._spark.scenario.rests:
            self._rest()  # once more as the process ends
            return
        closing_at, is_open = self._world.steps, self._coordinator.phase is Phase.IDLE
        try:
            self._coordinator.close()
        except (Fenced, InDoubt, Retriable, OSError):
            return
        if is_open:
            self._spark.check_swept(self._coordinator, closing_at)


class SparkJob:
    """Phase one: a Spark job of one stage, with one task per partition."""

    def __init__(
        self,
        spark: Spark,
        driver: Actor,
        sinks: Mapping[str, TwoPhaseCommitSink[Any]],
        round: Round,
        rows: Sequence[str],
        wanted: Wanted | None = None,
    ) -> None:
        self._spark, self._driver, self._sinks, self._round, self._rows = spark, driver, sinks, round, rows
        self._wanted = wanted
        self._first_task_id = spark.next_task_id() + 1  # counted as ``twopc.spark`` counts
        self._partitions = spark.partitions_of(round)
        self._votes: dict[int, Vote] = {}
        self._attempts = [0] * self._partitions
        self._limit = TASK_FAILURES_AT_MOST
        self._failed = False
        self._done = False

    def run(self) -> list[Vote]:
        for partition in range(self._partitions):
            self._launch(partition)
        self._spark.world.wait(lambda: self._failed or len(self._votes) == self._partitions)
        self._done = True
        if self._failed:
            raise RoundAborted(f"a task failed {TASK_FAILURES_AT_MOST} times")
        return [self._votes[partition] for partition in range(self._partitions)]

    def _launch(self, partition: int) -> None:
        if self._done or self._driver.dead or partition in self._votes:
            return
        attempt = self._attempts[partition]
        if attempt >= self._limit:
            self._failed = True
            return
        self._attempts[partition] += 1
        task_id = self._spark.next_task_id()
        actor = self._spark.world.start(
            f"task {self._round.batch_id}.{partition}.{attempt} ({task_id})",
            lambda: self._attempt(partition, attempt, task_id),
            self._driver,
            self._spark.machine_of(task_id),
        )
        actor.on_suspicion = lambda: self._launch(partition)
        actor.on_stage_retry = self._retry

    def _retry(self) -> None:
        """Start the Spark stage again. The votes of older attempts still count."""
        if self._spark.scenario.stage_retries_count_on:
            self._limit += TASK_FAILURES_AT_MOST
        else:
            self._attempts = [0] * self._partitions
        for partition in range(self._partitions):
            self._launch(partition)

    def _attempt(self, partition: int, attempt: int, task_id: int) -> None:
        world = self._spark.world
        try:
            world.idle(START)
            recurring = partition * TASK_FAILURES_AT_MOST + attempt
            counts_on = self._spark.scenario.stage_retries_count_on
            serial = task_id - self._first_task_id if counts_on else recurring
            with Participant(self._sinks, self._round, partition=partition, serial=serial) as participant:
                for name in self._sinks:
                    if self._wanted is not None and partition not in self._wanted.get(name, ()):
                        continue
                    of_sink = written_to(name, self._rows, partition, self._partitions)
                    for half in (Records(of_sink[:1]), Records(of_sink[1:])):
                        hashes: Any = half.hashes() if self._spark.scenario.recompute else None
                        participant.write(name, half, hashes)
                vote = participant.pre_commit()
            world.step(REPORT, self._voted, partition, vote)
        except (TwoPhaseCommitError, OSError):
            self._launch(partition)
        except Exception as error:
            raise Violation(Promise.STOPS_WITH_REASON, f"a task failed with {type(error).__name__}: {error}") from error

    def _voted(self, partition: int, vote: Vote) -> None:
        if not self._done:
            self._votes.setdefault(partition, vote)
