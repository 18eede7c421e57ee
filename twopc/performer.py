"""Performs the protocol's effects on real sinks and a real log. It decides nothing."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from twopc import effects
from twopc.commits import Wave
from twopc.datasets import Dataset
from twopc.effects import Effect, Life, Member, perform
from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    Refused,
    Retriable,
    RoundAborted,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc.events import (
    BatchCommitted,
    BatchFailed,
    BatchFinished,
    BatchPart,
    CallRetried,
    Event,
    LeftOut,
    PhaseEntered,
)
from twopc.failures import located
from twopc.late import telling_of_lateness
from twopc.log.commit_log import perform_on
from twopc.log.entries import Decision, Entry
from twopc.log.notices import Notices
from twopc.log.store import LogStore
from twopc.metrics import Metrics
from twopc.observing import notify
from twopc.phases import Phase, advance
from twopc.replay import DamagedCopy, ReplayCopies
from twopc.retry import Waits, until_answered
from twopc.sink import TwoPhaseCommitSink
from twopc.threads import Worker, join
from twopc.transaction import Committable, Transaction, Vote
from twopc.transactional_ids import Round

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

SEAL_PATIENCE_S = 120.0
"""How long a target system may fail to answer before the decision, for example while its brokers restart one by one.
Then the round is rolled back, because it may hold locks in other target systems."""


@dataclass(eq=False, repr=False)
class Performer:
    """Calls the sinks and the log for one coordinator. For the arguments see ``Coordinator``.

    ``phase`` is the protocol's current phase, ``metrics`` contains the metrics of the running batch, ``waits`` contains
    the calls that target systems have not answered, and ``notices`` writes the notice beside the log that ``twopc
    status`` reads.
    """

    life: Life = field(init=False)
    sinks: Mapping[str, TwoPhaseCommitSink[Any]]
    store: LogStore
    owner: str
    replay_copies: ReplayCopies | None
    commits_at_once: int
    start_timeout_s: float
    gives_up: Callable[[CallRetried], bool]

    def __post_init__(self) -> None:
        self.phase = Phase.CLOSED
        self.is_open = False
        self.tail_when_closed: Entry | None = None
        self.metrics = Metrics()
        self.waits = Waits(self.owner)
        self.notices = Notices(self.store)
        self._running: list[Worker] = []  # commits, perhaps of an earlier incarnation
        self.failed_rests = 0  # since a sweep was last answered
        self._first_failed_rest_s = 0.0  # by time.monotonic
        self._began_s = 0.0  # when the newest phase one began, by time.perf_counter

    @property
    def tail(self) -> Entry | None:
        """The newest known entry of the log; None if the log is empty or has not been read."""
        return self.life.tail if self.is_open and self.phase is not Phase.CLOSED else self.tail_when_closed

    def do(self, effect: Effect) -> Any:  # noqa: C901, PLR0911, PLR0912  # one case per effect
        """Perform one effect, and return its answer. Errors get the sink and the batch as attributes."""
        with located(sink=getattr(effect, "sink", None), batch_id=getattr(effect, "batch_id", None)):
            match effect:
                case effects.Bind():
                    return self._bind(effect.life)
                case effects.OpenSink():
                    return self._open_sink(effect)
                case effects.Write():
                    return self._write(effect)
                case effects.Seal():
                    given = (self.sinks[effect.sink], effect.votes, self._began_s)
                    return self.until_answered(effect.what, sealed, *given, patience_s=SEAL_PATIENCE_S)
                case effects.Commit():
                    at_once = self.commits_at_once
                    return Wave(effect, self.sinks, at_once, self.tell, self.waits, self._running).failures()
                case effects.Complete(name, batch_id, due):
                    what = f"batch {batch_id} is committed; its completion in sink {name!r}"
                    return self._until_finished(what, batch_id, self.sinks[name].complete, batch_id, due)
                case effects.Announce(name, batch_id, committed, given_up):
                    what = f"batch {batch_id} is complete; its announcement by sink {name!r}"
                    call = self.sinks[name].announce
                    return self._until_finished(what, batch_id, call, batch_id, committed, given_up)
                case effects.List(name):
                    return list(self.sinks[name].recover())
                case effects.Abort(name, transaction):
                    with located(transaction_id=transaction.transaction_id):
                        return self.sinks[name].abort(transaction)
                case effects.WriteAgain():
                    return self._write_again(effect)
                case effects.ListCopies(name):
                    return self._copies_of(name)
                case effects.RemoveCopy(name, copy):
                    return self._folder_of(name).remove(copy)
                case effects.Repeat():
                    return self._repeat(effect)
                case effects.Enter(phase, batch_id, began_s):
                    return self.enter(phase, batch_id, began_s)
                case effects.Note(tail, repetition):
                    return self.notices.note(tail, repetition)
                case effects.Tell(event):
                    return self.tell(event)
                case effects.TellCommitted(decision, recovered):
                    return self.tell(self._committed(decision, recovered))
            return perform_on(self.store, effect)

    def leave_incarnation(self) -> None:
        """Wait for commits that the last incarnation started, because the next incarnation uses the same sinks. Such
        commits keep running after a second interrupt."""
        self.is_open = False
        if self._running:
            logger.warning("waiting for threads that still commit for the last incarnation: %d", len(self._running))
        while self._running:  # a thread may start others
            join(self._running, tuple(self._running))

    # The sinks. -----------------------------------------------------------------------------------------------------

    def _bind(self, life: Life) -> dict[str, Member]:
        self.life, self.is_open = life, True
        members = {}
        for name, sink in self.sinks.items():
            sink.bind(name, life.tail.log_id, self.replay_copies if sink.may_time_out else None)
            sink.pending = life.pending.of(name)
            sink.last_batch_id = life.tail.newest.get(name)
            members[name] = Member(sink.commits_last, sink.may_time_out, sink.replay_copies is not None)
        return members

    def _open_sink(self, effect: effects.OpenSink) -> None:
        sink = self.sinks[effect.sink]
        if effect.is_patient:
            self.until_started(f"look at the target of sink {effect.sink!r}", sink.open)
        else:
            sink.open()

    def _write(self, effect: effects.Write) -> list[Vote]:
        self._began_s = time.perf_counter() if effect.began_s is None else effect.began_s
        given = (effect.round,) if effect.wanted is None else (effect.round, effect.wanted)
        limits = {sink.seals_within_s: name for name, sink in self.sinks.items() if sink.seals_within_s is not None}
        # Tasks of a data source have written already, and a batch that is computed again is decided.
        is_watched = effect.began_s is None and effect.wanted is None and self.commits_at_once > 1
        within_s = min(limits, default=None) if is_watched else None
        with telling_of_lateness(within_s, functools.partial(self._late, effect.round.batch_id, limits)):
            return list(effect.phase_one(*given))

    def _late(self, batch_id: int, limits: Mapping[float, str], age_s: float, ended: threading.Event) -> None:
        """Report a late batch. Upholds: a batch too late to be decided is not written for long without an operator
        being notified."""
        within_s = min(limits)
        is_over = age_s >= within_s
        what = f"batch {batch_id} is being written"
        reason = (
            f"sink {limits[within_s]!r} has {within_s:.0f} s for it, then it is rolled back and must be run again. Give"
            " the query more cores, the sink more time, or the next batches fewer records (maxOffsetsPerTrigger of"
            " Spark's Kafka source)"
        )
        logger.log(logging.ERROR if is_over else logging.WARNING, "%s for %.0f s: %s", what, age_s, reason)
        if is_over and (tail := self.tail) is not None:
            self.notices.post(tail, CallRetried(what, 1, 0.0, reason, age_s, self.owner), ended)

    def _write_again(self, effect: effects.WriteAgain) -> Committable:
        lost = effect.lost
        what = f"batch {effect.batch_id} is decided; writing {lost.transaction_id} again"
        with located(transaction_id=lost.transaction_id):
            return self._until_finished(what, effect.batch_id, write_again, self.sinks[effect.sink], lost, effect.round)

    def _copies_of(self, name: str) -> list[str]:
        owns = self.sinks[name].transactional_ids.owns_exact
        return [copy for copy, written in self._folder_of(name).names() if owns(written)]

    def _folder_of(self, name: str) -> ReplayCopies:
        copies = self.sinks[name].replay_copies
        assert copies is not None
        return copies

    # Waiting. -------------------------------------------------------------------------------------------------------

    def _repeat(self, effect: effects.Repeat) -> Any:
        def again() -> Any:
            return perform(effect.steps(), self.do)

        if effect.patience_s is None:
            return self.until_started(effect.what, again)
        return self.until_answered(effect.what, again, patience_s=effect.patience_s)

    def _until_finished(self, what: str, batch_id: int, call: Callable[..., ResultT], *arguments: object) -> ResultT:
        return self.until_answered(what, call, *arguments, decided_batch_id=batch_id)

    def until_answered(self, what: str, call: Callable[..., ResultT], *arguments: object, **limits: Any) -> ResultT:
        """Repeat a call while it is not answered. ``limits``: see ``retry.until_answered``."""
        return until_answered(what, call, *arguments, tell=self.tell, waits=self.waits, **limits)

    def until_started(self, what: str, call: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Repeat a call like ``until_answered``, but with a time limit before the log's first decision. Before that
        decision nothing depends on the answer, and a missing answer is probably due to a wrong option."""
        if self.tail is not None and self.tail.decided is not None:
            return self.until_answered(what, call, *arguments)
        began_s = time.monotonic()
        try:
            return self.until_answered(what, call, *arguments, patience_s=self.start_timeout_s)
        except Retriable as error:
            if self.waits.given_up.is_set():
                raise
            raise Retriable(
                f"{what}: no answer for {time.monotonic() - began_s:.1f} s, and the limit is"
                f" start_timeout_s={self.start_timeout_s:g}, until the log at {self.store.url} has its first"
                f" decision. Nothing was written. The last answer: {error}"
            ) from error

    # Reporting. -----------------------------------------------------------------------------------------------------

    def enter(self, phase: Phase, batch_id: int | None = None, began_s: float | None = None) -> None:
        left, self.phase = self.phase, advance(self.phase, phase)
        if phase is Phase.CLOSED:
            self.waits.given_up.set()  # a second interrupt may have come before the commits were told of the first
        self.metrics.leave(left, time.perf_counter() if began_s is None else began_s)
        self.notices.withdraw()
        self.tell(PhaseEntered(phase, batch_id, self.owner))

    def tell(self, event: Event) -> None:
        """Notify observers of an event, and the operator of a call that has waited for long."""
        self.metrics.count(event)
        notify(event)
        if isinstance(event, CallRetried):
            if self.gives_up(event):
                self.waits.given_up.set()
            if event.needs_operator and (tail := self.tail):
                self.notices.post(tail, event)

    def rest_failed(self, error: Retriable, wait_s: float) -> None:
        """Report a failed rest, which is repeated in ``wait_s`` seconds; 0 if the caller chooses when. Upholds: no call
        is repeated for long without an operator being notified."""
        now_s = time.monotonic()
        if not self.failed_rests:
            self._first_failed_rest_s = now_s
        self.failed_rests += 1
        waited_s = now_s - self._first_failed_rest_s
        event = CallRetried("rest between batches", self.failed_rests, wait_s, error.message, waited_s, self.owner)
        level = logging.ERROR if event.needs_operator else logging.WARNING
        logger.log(level, "between batches: no answer for %.0f s (%s)", waited_s, error.message)
        self.tell(event)

    def rest_is_answered(self) -> None:
        """Clear a reported failure."""
        if self.failed_rests:
            self.failed_rests = 0
            self.notices.withdraw()
            self.tell(PhaseEntered(self.phase, None, self.owner))

    def fail(self, error: BaseException, batch_id: int | None = None) -> None:
        """Enter the phase CLOSED after an error, so that the next call recovers first."""
        if isinstance(error, TwoPhaseCommitError):
            error.fill_in(batch_id=batch_id, phase=self.phase)
        if self.phase is Phase.CLOSED:
            self.notices.withdraw()
        else:
            self.enter(Phase.CLOSED, batch_id)
        if batch_id is not None:
            self.tell(BatchFailed(batch_id, error, self.metrics.phases_ms, self.owner))

    def finish(
        self, batch_id: int, already_decided: bool, committables: effects.Work, left_out: LeftOut
    ) -> BatchFinished:
        """Report the end of a batch. ``committables``: see ``Metrics.finished``."""
        batch = self.metrics.finished(self.owner, batch_id, already_decided, committables, left_out)
        logger.info("%s", batch)
        self.tell(batch)
        return batch

    def _committed(self, decision: Decision, recovered: bool) -> BatchCommitted:
        tail = self.life.tail
        parts = [
            part_of_batch(sink, decision.committables.get(name, ()), recovered) for name, sink in self.sinks.items()
        ]
        reads = tail.reads if decision.batch_id == tail.decided else None
        return BatchCommitted(decision.batch_id, tuple(parts), reads, recovered, tail.log_id, self.owner)


