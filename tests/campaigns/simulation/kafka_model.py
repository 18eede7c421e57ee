"""A model of Kafka's transaction coordinator, with the real Kafka sink on top.

Every answer is in the table in ``twopc_kafka.answers``, which was measured on a broker. ``test_conformance.py`` makes
the same calls to model and broker. The model replaces the sink's ``Control`` and ``Writer``; the code above them is
real.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.campaigns.simulation.world import Actor, Fault, Op, World
from twopc.errors import Retriable, RoundAborted
from twopc.transaction import Committable
from twopc_kafka.answers import EPOCH_BUMPING_END_TXN, NotCommitted, OpenInPartition, ProducerIdentity, TransactionState
from twopc_kafka.client.control import Control
from twopc_kafka.client.leaders import Leaders, Seen
from twopc_kafka.client.requests import Partitions
from twopc_kafka.ending import Stuck
from twopc_kafka.hanging import Hanging
from twopc_kafka.options import parse_options
from twopc_kafka.sink import KafkaSink
from twopc_kafka.writers.librdkafka import Writer

TOPIC = "simulated"
TIMEOUT_MS = 900_000
MARKERS_STEPS = 7
"""How many steps a slow broker takes to write markers."""

STALE_STEPS = 12
"""How many steps a broker takes to notice that it is cut off."""

LAST_EPOCH = 32_766


def _no_answer() -> Exception:
    return Retriable("the cluster did not answer")


def _not_delivered() -> Exception:
    return RoundAborted("a record was not delivered")


_OF_MARKERS = (Fault.SLOW_MARKERS, Fault.MARKER_LEFT_OUT, Fault.MARKER_LEFT_OUT_LATE)

_STALE = (Fault.STALE, Fault.STALE_AND_EMPTY)

END = Op("kafka: end", _no_answer, Fault.SUSPENDED, Fault.DELAYED, Fault.EXPIRY, *_OF_MARKERS, *_STALE, changes=True)
DESCRIBE = Op("kafka: describe", _no_answer, Fault.EXPIRY, Fault.SUSPENDED, *_STALE, changes=False)
PROVE = Op("kafka: describe, proven by a write", _no_answer, Fault.EXPIRY, Fault.SUSPENDED, changes=False)
ASK = Op("kafka: describe the broker's configuration", _no_answer)
LIST = Op("kafka: list", _no_answer, changes=False)
FIND = Op("kafka: find the coordinator", _not_delivered)
INIT = Op(
    "kafka: init",
    _not_delivered,
    Fault.DELAYED,
    Fault.EPOCHS_RUN_OUT,
    Fault.MACHINE_POWER_CUT,
    Fault.MACHINE_DIES_IN_FLIGHT,
    *_OF_MARKERS,
    changes=True,
)
PRODUCE = Op("kafka: produce", _not_delivered, Fault.DELAYED, changes=True)
FLUSH = Op("kafka: flush", _not_delivered, Fault.SUSPENDED, changes=False)
ABORT = Op("kafka: abort by the writer", _not_delivered, Fault.DELAYED, *_OF_MARKERS, changes=True)
LEADER = Op("kafka: ask a leader", _no_answer, changes=False)
MARK = Op("kafka: write a marker", _no_answer, Fault.DELAYED, changes=True)


class Fate(Enum):
    """The outcome of a transaction, which only the model knows."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted by a client"
    REPLACED = "rolled back because its id was initialized again"
    TIMED_OUT = "timed out"


@dataclass(eq=False, slots=True)
class Written:
    """One transaction and the rows written in it."""

    name: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    made_by: Actor | None = None
    made_at: int = 0
    ended_at: int | None = None
    rows: list[str] = field(default_factory=list)
    fate: Fate = Fate.OPEN
    is_visible: bool = False


@dataclass(eq=False, slots=True)
class Held:
    """A producer's open transactions in the partition. There is more than one only if a marker was left out."""

    producer_epoch: int
    start_offset: int
    transactions: list[Written]


