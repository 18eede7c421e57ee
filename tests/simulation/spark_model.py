"""A model of Spark: drivers that are restarted, stages of tasks with retries, speculation and executors that are lost.

A task that sleeps is taken for lost and begun anew; it wakes as a zombie. A driver that sleeps is replaced, and wakes
beside the new one. Spark's own commit log is one number: through which batch ``foreachBatch`` has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.simulation.ledger import Ledger
from tests.simulation.records import Records, rows_of, share
from tests.simulation.stage import SimulatedStage
from tests.simulation.world import Actor, Op, Violation, World
from twopc.coordinator import Coordinator
from twopc.errors import Fenced, InDoubt, OperatorRequired, Refused, Retriable, RoundAborted, TwoPhaseCommitError
from twopc.log_store import LogStore
from twopc.participant import Participant, Vote
from twopc.phases import Phase
from twopc.sink import TwoPhaseCommitSink
from twopc.transactional_ids import Round

TASK_FAILURES_AT_MOST = 4
DRIVERS_AT_MOST = 6
FAILURES_OF_A_DRIVER_AT_MOST = 4

NOTE = Op("spark: note the batch", OSError, changes=True)
REPORT = Op("spark: report the vote", OSError, changes=True)
START = Op("spark: start", None)


class JobFailed(Exception):
    """A task has failed too often."""


class ConcurrentUpdate(Exception):
    """Another driver has noted this batch (SPARK-26425: found out after the sink has run)."""


class Spark:
    """The cluster that runs one query on one checkpoint."""

    def __init__(  # noqa: PLR0917  # all that a cluster has
        self,
        world: World,
        ledger: Ledger,
        log: Callable[[], LogStore],
        sinks: Callable[[], Mapping[str, TwoPhaseCommitSink[Any]]],
        partitions: Sequence[int],
        rows_a_batch: int,
        batches: int,
        stage: SimulatedStage | None = None,
        stage_retries_count_on: bool = True,
    ) -> None:
        self.world = world
        self.batches = batches
        self.rows_a_batch = rows_a_batch
        self.noted = 0
        self.stopped: OperatorRequired | None = None
        self.drivers: list[Actor] = []
        self._ledger, self._log, self._sinks, self._partitions = ledger, log, sinks, partitions
        self._stage = stage
        self.stage_retries_count_on = stage_retries_count_on

    def needs_a_driver(self) -> bool:
        """Starts one where none runs and there is work. What a cluster's supervisor does."""
        if self.stopped or self.noted >= self.batches or any(self.world.alive(driver) for driver in self.drivers):
            return False
        if len(self.drivers) >= DRIVERS_AT_MOST:
            return False
        self.start_driver()
        return True

    def start_driver(self) -> None:
        if self.stopped or len(self.drivers) >= DRIVERS_AT_MOST:
            return
        number = len(self.drivers)
        actor = self.world.start(f"driver {number}", lambda: Driver(self, actor).run())
        actor.on_suspicion = self.start_driver
        self.drivers.append(actor)

    def note(self, batch_id: int) -> None:
        if batch_id != self.noted:
            raise ConcurrentUpdate(batch_id)
        self.noted = batch_id + 1

    def coordinator(self) -> tuple[Coordinator, Mapping[str, TwoPhaseCommitSink[Any]]]:
        sinks = self._sinks()
        coordinator = Coordinator(sinks, self._log(), "query", commits_at_once=1)
        coordinator._stage = self._stage  # type: ignore[assignment]
        return coordinator, sinks

    def check_swept(self, coordinator: Coordinator, before: int) -> None:
        """What the coordinator has just swept away must be gone."""
        if not self.is_fenced(coordinator):
            self._ledger.check_swept(before)

    @property
    def opened_at(self) -> int:
        return self._ledger.opened_at

    @property
    def decided_at(self) -> int:
        return self._ledger.decided_at

    def partitions_of(self, round: Round) -> int:
        """A batch that is replayed may be cut another way (SPARK-28650)."""
        return self._partitions[round.incarnation % len(self._partitions)]

    def stop(self, error: OperatorRequired) -> None:
        self._ledger.query_stops(error, has_copies=self._stage is not None)
        self.stopped = error

    def forget_stop(self) -> OperatorRequired | None:
        """Somebody starts the query again."""
        stopped, self.stopped = self.stopped, None
        return stopped

    def is_fenced(self, coordinator: Coordinator) -> bool:
        return (
            self._ledger.newest_incarnation() > coordinator._log.incarnation if hasattr(coordinator, "_log") else True
        )


