"""Records what the real code does in a simulated schedule, as events that ``trace.tla`` checks.

An event is recorded when its effect happens in the simulated world, not when its caller learns of it. So an effect
whose caller dies, or whose reply is lost, is in the trace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.campaigns.seams import Seam
from tests.campaigns.simulation.kafka_model import Broker, Fate, Written
from tests.campaigns.simulation.ledger import Ledger
from tests.campaigns.simulation.records import share
from tests.campaigns.simulation.scenario import Scenario
from tests.campaigns.simulation.spark_model import Batch, SparkJob
from tests.campaigns.simulation.world import Actor, Fault, World
from twopc.coordinator import Coordinator
from twopc.effects import LogView, Steps
from twopc.errors import Fenced, LogMismatch, OutcomeUnknown, TransactionLost
from twopc.log.entry_json import parse
from twopc.performer import Performer
from twopc.transaction import Committable
from twopc_files.file_names import DECIDABLE, OPEN, open_files
from twopc_kafka.leases import Lease

Value: TypeAlias = "int | str | Sequence[Value] | frozenset[Value] | Attempt"

NOT_IN_THE_MODEL = frozenset(
    {
        Fault.EXPIRY,
        Fault.POWER_CUT,
        Fault.POWER_CUT_KEEPS_NAMES,
        Fault.LOG_BEHIND,
        Fault.FOREIGN_COMMIT,
        Fault.TABLE_RESTORED,
    }
)
"""Faults that the specification does not have: Kafka forgets an id, a disk loses what was written, a backup returns."""


def lack(scenario: Scenario, faults: Collection[Fault]) -> str | None:
    """Return what a run needs and the specification lacks, or None if it lacks nothing."""
    lacks = {
        "tables that commit whole batches": not {"t", "d"}.isdisjoint(scenario.sinks),
        "sinks that commit last": "p" in scenario.sinks,
        "recomputation": scenario.recompute,
        "replay copies": scenario.stage,
        "a log on a disk, and its syncs": scenario.log != "object store",
        "power cuts": Fault.POWER_CUT in faults or Fault.POWER_CUT_KEEPS_NAMES in faults,
        "several batches that are decided and not committed": scenario.backlog,
        "transactions that hang in a partition": scenario.orphans,
        "a begin that is sent and not answered": scenario.late_begin,
        "logs from a backup, and ids that Kafka forgets": not NOT_IN_THE_MODEL.isdisjoint(faults),
    }
    return next((name for name, is_needed in lacks.items() if is_needed), None)


@dataclass(frozen=True, order=True, slots=True)
class Attempt:
    """A task attempt: life, batch, task, and a number that no other attempt at the task has."""

    life: int
    batch: int
    task: int
    n: int

    def __str__(self) -> str:
        return f"attempt {self.n} at task {self.task} of batch {self.batch} in life {self.life}"

    def to_tla(self) -> str:
        return f"[life |-> {self.life}, batch |-> {self.batch}, task |-> {self.task}, n |-> {self.n}]"


NOBODY = Attempt(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Event:
    """A step that the code took.

    Attributes:
        kind: the kind of step; see ``Step`` in ``trace.tla``.
        at: the step of the simulation.
        values: the parameters of the step.
    """

    kind: str
    at: int
    values: Mapping[str, Value]

    def __str__(self) -> str:
        values = ", ".join(f"{name}: {_tla(value, str)}" for name, value in self.values.items())
        return f"step {self.at}: {self.kind} ({values})"

    def to_tla(self, attempts: Mapping[Attempt, str]) -> str:
        """Return the event as TLA+ has it, with names for attempts."""
        fields = {"is": self.kind, **self.values}
        return f"[{', '.join(f'{name} |-> {_tla(value, attempts.__getitem__)}' for name, value in fields.items())}]"


@dataclass
class Recorder:
    """Records the events of one run, through seams of the code and of the simulated world."""

    partitions: tuple[int, ...]
    events: list[Event] = field(default_factory=list)
    is_expressible: bool = True
    _world: World = field(init=False)
    _broker: Broker = field(init=False)
    _sender: Actor | None = None  # of the request that arrives late
    _attempts: dict[Actor, Attempt] = field(default_factory=dict)
    _numbers: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _names: dict[str, tuple[int, str]] = field(default_factory=dict)  # a name's token → its number, and its sink
    _slots: list[int] = field(default_factory=list)  # of the entries that are in the model's log
    _pruned: int = 0
    _transactions: dict[Any, tuple[Attempt, str]] = field(default_factory=dict)  # what was written, or a file's name
    _coordinators: dict[Actor, Coordinator] = field(default_factory=dict)
    _batches: dict[Actor, Batch] = field(default_factory=dict)

    def seams(self) -> tuple[Seam, ...]:
        model, simulation = "tests.campaigns.simulation", "tests.campaigns.simulation.spark_model"
        return (
            Seam(f"{model}.world:World.__post_init__", self._new_world),
            Seam(f"{model}.world:World.later", self._later),
            Seam(f"{model}.ledger:Ledger.__init__", self._new_ledger),
            Seam(f"{model}.ledger:Ledger.entry_is_durable", self._entry),
            Seam(f"{model}.ledger:Ledger.commit_is_asked", self._commit_is_asked),
            Seam(f"{model}.ledger:Ledger.transaction_ends", self._transaction_ends),
            Seam(f"{model}.ledger:Ledger.file_is_renamed", self._file_is_renamed),
            Seam(f"{model}.ledger:Ledger.batch_is_complete", self._batch_is_complete),
            Seam(f"{model}.kafka_model:Broker.produce", self._produce),
            Seam(f"{model}.disk:Disk.create", self._create),
            Seam(f"{model}.disk:Disk.unlink", self._unlink),
            Seam(f"{model}.checkpoint:Checkpoint.note", self._note),
            Seam(f"{simulation}:Driver._run_batch", self._run_batch),
            Seam(f"{simulation}:SparkJob._launch", self._launch),
            Seam("twopc.coordinator:Coordinator.__init__", self._new_coordinator),
            Seam("twopc.coordinator:Coordinator.run", self._run),
            Seam("twopc.coordinator:Coordinator.rest", self._rest),
            Seam("twopc.performer:Performer.rest_is_answered", self._rested),
            Seam("twopc.coordinator:Coordinator.close", self._until_fenced),
            Seam("twopc.log.steps:verify", self._verify),
            Seam("twopc.performer:sealed", self._sealed),
            Seam("twopc_kafka.sink:KafkaSink.recover", self._recover),
            Seam("twopc_files.sink:FileSink.recover", self._recover),
            Seam("twopc.participant:Participant.pre_commit", self._pre_commit),
            Seam("twopc_kafka.leases:lease", self._lease),
            Seam(f"{model}.machines:Slot._write", self._use_is_saved),
            Seam(f"{model}.object_store:ObjectStore._delete", self._delete),
            Seam("twopc_kafka.sink:KafkaSink.abort", self._abort),
        )

    def _add(self, kind: str, **values: Value) -> Event:
        self.events.append(Event(kind, self._world.steps, values))
        return self.events[-1]

    @property
    def _actor(self) -> Actor | None:
        return self._sender or self._world.current

    @property
    def _attempt(self) -> Attempt | None:
        return self._attempts.get(self._actor) if self._actor else None

    @property
    def _life(self) -> int | None:
        """The life of the driver that acts."""
        coordinator = self._coordinators.get(self._actor) if self._actor else None
        return coordinator.incarnation if coordinator else None

    # The world. -----------------------------------------------------------------------------------------------------

    def _new_world(self, real: Any, world: World) -> None:
        real(world)
        self._world = world

    def _new_ledger(self, real: Any, ledger: Ledger, broker: Broker, *others: Any) -> None:
        self._broker = broker
        real(ledger, broker, *others)

    def _later(self, real: Any, world: World, steps: int, effect: Callable[[], object]) -> None:
        sender = self._actor

        def arrive() -> None:
            before, self._sender = self._sender, sender
            try:
                effect()
            finally:
                self._sender = before

        real(world, steps, arrive)

    def _entry(self, real: Any, ledger: Ledger, slot: int, data: bytes) -> None:
        if slot > ledger._top:  # else a zombie fills a pruned slot
            entry = parse(data, "")
            life = entry.incarnation
            match entry.kind:
                case "open":
                    self._slots.append(slot)
                    self._add("open", life=life, carries=len(entry.unresolved))
                case "decide":
                    self._slots.append(slot)
                    decision = entry.unresolved[-1]
                    every = [each for of_sink in decision.committables.values() for each in of_sink]
                    end = entry.reads["end"] if isinstance(entry.reads, dict) else -1
                    self._add(
                        "decide", life=life, batch=decision.batch_id + 1, end=int(str(end)), votes=self._voters(every)
                    )
                case "complete" | "close" as kind:
                    self._add(kind, life=life)
                case _:
                    self.is_expressible = False
        real(ledger, slot, data)

    def _commit_is_asked(self, real: Any, ledger: Ledger, name: str, producer_id: int, epoch: int) -> None:
        if (of := self._transactions.get(self._broker.newest.get((name, producer_id, epoch)))) is not None:
            self._add("ask to commit", of=of)
        real(ledger, name, producer_id, epoch)

    def _transaction_ends(self, real: Any, ledger: Ledger, written: Written, fate: Fate) -> None:
        of = self._transactions.get(written)
        if of is None:
            self.is_expressible = False
        elif fate is Fate.COMMITTED:
            self._add("commit", of=of)
        elif fate is Fate.TIMED_OUT:
            self._add("time out", of=of)
        elif fate is Fate.REPLACED:
            self._add("fence", attempt=self._attempt or NOBODY, of=of)
        else:
            self._is_aborted(of)
        real(ledger, written, fate)

    def _is_aborted(self, of: tuple[Attempt, str]) -> None:
        if self._attempt:
            self._add("roll back", attempt=of[0], sink=of[1])
        else:
            self._add("abort", of=of)

    def _produce(self, real: Any, broker: Broker, name: str, identity: Any, rows: Any, writer: Actor) -> Any:
        before = broker.newest.get((name, identity.producer_id, identity.producer_epoch))
        answer = real(broker, name, identity, rows, writer)
        after = broker.newest.get((name, identity.producer_id, identity.producer_epoch))
        if after is not before and after is not None:
            attempt, sink = self._attempts[writer], _sink_of(name)
            self._transactions[after] = attempt, sink
            self._add("begin again" if before else "begin", attempt=attempt, sink=sink)
        return answer

    def _create(self, real: Any, disk: Any, names: tuple[str, ...]) -> Any:
        created = real(disk, names)
        if names[0] == "data" and self._attempt:
            self._transactions[names[-1]] = self._attempt, _short(names[1])
            self._add("begin", attempt=self._attempt, sink=_short(names[1]))
        return created

    def _unlink(self, real: Any, disk: Any, names: tuple[str, ...]) -> None:
        real(disk, names)
        if names[0] == "data" and names[-1] in self._transactions:
            self._is_aborted(self._transactions[names[-1]])

    def _file_is_renamed(self, real: Any, ledger: Ledger, source: tuple[str, ...], target: tuple[str, ...]) -> None:
        if source[-1] in self._transactions:
            self._add("commit", of=self._transactions[source[-1]])
        real(ledger, source, target)

    def _batch_is_complete(self, real: Any, ledger: Ledger, sink: str, batch_id: int) -> None:
        self._add("complete in sink", life=self._life or 0)
        real(ledger, sink, batch_id)

    def _note(self, real: Any, checkpoint: Any, batch_id: int) -> None:
        real(checkpoint, batch_id)
        self._add("note", life=self._life or 0, batch=batch_id + 1)

    # The driver. ----------------------------------------------------------------------------------------------------

    def _new_coordinator(self, real: Any, coordinator: Coordinator, *arguments: Any, **named: Any) -> None:
        real(coordinator, *arguments, **named)
        if self._world.current:
            self._coordinators[self._world.current] = coordinator

    def _run_batch(self, real: Any, driver: Any, batch: Batch) -> None:
        self._batches[driver._actor] = batch
        real(driver, batch)

    def _run(self, real: Any, coordinator: Coordinator, batch_id: int, phase_one: Any, **named: Any) -> Any:
        def written(round: Any) -> Any:
            self._received(coordinator, "write")
            return phase_one(round)

        try:
            finished = self._until_fenced(real, coordinator, batch_id, written, **named)
        except LogMismatch:
            self._received(coordinator, "refused")
            raise
        except (TransactionLost, OutcomeUnknown):
            self._add("lost", life=coordinator.incarnation or 0)
            raise
        if finished.already_decided:
            self._received(coordinator, "record")
        self._add("ran", life=coordinator.incarnation or 0)
        return finished

    def _received(self, coordinator: Coordinator, what: str) -> None:
        actor = self._actor
        assert actor
        batch = self._batches[actor]
        life = coordinator.incarnation or 0
        follows = batch.start if batch.follows else -1
        tasks = self._tasks_of(life, batch) if what == "write" else frozenset()
        reads = (batch.start, batch.end)
        self._add("run", life=life, batch=batch.id + 1, reads=reads, follows=follows, tasks=tasks, what=what)

    def _tasks_of(self, life: int, batch: Batch) -> frozenset[int]:
        """Return the tasks that have records."""
        partitions = self.partitions[life % len(self.partitions)]
        return frozenset(p for p in range(partitions) if share(batch.rows(), p, partitions))

    def _until_fenced(self, real: Any, coordinator: Coordinator, *arguments: Any, **named: Any) -> Any:
        try:
            return real(coordinator, *arguments, **named)
        except Fenced:
            if coordinator.incarnation:
                self._add("fenced", life=coordinator.incarnation or 0)
            raise

    def _rest(self, real: Any, coordinator: Coordinator) -> None:
        try:
            real(coordinator)
        except Fenced:
            self._add("fenced at rest", life=coordinator.incarnation or 0)
            raise

    def _rested(self, real: Any, performer: Performer) -> None:
        real(performer)
        log = performer.life.log
        self._add("rested", life=log.incarnation, unresolved=len(log.tail.unresolved))

    def _verify(self, real: Any, log: LogView) -> Steps[None]:
        yield from real(log)
        self._add("read the log", life=log.incarnation)

    def _recover(self, real: Any, sink: Any) -> list[Committable]:
        life, name = self._life or 0, _short(sink.transactional_ids.sink)
        begun = self._add("list", life=life, sink=name)
        try:
            found = list(real(sink))
        except BaseException:
            self.events = [event for event in self.events if event is not begun]
            raise
        known = frozenset(of for each in found if (of := self._transactions.get(self._key(each))) is not None)
        self._add("found", life=life, of=known)
        if self._broker.was_cut_off:
            self._add("believe a stale broker", life=life, besides=known, sink=name)
        return found

    def _abort(self, real: Any, sink: Any, committable: Committable) -> None:
        real(sink, committable)
        if self._broker.was_cut_off and (of := self._transactions.get(self._key(committable))) is not None:
            self._add("believe a stale broker", life=self._life or 0, besides=frozenset(), sink=of[1])

    def _sealed(self, real: Any, sink: Any, committables: Sequence[Committable], began_s: float) -> Any:
        began = self._world.steps
        sealed = real(sink, committables, began_s)
        at = self._looked_at(committables, began)
        position = sum(event.at <= at for event in self.events)
        values: dict[str, Value] = {
            "life": self._life or 0,
            "sink": _short(sink.transactional_ids.sink),
            "votes": self._voters(committables),
        }
        self.events.insert(position, Event("seal", at, values))
        return sealed

    def _looked_at(self, committables: Collection[Committable], began: int) -> int:
        """Return the step at which the driver has looked at its transactions in Kafka. A look at files that has found
        them all came as early as possible, when the call began."""
        looks = [
            seen.get(self._actor)
            for each in committables
            if (seen := self._broker.described_at.get(each.transaction_id)) is not None
        ]
        return min((at for at in looks if at is not None), default=began)

    def _voters(self, committables: Collection[Committable]) -> frozenset[Attempt]:
        return frozenset(self._transaction(each)[0] for each in committables)

    def _transaction(self, committable: Committable) -> tuple[Attempt, str]:
        return self._transactions[self._key(committable)]

    def _key(self, committable: Committable) -> Any:
        """Return what identifies a transaction: what was written, or the name of its pending file."""
        if DECIDABLE in committable.handle or OPEN in committable.handle:
            return open_files(committable)[0].pending
        handle: Mapping[str, Any] = committable.handle
        return self._broker.newest.get((committable.transaction_id, handle["producer_id"], handle["producer_epoch"]))

    def _delete(self, real: Any, store: Any, slot: int) -> None:
        real(store, slot)
        # An entry that is not in the model's log carries on the one before it, and keeps it there.
        pruned = sum(following <= slot + 1 for following in self._slots[1:])
        if pruned > self._pruned:
            self._pruned = pruned
            self._add("prune", through=pruned)

    # Tasks. ---------------------------------------------------------------------------------------------------------

    def _launch(self, real: Any, job: SparkJob, partition: int) -> None:
        before = len(self._world._actors)
        real(job, partition)
        if len(self._world._actors) == before:
            return
        round = job._round
        task = (round.incarnation, round.batch_id + 1, partition)
        self._numbers[task] = self._numbers.get(task, 0) + 1
        attempt = Attempt(*task, self._numbers[task])
        self._attempts[self._world._actors[-1]] = attempt
        if share(job._rows, partition, job._partitions):
            self._add("start", attempt=attempt)

    def _lease(self, real: Any, pool: str, *arguments: Any) -> Lease:
        lease: Lease = real(pool, *arguments)
        token, sink = lease.name.split(".")[-2], _short(pool.split(".")[-2])
        name, _ = self._names.setdefault(token, (len(self._names) + 1, sink))
        if self._attempt:
            turn = int(lease.name.rpartition(".")[2])
            self._add("lease", attempt=self._attempt, sink=sink, name=name, turn=turn)
        return lease

    def _use_is_saved(self, real: Any, slot: Any, data: bytes) -> None:
        real(slot, data)
        use = json.loads(data)
        if use["is_answered"] and self._attempt:
            self._add("answered", attempt=self._attempt, sink=self._names[use["token"]][1])

    def _pre_commit(self, real: Any, participant: Any) -> Any:
        vote = real(participant)
        if vote and self._attempt:
            self._add("vote", attempt=self._attempt)
        return vote


def _sink_of(name: str) -> str:
    return _short(name.split(".")[-3])  # token and batch follow


def _short(sink: str) -> str:
    """Return a sink's number. The specification does not distinguish kinds of sinks."""
    return sink[0]


def _tla(value: Value, attempt: Callable[[Attempt], str]) -> str:
    """Return a value as TLA+ has it."""
    if isinstance(value, Attempt):
        return attempt(value)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int):
        return str(value)
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(_tla(each, attempt) for each in value))}}}"
    return f"<<{', '.join(_tla(each, attempt) for each in value)}>>"