def sealed(
    sink: TwoPhaseCommitSink[Any], committables: Sequence[Committable], began_s: float
) -> tuple[Committable, ...]:
    """Return ``committables`` with the handles that the sink's ``seal`` gives them. ``began_s``: when phase one began,
    by ``time.perf_counter``.

    Raises:
        ConfigurationError: ``seal`` returned transactions other than those that it was given. Omitted transactions
            would be rolled back.
    """
    found = tuple(sink.seal(committables, time.perf_counter() - began_s))
    same = [one.is_same_transaction(other) for one, other in zip(found, committables, strict=False)]
    if len(found) != len(committables) or not all(same):
        raise ConfigurationError(
            f"seal of sink {sink.transactional_ids.sink!r} must return the transactions that it is given"
        )
    return tuple(replace(one, handle=other.handle) for one, other in zip(committables, found, strict=True))


def part_of_batch(sink: TwoPhaseCommitSink[Any], committables: Sequence[Committable], recovered: bool) -> BatchPart:
    """Return what ``committables`` of a decided batch have written, for observers. Raises nothing: observers must not
    affect a batch. ``recovered``: the batch may have been written with another schema."""
    name, datasets = sink.transactional_ids.sink, None
    try:
        if (found := sink.datasets(committables)) is not None:
            datasets = tuple(Dataset(each.namespace, each.name) for each in found)
    except Exception:
        logger.exception("sink %r could not name what it writes to", name)
    records = sum(committable.records or 0 for committable in committables)
    return BatchPart(name, records, datasets, None if recovered else sink._validated)  # noqa: SLF001  # not for users