@dataclass(eq=False, slots=True)
class Id:
    """One transactional id. ``past`` is its state before the last change, ``changed_at`` the step of that change."""

    name: str
    producer_id: int
    epoch: int
    state: str = "Empty"
    timeout_ms: int = TIMEOUT_MS
    written: Written | None = None
    past: TransactionState | None = None
    changed_at: int = 0

    @property
    def now(self) -> TransactionState:
        return TransactionState(self.state, self.producer_id, self.epoch, {TOPIC: [0]})

    def changes(self, step: int) -> None:
        """Note the current state as the past one, just before a change at ``step``."""
        self.past, self.changed_at = self.now, step


class Broker:
    """A cluster: all transaction coordinators, and one partition."""

    def __init__(self, world: World, end_txn_version: int = EPOCH_BUMPING_END_TXN) -> None:
        self.world = world
        self.end_txn_version = end_txn_version
        self.ids: dict[str, Id] = {}
        self.held: dict[int, Held] = {}
        self.visible: Counter[str] = Counter()
        self.newest: dict[tuple[str, int, int], Written] = {}
        self.before_end: Callable[[Written, Fate], None] = lambda _written, _fate: None
        self.on_commit_asked: Callable[[str, int, int], None] = lambda _name, _producer_id, _epoch: None
        self.on_complete: Callable[[str, int], None] = lambda _sink, _batch_id: None
        self.on_announce: Callable[[int, Mapping[str, Sequence[Committable]]], None] = lambda _batch_id, _committed: (
            None
        )
        self.described_at: dict[str, dict[Actor | None, int]] = {}
        self.was_cut_off = False
        self._producer_ids = 1000

    # Requests of clients. ---------------------------------------------------------------------------------------------

    def init(self, name: str, timeout_ms: int = TIMEOUT_MS) -> ProducerIdentity | str:
        """Handle InitProducerId. Return a new epoch, or the name of the error."""
        known = self.ids.get(name)
        if known is None:
            known = self.ids[name] = Id(name, self._new_producer_id(), -1, changed_at=self.world.steps)
        elif known.state == "Ongoing":
            self._end(known, Fate.REPLACED, bumps=True)
            return "CONCURRENT_TRANSACTIONS"
        elif known.state.startswith("Prepare"):
            return "CONCURRENT_TRANSACTIONS"
        if known.epoch >= 0:
            known.changes(self.world.steps)
        known.timeout_ms = timeout_ms
        known.state, known.written = "Empty", None
        if known.epoch >= LAST_EPOCH or self.world.special is Fault.EPOCHS_RUN_OUT:
            known.producer_id, known.epoch = self._new_producer_id(), -1
        known.epoch += 1
        return ProducerIdentity(known.producer_id, known.epoch)

    def produce(self, name: str, identity: ProducerIdentity, rows: Sequence[str], writer: Actor | None = None) -> str:
        """Add ``rows`` to the open transaction, or open one, as a producer may do under its current epoch."""
        known = self.ids.get(name)
        if known is None or known.producer_id != identity.producer_id:
            return "INVALID_PRODUCER_ID_MAPPING"
        if known.epoch != identity.producer_epoch:
            return "PRODUCER_FENCED"
        if known.state.startswith("Prepare"):
            return "CONCURRENT_TRANSACTIONS"
        if known.written is None or known.state != "Ongoing":
            known.changes(self.world.steps)
            known.state = "Ongoing"
            known.written = Written(name, known.producer_id, known.epoch, self.world.now_ms, writer, self.world.steps)
            self.newest[name, known.producer_id, known.epoch] = known.written
        known.written.rows += rows
        held = self.held.setdefault(known.producer_id, Held(known.epoch, self.world.steps, []))
        held.producer_epoch = known.epoch
        if known.written not in held.transactions:
            held.transactions.append(known.written)
        return "NO_ERROR"

    def end(self, name: str, producer_id: int, epoch: int, commit: bool, version: int) -> str:
        """Handle EndTxn. Return the name of the error, or ``NO_ERROR``."""
        known = self.ids.get(name)
        bumps = version >= EPOCH_BUMPING_END_TXN
        error = _answer(known.now if known else None, producer_id, epoch, commit, bumps)
        if error is not None:
            return error
        assert known is not None
        if known.state == "Ongoing":
            self._end(known, Fate.COMMITTED if commit else Fate.ABORTED, bumps)
        else:  # an abort without a transaction: the producer requests a new epoch (KIP-890)
            known.changes(self.world.steps)
            known.epoch += 1
            known.state, known.written = "CompleteAbort", None
        return "NO_ERROR"

    def end_in_the_past(
        self, stale: Fault | None, name: str, producer_id: int, epoch: int, commit: bool, version: int
    ) -> str:
        """Handle EndTxn on a broker that is cut off, and so can write nothing."""
        past = self.describe_the_past(stale, [name]).get(name)
        error = _answer(past, producer_id, epoch, commit, version >= EPOCH_BUMPING_END_TXN)
        if error is None:
            raise _no_answer()
        return error

    def describe(self, names: Sequence[str]) -> dict[str, TransactionState]:
        for name in names:
            self.described_at.setdefault(name, {})[self.world.current] = self.world.steps
        return {name: known.now for name in names if (known := self.ids.get(name)) is not None}

    def describe_the_past(self, stale: Fault | None, names: Sequence[str]) -> dict[str, TransactionState]:
        """Return the states as a broker that is cut off reports them."""
        found = {}
        for name in names if stale is Fault.STALE else ():
            if (known := self.ids.get(name)) is not None and known.past is not None:
                found[name] = known.past
                seen_at = self.described_at.setdefault(name, {})
                seen_at[self.world.current] = max(seen_at.get(self.world.current, 0), known.changed_at)
        return found

    def list_ongoing(self, scope: str) -> list[str]:
        return sorted(name for name, known in self.ids.items() if known.state == "Ongoing" and name.startswith(scope))

    def list_of_producers(self, scope: str, producer_ids: Sequence[int]) -> list[str]:
        return sorted(
            name for name, known in self.ids.items() if known.producer_id in producer_ids and name.startswith(scope)
        )

    def open_transactions(self) -> list[OpenInPartition]:
        return [
            OpenInPartition(TOPIC, 0, producer_id, held.producer_epoch, 0, held.start_offset)
            for producer_id, held in self.held.items()
        ]

    def mark(self, producer_id: int, epoch: int, commit: bool) -> str:
        """Handle WriteTxnMarkers, with the epoch that follows the transaction's."""
        held = self.held.get(producer_id)
        if held is not None and held.producer_epoch > epoch:
            return "INVALID_PRODUCER_EPOCH"
        self._mark(producer_id, commit)
        return "NO_ERROR"

    # Effects of time. -------------------------------------------------------------------------------------------------

    def time_out(self) -> None:
        """Let every open transaction time out."""
        self.world.now_ms += max((known.timeout_ms for known in self.ids.values()), default=0)
        self.roll_back_what_timed_out()

    def roll_back_what_timed_out(self) -> None:
        for known in self.ids.values():
            if known.state == "Ongoing" and self._age_ms(known) >= known.timeout_ms:
                self._end(known, Fate.TIMED_OUT, bumps=True)

    def _age_ms(self, known: Id) -> int:
        assert known.written is not None
        return self.world.now_ms - known.written.started_ms

    def expire(self) -> None:
        """Let seven days pass."""
        self.time_out()
        self.ids = {name: known for name, known in self.ids.items() if known.state.startswith("Prepare")}

    # Internals. -------------------------------------------------------------------------------------------------------

    def _end(self, known: Id, fate: Fate, bumps: bool) -> None:
        written = known.written
        assert written is not None
        self.before_end(written, fate)
        known.changes(self.world.steps)
        known.epoch += bumps
        written.fate = fate
        written.ended_at = self.world.steps
        outcome = "Commit" if fate is Fate.COMMITTED else "Abort"

        special = self.world.special

        def complete() -> None:
            if special not in (Fault.MARKER_LEFT_OUT, Fault.MARKER_LEFT_OUT_LATE):
                self._mark(known.producer_id, fate is Fate.COMMITTED)
            known.state = f"Complete{outcome}"

        if special in (Fault.SLOW_MARKERS, Fault.MARKER_LEFT_OUT_LATE):
            known.state = f"Prepare{outcome}"
            self.world.later(MARKERS_STEPS, complete)
        else:
            complete()

    def _mark(self, producer_id: int, commit: bool) -> None:
        """End everything that the producer has open in the partition, whichever transaction it belongs to."""
        held = self.held.pop(producer_id, None)
        for written in held.transactions if held and commit else ():
            self.visible.update(written.rows)
            written.is_visible = True

    def _new_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids


def _answer(  # noqa: PLR0911  # one line per row of the table
    known: TransactionState | None, producer_id: int, epoch: int, commit: bool, bumps: bool
) -> str | None:
    """Return the answer to EndTxn of a coordinator that knows ``known``; None if it first has something to write."""
    if known is None or known.producer_id != producer_id:
        return "INVALID_PRODUCER_ID_MAPPING"
    repeats = bumps and epoch == known.producer_epoch - 1 and known.state not in ("Empty", "Ongoing")
    if epoch != known.producer_epoch and not repeats:
        return "PRODUCER_FENCED"
    wanted = "Commit" if commit else "Abort"
    if known.state == "Ongoing":
        return None
    if known.state == f"Prepare{wanted}":
        return "CONCURRENT_TRANSACTIONS"
    if known.state == f"Complete{wanted}" and (repeats or not bumps):
        return "NO_ERROR"
    if bumps and not commit and not repeats and not known.state.startswith("Prepare"):
        return None
    return "INVALID_TXN_STATE"


class ModelControl(Control):
    """The sink's control connection, to the model. Its broker may be cut off from the others. Such a broker reports
    past states until it has to write, or to prove that it coordinates the id."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stale: Fault | None = None
        self._until = 0
        self._step = broker.world.step
        self.leaders = ModelLeaders(broker)

    @property
    def transaction_version(self) -> int:
        return 2 if self._broker.end_txn_version >= EPOCH_BUMPING_END_TXN else 0

    def largest_timeout_ms(self) -> int | None:
        return self._step(ASK, lambda: TIMEOUT_MS)

    def require_transactions(self, transactional_id: str) -> None:
        """The model has every API."""

    def can_prove(self, scope: str) -> bool:
        return True

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, TransactionState]:
        return self._step(DESCRIBE, self._describe, transactional_ids)

    def _describe(self, transactional_ids: Sequence[str]) -> dict[str, TransactionState]:
        if self._is_stale():
            return self._broker.describe_the_past(self._stale, transactional_ids)
        return self._broker.describe(transactional_ids)

    def _is_stale(self) -> bool:
        world = self._broker.world
        if world.special in _STALE:
            self._stale, self._until = world.special, world.steps + STALE_STEPS
            self._broker.was_cut_off = True
        elif world.steps > self._until:
            self._stale = None
        return self._stale is not None

    def describe_proven(self, transactional_ids: Sequence[str], scope: str) -> dict[str, TransactionState]:
        return self._step(PROVE, self._describe_proven, transactional_ids) if transactional_ids else {}

    def _describe_proven(self, transactional_ids: Sequence[str]) -> dict[str, TransactionState]:  # type: ignore[override]
        if self._stale:
            self._stale = None  # the coordinator of the id is looked up again
            raise Retriable("the broker has not proved that it coordinates the id")
        return self._broker.describe(transactional_ids)

    def list_ongoing(self, scope: str) -> list[str]:
        return self._step(LIST, self._broker.list_ongoing, scope)

    def list_of_producers(self, scope: str, producer_ids: Sequence[int]) -> list[str]:
        return self._step(LIST, self._broker.list_of_producers, scope, producer_ids)

    def end(self, transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int) -> str:
        if commit:
            self._broker.on_commit_asked(transactional_id, producer_id, epoch)
        return self._step(END, self._end, transactional_id, producer_id, epoch, commit, version)

    def commit_many(self, due: Mapping[tuple[int, int], tuple[str, int]]) -> dict[tuple[int, int], str | None]:
        """Ask for one more commit after the first that gets no answer: it was sent before."""
        answers: dict[tuple[int, int], str | None] = {}
        for producer, (name, version) in due.items():
            is_last = None in answers.values()
            answers[producer] = None
            with contextlib.suppress(Retriable):
                answers[producer] = self.end(name, *producer, commit=True, version=version)
            if is_last:
                break
        return answers

    def _end(self, *asked: Any) -> str:
        if not self._is_stale():
            return self._broker.end(*asked)
        try:
            return self._broker.end_in_the_past(self._stale, *asked)
        except Retriable:
            self._stale = None
            raise


class ModelLeaders(Leaders):
    """The partitions' leaders, in the model."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._step = broker.world.step

    def open_transactions(self, partitions: Partitions, topic: str | None = None) -> Seen:
        return Seen(self._step(LEADER, self._broker.open_transactions)) if partitions or topic else Seen()

    def topic_ids(self, topics: Collection[str], since_s: float) -> dict[str, str]:
        return {}  # topics are never deleted

    def write_marker(self, transaction: OpenInPartition, commit: bool) -> str:
        return self._step(MARK, self._broker.mark, *transaction.identity, commit)