class Driver:
    """One driver process: the query's loop over batches."""

    def __init__(self, spark: Spark, actor: Actor) -> None:
        self._spark, self._actor = spark, actor
        self._coordinator, self._sinks = spark.coordinator()
        self._tasks = 0

    def run(self) -> None:  # noqa: C901  # one case an error
        for _ in range(FAILURES_OF_A_DRIVER_AT_MOST):
            batch_id = self._spark.world.step(START, lambda: self._spark.noted)
            try:
                while batch_id < self._spark.batches:
                    self._run_batch(batch_id)
                    batch_id += 1
                self._close()
                return
            except Fenced as fenced:
                if not self._spark.is_fenced(self._coordinator):
                    raise Violation(f"fenced by nobody: {fenced}") from fenced
                return
            except OperatorRequired as stop:
                # To a driver that is fenced without knowing it the query is not lost: the newer one goes on.
                if not self._spark.is_fenced(self._coordinator):
                    self._spark.stop(stop)
                return
            except Refused as refused:
                # Only to a driver that is behind: its checkpoint has moved on, or its staged files were swept away.
                if batch_id >= self._spark.noted and not self._spark.is_fenced(self._coordinator):
                    raise Violation(f"refused: {refused}") from refused
                return
            except (RoundAborted, InDoubt, Retriable, OSError):
                continue  # started again, in the same process
            except ConcurrentUpdate:
                self._close()
                return
            except Exception as error:
                raise Violation(f"unexpected {type(error).__name__}: {error}") from error

    def _run_batch(self, batch_id: int) -> None:
        if not self._coordinator.run(batch_id, self._phase_one).already_decided:
            self._spark.check_swept(self._coordinator, self._spark.decided_at)
        self._spark.world.step(NOTE, self._spark.note, batch_id)

    def _phase_one(self, round: Round) -> list[Vote]:
        self._spark.check_swept(self._coordinator, self._spark.opened_at)
        return Stage(self._spark, self._actor, self._sinks, round, self._next_task_id).run()

    def _next_task_id(self) -> int:
        """Spark counts task attempts through all stages of one driver."""
        self._tasks += 1
        return self._tasks

    def _close(self) -> None:
        """The query has ended. A stop that is not clean is told, and left to the next start."""
        closing_at, is_open = self._spark.world.steps, self._coordinator.phase is Phase.IDLE
        try:
            self._coordinator.close()
        except (Fenced, InDoubt, Retriable, OSError):
            return
        if is_open:
            self._spark.check_swept(self._coordinator, closing_at)


class Stage:
    """Phase one: a job of one stage, one task a partition."""

    def __init__(
        self,
        spark: Spark,
        driver: Actor,
        sinks: Mapping[str, TwoPhaseCommitSink[Any]],
        round: Round,
        next_task_id: Callable[[], int],
    ) -> None:
        self._spark, self._driver, self._sinks, self._round = spark, driver, sinks, round
        self._next_task_id = next_task_id
        self._first_task_id = next_task_id() + 1  # as the bridge to Spark counts
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
            raise JobFailed(f"a task failed {TASK_FAILURES_AT_MOST} times")
        return [self._votes[partition] for partition in range(self._partitions)]

    def _launch(self, partition: int) -> None:
        if self._done or self._driver.dead or partition in self._votes:
            return
        attempt = self._attempts[partition]
        if attempt >= self._limit:
            self._failed = True
            return
        self._attempts[partition] += 1
        task_id = self._next_task_id()
        name = f"task {self._round.batch_id}.{partition}.{attempt} ({task_id})"
        actor = self._spark.world.start(name, lambda: self._attempt(partition, attempt, task_id), self._driver)
        actor.on_suspicion = lambda: self._launch(partition)
        actor.on_stage_retry = self._retry

    def _retry(self) -> None:
        """The stage is begun anew. The votes of older attempts still count."""
        if self._spark.stage_retries_count_on:
            self._limit += TASK_FAILURES_AT_MOST
        else:
            self._attempts = [0] * self._partitions
        for partition in range(self._partitions):
            self._launch(partition)

    def _attempt(self, partition: int, attempt: int, task_id: int) -> None:
        world = self._spark.world
        try:
            world.step(START, _nothing)
            recurring = partition * TASK_FAILURES_AT_MOST + attempt
            serial = task_id - self._first_task_id if self._spark.stage_retries_count_on else recurring
            with Participant(self._sinks, self._round, partition, serial) as participant:
                rows = share(rows_of(self._round.batch_id, self._spark.rows_a_batch), partition, self._partitions)
                for name in self._sinks:
                    of_sink = [f"{name}/{row}" for row in rows]
                    for half in (of_sink[:1], of_sink[1:]):
                        participant.write(name, Records(tuple(half)))
                vote = participant.pre_commit()
            world.step(REPORT, self._voted, partition, vote)
        except (TwoPhaseCommitError, OSError):
            self._launch(partition)
        except Exception as error:
            raise Violation(f"a task fails by {type(error).__name__}: {error}") from error

    def _voted(self, partition: int, vote: Vote) -> None:
        if not self._done:
            self._votes.setdefault(partition, vote)


def _nothing() -> None:
    """A task is started."""