def write_again(sink: TwoPhaseCommitSink[Any], lost: Committable, round: Round) -> Committable:
    """Write the records of the replay copy of ``lost`` in a new transaction, pre-commit it and seal it. Raises
    Retriable, not RoundAborted, if they can't be written now: the batch is decided, and must not be run again. Raises
    OperatorRequired if they can no longer be written."""
    assert sink.replay_copies is not None
    assert lost.replay_copy is not None
    began_s = time.perf_counter()
    transaction: Transaction | None = None
    try:
        transaction = sink.begin(sink.transactional_ids.reallocate(lost.transaction_id, round))
        for batch in sink.replay_copies.read(lost.replay_copy):
            sink.write(transaction, batch)
            transaction.records += batch.num_rows
        if transaction.records != lost.records:
            raise DamagedCopy(f"it has {transaction.records} records")
        vote = replace(sink.pre_commit(transaction), replay_copy=lost.replay_copy, bytes=lost.bytes)
        [replacement] = sealed(sink, [vote], began_s)
        return replacement
    except Exception as error:
        if transaction is not None:
            with contextlib.suppress(Exception):  # the sweep rolls back what stays open
                sink.discard(transaction)
        if failure := _failure(error, lost, round, sink.replay_copies.url):
            raise failure from error
        raise


def _failure(error: Exception, lost: Committable, round: Round, url: str) -> Exception | None:
    """Return the error to raise in place of ``error``, because the transaction is decided; None to raise it as is."""
    what = (
        f"transaction {lost.transaction_id} ({lost.records} records) of {round} is decided and was rolled back by its"
        " target system"
    )
    restore = "Restore the copy and start again, or write the records by other means."
    match error:
        case FileNotFoundError():
            return TransactionLost(f"{what}, and its copy {lost.replay_copy} is no longer in {url}. {restore}")
        case DamagedCopy():
            return TransactionLost(f"{what}, and its copy {lost.replay_copy} in {url} is damaged: {error}. {restore}")
        case RoundAborted():
            return Retriable(f"{what}; writing it again failed: {error}")
        case Refused():
            return OperatorRequired(f"{what}, which now refuses its records: {error} Correct that and start again.")
    return None