class ModelWriter(Writer):
    """The sink's producer, to the model. Like librdkafka's, its own aborts leave the epoch unchanged."""

    def __init__(self, broker: Broker, name: str, was_used: bool) -> None:
        self.topic_ids = {}  # topics are not deleted
        self._broker = broker
        self._step = broker.world.step
        self._name = name
        self._process = broker.world.current
        if was_used:
            known = self._step(DESCRIBE, broker.describe, [name]).get(name)
            if known is not None and not known.may_go_on:
                raise NotCommitted(name, known.state)
            broker.world.idle(FIND)
        while True:
            answer = self._step(INIT, broker.init, name)
            if isinstance(answer, ProducerIdentity):
                self._mine = answer
                return

    def write(self, batch: Any) -> None:
        call = (self._broker.produce, self._name, self._mine, batch.rows, self._process)
        while (error := self._step(PRODUCE, *call)) != "NO_ERROR":
            if error != "CONCURRENT_TRANSACTIONS":
                raise RoundAborted(f"not delivered: {error}")

    def finish(self) -> ProducerIdentity:
        self._broker.world.idle(FLUSH)  # all records are acknowledged already
        return self._mine

    def abort(self) -> None:
        self._step(ABORT, self._broker.end, self._name, *self._mine_as_pair, False, 1)

    @property
    def _mine_as_pair(self) -> tuple[int, int]:
        return self._mine.producer_id, self._mine.producer_epoch


# Brokers that grant transactions without a timeout are not modeled, because nothing can be lost there.
_OPTIONS = parse_options({"bootstrap.servers": "simulated:9092", "topic": TOPIC, "two.phase.commit": "off"})


class SimulatedKafkaSink(KafkaSink):
    """The real sink, connected to the model."""

    def __init__(self, broker: Broker, commits_last: bool = False) -> None:
        self.commits_last = commits_last
        self._options = _OPTIONS
        self.prefix = _OPTIONS.prefix
        self._broker = broker
        self._to_model = ModelControl(broker)
        self._hanging = Hanging(_OPTIONS.topic)
        self._visible = ()
        self._stuck = Stuck()
        self._asked_to_commit = set()
        self._decided_markers = {}

    @property
    def _control(self) -> Control:
        return self._to_model

    def _writer(self, name: str, was_used: bool, marker_topic: str | None) -> ModelWriter:
        return ModelWriter(self._broker, name, was_used)

    def validate(self, schema: object) -> None:
        """Accept all: the simulation's records are not Arrow data."""

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:
        super().complete(batch_id, committables)
        self._broker.on_complete(self.transactional_ids.sink, batch_id)

    def announce(
        self,
        batch_id: int,
        committed: Mapping[str, Sequence[Committable]],
        given_up: Mapping[str, Sequence[Committable]],
    ) -> None:
        super().announce(batch_id, committed, given_up)
        self._broker.on_announce(batch_id, committed)
