"""The coordinator sequences the phases of every batch. It alone decides.

One batch, in the order of ``Coordinator.run``:

1. The first batch of an incarnation opens the log, which fences older coordinators, and recovers.
2. A batch that the log has decided is not written again. It must be the one that was decided: the coordinator compares
   what it reads, not its number alone.
3. Phase one: participants write and pre-commit. Any failure rolls the round back.
4. Every sink seals its transactions, or vetoes.
5. The decision: one append to the log. Before it nothing is visible; after it everything becomes visible.
6. Phase two: every transaction is committed, however often that takes. Sinks that commit last follow the others.
   Finally, sinks announce the batch.
7. The sweep: transactions that are open and undecided are rolled back, so that they hold back no reader.

After any error the coordinator closes itself. The next call opens a new incarnation and recovers first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from twopc._bound_sink import CommitCall
from twopc._joint_commits import commit_calls
from twopc._threads import acquire, on_threads
from twopc.errors import (
    ConfigurationError,
    CorruptLog,
    Fenced,
    InDoubt,
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
    CallRetried,
    Event,
    LeftOut,
    PhaseEntered,
    TransactionCommitted,
    TransactionReplayed,
)
from twopc.failures import located, sentence, verdict, worst_of
from twopc.log.batch_identity import recognize
from twopc.log.commit_log import CommitLog, read_tail
from twopc.log.entries import Decision, Entry
from twopc.log.notices import Notices
from twopc.log.store import LogStore, store_of
from twopc.metrics import NO_OPENING, Metrics, Opening
from twopc.participant import Vote
from twopc.phases import Phase, advance
from twopc.places import refuse_within_outputs
from twopc.plugins import notify
from twopc.recompute import (
    EVERY_PARTITION,
    RecomputableLoss,
    Recompute,
    Wanted,
    is_recomputable,
    loss_of,
    not_computed_again,
    recognized,
    recognized_anywhere,
    refuse_changed_sinks,
)
from twopc.replay import ReplayCopies, write_again
from twopc.resting import REST_INTERVAL_S, Resting
from twopc.retry import Waits, until_answered
from twopc.sink import TwoPhaseCommitSink
from twopc.sweep import sweep
from twopc.transaction import Committable, JsonValue
from twopc.transactional_ids import Round, TransactionalIdPool

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
Work: TypeAlias = "Mapping[str, Sequence[Committable]]"
"""Sink's name → transactions of one batch."""

START_TIMEOUT_S = 60.0

SEAL_PATIENCE_S = 120.0
"""How long a target system may give no answer before the decision, such as while its brokers restart one by one. Then
the round is rolled back, as it may hold locks in other target systems."""


class Coordinator:
    """Runs the batches of one query, over all its sinks at once.

    Args:
        sinks: name → sink. The names go into transactional ids and the log; keep them across restarts.
        log: the commit log's folder, as path or URL, or a store that ``open_store`` returns.
        owner: the query's name, the same after a restart and different from any other query's (Spark's query id).
        first_batch_id: the first batch that an empty log accepts. Set it only for a query that ran without twopc
            before: an empty log can't be told from a lost one.
        replay_copies: a folder where participants keep a copy of what they write, or None. If a target system rolls
            back a decided transaction, as Kafka does after a timeout, the coordinator writes its records again from
            the copy. Without copies the query stops.
        commits_at_once: threads of phase two for each sink. A commit mostly waits for its target system. With 1, the
            calling thread commits, and a target system that is away keeps the sinks after it waiting.
        rest_interval_s: how long after a batch, and how often from then on, a thread of its own calls ``rest``; None
            for never.
        start_timeout_s: how long a target system may give no answer before the first decision of a new log. After the
            first decision there is no such limit: only the target system's answer ends a decided transaction.
        gives_up: called each time that a target system has given no answer; True ends the wait. The waiting call then
            raises ``Retriable``, and the next call recovers.
    """

    def __init__(
        self,
        sinks: Mapping[str, TwoPhaseCommitSink[Any]],
        log: str | os.PathLike[str] | LogStore,
        *,
        owner: str,
        first_batch_id: int = 0,
        replay_copies: str | os.PathLike[str] | ReplayCopies | None = None,
        commits_at_once: int = 16,
        rest_interval_s: float | None = REST_INTERVAL_S,
        start_timeout_s: float = START_TIMEOUT_S,
        gives_up: Callable[[CallRetried], bool] = lambda _: False,
    ) -> None:
        _check(sinks)
        self._sinks = dict(sorted(sinks.items()))  # one order for all, whatever the caller's
        self._store = store_of(log)
        self._owner = owner
        self._first_batch_id = first_batch_id
        self._replay_copies = (
            replay_copies
            if replay_copies is None or isinstance(replay_copies, ReplayCopies)
            else ReplayCopies(replay_copies)  # type: ignore[arg-type]  # it takes paths, too
        )
        refuse_within_outputs("the commit log", self._store.url, self._sinks)
        if self._replay_copies is not None:
            refuse_within_outputs("the folder of replay copies", self._replay_copies.url, self._sinks)
        self._commits_at_once = commits_at_once
        self._start_timeout_s = start_timeout_s
        self._gives_up = gives_up
        self._phase = Phase.CLOSED
        self._metrics = Metrics()
        self._one_at_a_time = threading.Lock()  # callers of public methods, of which a second is refused or waits
        self._batch_or_rest = threading.Lock()  # a rest is skipped while a batch runs, and a batch waits for a rest
        self._waits = Waits(owner)
        self._resting = None if rest_interval_s is None else Resting(self.rest, rest_interval_s)
        self._running_in: int | None = None
        self._failed_rests = 0  # since a sweep was last answered
        self._first_failed_rest_s = 0.0  # by time.monotonic
        self._notices = Notices(self._store)
        self._log: CommitLog
        self._is_open = False  # whether the log is that of this incarnation
        self._recompute: Recompute | None = None  # of the batch that runs
        self._computations = 0  # of decided batches
        self._loss: RecomputableLoss | None = None  # waits for its batch; the log must not call that complete
        self._tail_when_closed: Entry | None = None

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def waited_s(self) -> float:
        """How long the oldest unanswered call to a target system has been repeated; 0 if there is none."""
        return self._waits.longest_s

    @property
    def opening(self) -> Opening:
        """What ``recover`` took, for the ``run`` of a coordinator in another process."""
        return self._metrics.opening

    @property
    def next_batch_id(self) -> int:
        """The first batch that the log has not decided: where a loop without Spark begins after a restart.

        Reads the log and opens nothing. Call ``recover`` first: if a crash left the last batch decided and uncommitted,
        no later call may come to commit it.

        Raises:
            TwoPhaseCommitError: the log can't be read.
        """
        newest = _newest_entry(self._store)
        return self._first_batch_id if newest is None or newest.decided is None else newest.decided + 1

    @property
    def _tail(self) -> Entry | None:
        """The newest known entry of the log; None if the log is empty, or was not read yet."""
        return self._tail_when_closed if self._phase is Phase.CLOSED else self._log.tail

    def run(
        self,
        batch_id: int,
        phase_one: Callable[[Round], Iterable[Vote]],
        *,
        reads: JsonValue = None,
        follows: JsonValue = None,
        began_s: float | None = None,
        opening: Opening = NO_OPENING,
        recompute: Recompute | None = None,
        left_out: Callable[[], LeftOut] = LeftOut,
    ) -> BatchFinished:
        """Write batch ``batch_id`` exactly once.

        Args:
            batch_id: the batch after the newest that the log has decided; or one that it has decided, which is then
                recognized by ``reads`` as long as the log keeps its entry, and not written again.
            phase_one: has participants write the batch's records, and returns the votes of the winning attempts, one
                per partition. Called once, or not at all if the batch is decided already.
            reads: what the batch reads from its source, as JSON, such as offsets: the same whenever this batch is run
                again, and different for any other. It identifies the batch; without it the number alone does.
            follows: what the previous batch read according to the checkpoint. A new batch begins where that one ends.
                In a dictionary, top-level keys that ``follows`` lacks are not compared.
            began_s: an earlier reading of this machine's ``time.perf_counter``, if participants began before this call.
            opening: the ``opening`` of the coordinator that opened the incarnation for this batch, if this one resumed
                it. For the metrics.
            recompute: has participants write partitions of this batch again, each only to the sinks that have lost it,
                and returns their votes. Called for transactions that a target system has rolled back after their
                decision, if they were written with hashes (``Participant.write``). If the records are not the same,
                the query stops.
            left_out: what participants left out of the batch, for the metrics. Called after ``phase_one``.

        Raises:
            LogMismatch: the log has decided this batch with other ``reads``, or the one before with others than it
                ``follows``; or the batch is neither the newest decided one nor the next. Nothing was written.
            RoundAborted: ``phase_one`` failed; nothing of the batch is visible. Its exception is the cause.
            TwoPhaseCommitError: any other error of ``twopc.errors``, which lists what to do.
        """
        with self._alone(f"batch {batch_id}", waits=False, batch_id=batch_id):
            self._metrics = Metrics(opening)
            if self._phase is Phase.CLOSED:
                self._open()
            if recognize(batch_id, reads, self._log.tail, self._first_batch_id, self._store, follows):
                if self._loss is not None and batch_id == self._log.tail.decided:
                    self._recover_loss(batch_id, recompute)
                return self._finished(batch_id, True, {}, LeftOut())
            self._require_no_loss()
            round = Round(self._log.incarnation, batch_id)
            started = time.perf_counter() if began_s is None else began_s
            try:
                votes = self._pre_commit(round, phase_one, started)
                committables = self._seal(round, votes, started)
                rest = left_out()
            except Exception as error:  # noqa: BLE001  # whatever failed, the round is rolled back
                self._roll_back(round, error)
            self._decide(Decision(round, committables), reads)
            self._enter(Phase.COMMITTING, batch_id)
            self._recompute = recompute
            self._commit_through(batch_id, recovered=False)
            self._enter(Phase.SWEEPING, batch_id)
            with _decided(batch_id):
                self._until_answered(f"sweep after batch {batch_id}", self._sweep, False)
            self._enter(Phase.IDLE, batch_id)
            self._failed_rests = 0  # its sweep was answered
            if self._resting is not None:
                self._resting.batch_ended()
            return self._finished(batch_id, False, committables, rest)

    def recover(self) -> Entry:
        """Open a new incarnation, which fences every older one, commit what is decided, and abort the rest.

        The first ``run`` does the same. Waits for a running batch. Raises like ``run``.

        Returns:
            The newest entry of the log.
        """
        with self._alone("recover", waits=True):
            self._open()
            self._require_no_loss()
            return self._log.tail

    def resume(self, log_id: str, incarnation: int) -> None:
        """Continue an incarnation that ``recover`` opened in another process.

        Transactions that participants have pre-committed in it stay, for the next ``run`` to decide. Only one process
        at a time may continue an incarnation.

        Raises:
            Fenced: a newer incarnation has opened, or the log was replaced. Raises otherwise like ``run``.
        """
        with self._alone("resume", waits=True):
            self._enter(Phase.RECOVERING)
            self._is_open = False
            self._attach(CommitLog.resume(self._store, log_id, incarnation))
            self._require_no_loss()
            self._enter(Phase.IDLE)

    def validate(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Make sure that each sink named in ``schemas`` can write records of its schema. For use between batches.

        Raises:
            Refused: a sink can't; nothing was written.
            TwoPhaseCommitError: like ``run``.
        """
        with self._alone("validate", waits=True):
            if self._phase is Phase.CLOSED:
                self._tail_when_closed = _newest_entry(self._store)
            for name, schema in schemas.items():
                what = f"look at what sink {name!r} writes to"
                with located(sink=name):
                    self._until_started(what, self._sinks[name].require_valid, schema)
            self._notices.withdraw()

    def rest(self) -> None:
        """Record in the log that everything decided is committed, and roll back what lost attempts began after the last
        sweep. Does nothing while a batch runs or before the first.

        Raises:
            Fenced: a newer coordinator has opened the log. The next ``run`` raises it too.
            Exception: the log may or may not have been changed. The next ``run`` recovers first.
        """
        if not self._batch_or_rest.acquire(blocking=False):
            return
        try:
            if self._phase is Phase.IDLE and self._loss is None:
                if self._log.tail.unresolved:
                    self._log.complete()
                else:
                    self._log.verify()
                self._sweep(recovered=False)
                self._rested()
        except Retriable as error:  # the next rest, or the next batch, asks again
            self._not_rested(error)
        except Fenced:
            raise
        except BaseException as error:
            if isinstance(meant := self._meant(error, waits=False), Fenced):
                raise meant from error
            self._fail(error)
            raise
        finally:
            self._batch_or_rest.release()

    def _not_rested(self, error: Retriable) -> None:
        """Report a rest that the next one repeats. Upholds: nothing is repeated for long without an operator being
        told."""
        now_s = time.monotonic()
        if not self._failed_rests:
            self._first_failed_rest_s = now_s
        self._failed_rests += 1
        waited_s = now_s - self._first_failed_rest_s
        wait_s = self._resting.interval_s if self._resting else 0.0  # else the caller of rest chooses when
        event = CallRetried("rest between batches", self._failed_rests, wait_s, error.message, waited_s, self._owner)
        level = logging.ERROR if event.needs_operator else logging.WARNING
        logger.log(level, "between batches: no answer for %.0f s (%s)", waited_s, error.message)
        self._tell(event)

    def _rested(self) -> None:
        if self._failed_rests:
            self._failed_rests = 0
            self._notices.withdraw()
            self._tell(PhaseEntered(self._phase, None, self._owner))  # ends what observers show as unanswered

    def close(self) -> None:
        """Stop cleanly: nothing is in doubt, and the log records that. Waits for a running batch. ``run`` may be called
        again.

        Raises:
            TwoPhaseCommitError: like ``run``. The next start recovers.
        """
        with self._alone("close", waits=True):
            try:
                if self._phase is Phase.IDLE:
                    # A lost attempt may have begun after the last batch's sweep.
                    self._until_started("sweep at the end", self._sweep, False)
                    if self._loss is None:
                        self._log.close()
                    self._enter(Phase.CLOSED)
            finally:
                for sink in self._sinks.values():
                    sink.close()

    @contextlib.contextmanager
    def _alone(self, what: str, waits: bool, batch_id: int | None = None) -> Iterator[None]:
        """Admit one call at a time. After any error the coordinator is closed, and the next call recovers first."""
        within = self._running_in == threading.get_ident()
        if not within and waits:
            acquire(self._one_at_a_time)
        elif within or not self._one_at_a_time.acquire(blocking=False):
            raise ConfigurationError(f"{what} came while a batch runs: call it when the batch has ended")
        self._running_in = threading.get_ident()
        try:
            acquire(self._batch_or_rest)
            try:
                self._waits = Waits(self._owner)  # not before: a rest waits by those that it began with
                if self._phase is not Phase.IDLE:  # an interrupt may have come before an error was noted
                    self._phase = Phase.CLOSED
                yield
            except BaseException as error:
                meant: BaseException = error
                try:
                    meant = self._meant(error)  # while no rest can write to the log
                finally:
                    self._fail(meant, batch_id)
                if meant is not error:
                    raise meant from error
                raise
            finally:
                self._batch_or_rest.release()
        finally:
            self._running_in = None
            self._one_at_a_time.release()

    def _meant(self, error: BaseException, *, waits: bool = True) -> BaseException:
        """Return what an error means when the log has been looked at. Upholds: a fenced coordinator calls no operator,
        and asks for no repetition. A newer one may have settled what this one failed at.

        Where the answer ends the query, the look is repeated until the log is read; where it does not, and where the
        caller must not wait, the next start looks.
        """
        is_open = self._is_open and self._phase is not Phase.CLOSED
        if not is_open or not isinstance(error, Exception) or isinstance(error, Fenced | InDoubt | CorruptLog):
            return error
        starts_again = isinstance(error, Retriable | RoundAborted) or not waits
        try:
            self._until_answered("look at the log", self._log.verify, patience_s=0.0 if starts_again else None)
        except Fenced as fenced:
            return fenced
        except Exception as unread:  # noqa: BLE001  # the first error is raised
            logger.warning("the log could not be read after an error: %s", unread)
        return error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The phases of a batch. -------------------------------------------------------------------------------------

    def _pre_commit(self, round: Round, phase_one: Callable[[Round], Iterable[Vote]], started: float) -> list[Vote]:
        self._enter(Phase.PRE_COMMITTING, round.batch_id, started)
        return list(phase_one(round))

    def _seal(self, round: Round, votes: Sequence[Vote], started: float) -> dict[str, tuple[Committable, ...]]:
        self._enter(Phase.SEALING, round.batch_id)
        strangers = {name for vote in votes for name in vote} - self._sinks.keys()
        if strangers:
            raise ConfigurationError(f"there are votes for {', '.join(sorted(strangers))}: this log has no such sink")
        sealed = {}
        for name, sink in self._sinks.items():
            of_sink = [vote[name] for vote in votes if name in vote]
            what = f"{round}: seal of sink {name!r}"
            with located(sink=name):
                sealed[name] = self._until_answered(what, sink.sealed, of_sink, started, patience_s=SEAL_PATIENCE_S)
        return sealed

    def _roll_back(self, round: Round, error: Exception) -> NoReturn:
        """Abort the round, which no entry of the log has decided, and raise what its failure means."""
        try:
            self._sweep(recovered=False)
        except Fenced as fenced:
            raise fenced from error
        except Exception as failure:  # noqa: BLE001  # a sink may raise anything; the first error is raised
            logger.warning("could not roll back all of %s, which recovery does: %s", round, failure)
        if isinstance(error, Refused):
            raise error
        raise RoundAborted(
            f"{round} failed before its decision ({type(error).__name__}: {error}). Nothing of it is visible."
            " Run the batch again; a restarted query does.",
            sink=getattr(error, "sink", None),
            transaction_id=getattr(error, "transaction_id", None),
        ) from error

    def _decide(self, decision: Decision, reads: JsonValue) -> None:
        """The commit point. A failed append leaves the outcome unknown, so nothing is aborted after it, unless the log
        has refused the decision: then no entry was put."""
        self._enter(Phase.DECIDING, decision.batch_id)
        try:
            self._log.decide(decision, reads)
        except Refused as error:
            self._roll_back(decision.round, error)
        self._remember(decision)

    def _remember(self, decision: Decision) -> None:
        for name, sink in self._sinks.items():
            sink.pending.add(decision.batch_id, decision.committables.get(name, ()))

    def _commit_through(self, batch_id: int, recovered: bool) -> None:
        """Commit every pending batch up to ``batch_id``, in order. Upholds: a sink that commits last is never ahead of
        the others."""
        pending = {due for sink in self._sinks.values() for due in sink.pending.through(batch_id)}
        for due in sorted(pending):
            committed = self._committed(due, recovered)
            with _decided(due):
                for last in (False, True):
                    # Sinks that have completed the batch wait with it here for one that commits last and has lost it.
                    sinks = [s for s in self._sinks.values() if s.commits_last is last and due in s.pending]
                    self._commit_batch(due, sinks, recovered)
                self._announce(due)
            self._tell(committed)

    def _announce(self, batch_id: int) -> None:
        """Have the sinks tell their readers of a batch. Upholds: all of it is visible before."""
        decision = self._unresolved(batch_id)
        given_up: dict[str, list[Committable]] = {}
        for abandonment in self._log.tail.abandoned:
            if abandonment.given_up.batch_id == batch_id:
                for name, committables in abandonment.given_up.committables.items():
                    given_up.setdefault(name, []).extend(committables)
        for name, sink in self._sinks.items():
            what = f"batch {batch_id} is complete; its announcement by sink {name!r}"
            with located(sink=name, batch_id=batch_id):
                self._until_answered(
                    what, sink.announce, batch_id, decision.committables, given_up, decided_batch_id=batch_id
                )

    def _unresolved(self, batch_id: int) -> Decision:
        [decision] = [decision for decision in self._log.tail.unresolved if decision.batch_id == batch_id]
        return decision

    def _committed(self, batch_id: int, recovered: bool) -> BatchCommitted:
        """Return the event for a pending batch, to be reported when it is complete. A sink that has completed its part
        before the others has forgotten it, and the log has it still."""
        tail, parts = self._log.tail, []
        logged = {decision.batch_id: decision.committables for decision in tail.unresolved}.get(batch_id, {})
        for name, sink in self._sinks.items():
            committables = sink.pending[batch_id] if batch_id in sink.pending else logged.get(name, ())
            parts.append(sink.part_of_batch(committables, recovered))
        reads = tail.reads if batch_id == tail.decided else None
        return BatchCommitted(batch_id, tuple(parts), reads, recovered, tail.log_id, self._owner)

    def _commit_batch(self, batch_id: int, sinks: Sequence[TwoPhaseCommitSink[Any]], recovered: bool) -> None:
        """Commit a pending batch in ``sinks``, then complete it there."""
        work: Work = {_name(sink): sink.pending[batch_id] for sink in sinks}
        while work:
            work = self._attempt_commits(work, batch_id, recovered)
        for sink in sinks:
            what = f"batch {batch_id} is committed; its completion in sink {_name(sink)!r}"
            with located(sink=_name(sink), batch_id=batch_id):
                pending = sink.pending[batch_id]
                self._until_answered(what, sink.complete, batch_id, pending, decided_batch_id=batch_id)
            sink.pending.settle(batch_id)

    def _attempt_commits(self, work: Work, batch_id: int, recovered: bool) -> Work:
        """Commit transactions of a pending batch, several at once. Those that their target systems had rolled back are
        written again from their replay copies.

        Returns:
            The transactions that were written again, to be committed next; and lost ones to look at again.

        Raises:
            Fenced: a newer coordinator goes on with this batch.
            RecomputableLoss: what is lost waits for its batch to come again. All others have been committed.
            Exception: a transaction can't be committed. All others have been: nothing else is left undone.
        """

        def attempt(call: CommitCall) -> Exception | None:
            what = f"batch {batch_id} is decided; {call}"
            among = f"batch {batch_id} is decided; commits of {self._sinks[call.sink].transactional_ids.scope}"
            try:
                until_answered(
                    what, call.commit, tell=self._tell, waits=self._waits, among=among, decided_batch_id=batch_id
                )
                self._tell_committed(call, batch_id, recovered)
            except Exception as error:  # noqa: BLE001  # raised below, when all attempts have ended
                return error
            return None

        def failed_in(calls: Sequence[CommitCall]) -> list[tuple[CommitCall, Exception]]:
            left = self._commit_many(calls, batch_id, recovered)
            outcomes = list(self._map(len(left), self._commits_at_once)(attempt, left))
            return [(call, error) for call, error in zip(left, outcomes, strict=True) if error]

        calls = commit_calls(batch_id, [(self._sinks[name], due) for name, due in work.items()])
        of_sinks = [[*of_sink] for _, of_sink in groupby(calls, key=attrgetter("sink"))]
        # Each sink has threads of its own: one whose target system is away must not keep the others waiting.
        failed = list(chain.from_iterable(self._map(len(of_sinks), len(of_sinks))(failed_in, of_sinks)))
        if failed:  # a newer coordinator may have settled them, and their names may have been used again since
            self._until_answered("look at the log", self._log.verify)
        lost: dict[str, list[Committable]] = {}  # what target systems rolled back and copies can replace
        errors: list[tuple[CommitCall, Exception]] = []
        for call, raised in failed:
            has_copies = self._sinks[call.sink].replay_copies is not None
            error = verdict(raised, call.committables, has_copies, recovered)
            if isinstance(error, TwoPhaseCommitError):
                error.fill_in(sink=call.sink, batch_id=batch_id, transaction_id=call.transaction_id)
            if isinstance(error, TransactionLost) and has_copies and all(c.replay_copy for c in call.committables):
                lost.setdefault(call.sink, []).extend(call.committables)
                _warn_of_loss(call, batch_id, "are written again from their replay copy")
            else:
                errors.append((call, error))
                self._log_failure(call, batch_id, error)
        if errors:
            # Of the decided batches, only the newest comes again.
            loss = loss_of(errors) if batch_id == self._log.tail.decided else None
            if loss is None:
                # What can be computed again needs no operator, and must not be written by other means.
                raise worst_of([e for c, e in errors if not is_recomputable(c, e)] or [e for _, e in errors])
            again = self._compute_again(loss, batch_id)
            return {name: (*again.get(name, ()), *lost.get(name, ())) for name in again.keys() | lost.keys()}
        return self._replay(batch_id, lost) if lost else {}

    def _log_failure(self, call: CommitCall, batch_id: int, error: Exception) -> None:
        """Log a commit that failed. A loss that can be computed again is no error yet: its advice, to write the records
        by other means, would double them."""
        if is_recomputable(call, error) and batch_id == self._log.tail.decided:
            _warn_of_loss(call, batch_id, "can be computed again")
        else:
            logger.error("batch %d, sink %r: %s", batch_id, call.sink, error)

    def _commit_many(self, calls: Sequence[CommitCall], batch_id: int, recovered: bool) -> Sequence[CommitCall]:
        """Have a sink commit several transactions at once, if it can. Return the calls that are left to make."""
        sink = self._sinks[calls[0].sink]
        if len(calls) == 1 or not sink.commits_many:
            return calls
        try:
            committed = frozenset(sink.commit_many([call.committables[0] for call in calls]))
        except Exception as error:  # noqa: BLE001  # it is not believed: each commit finds out what happened
            logger.warning(
                "batch %d is decided; sink %r could not commit its %d transactions at once, and commits them one by"
                " one: %s: %s",
                *(batch_id, calls[0].sink, len(calls), type(error).__name__, error),
            )
            return calls
        for call in calls:
            if call.transaction_id in committed:
                self._tell_committed(call, batch_id, recovered)
        return [call for call in calls if call.transaction_id not in committed]

    def _tell_committed(self, call: CommitCall, batch_id: int, recovered: bool) -> None:
        for committable in call.committables:
            self._tell(TransactionCommitted(call.sink, batch_id, committable, recovered, self._owner))

    def _map(self, calls: int, at_once: int) -> Callable[..., Iterable[Any]]:
        """Return a ``map`` for that many calls. It runs them on this thread, or on up to ``at_once`` others."""
        if self._commits_at_once == 1 or calls <= 1:
            return map
        return partial(on_threads, at_once=at_once, give_up=self._waits.given_up.set)

    def _replay(self, batch_id: int, lost: Work) -> Work:
        """Write again what target systems rolled back after the decision, amend the decision to name the new
        transactions, and return these.

        Until the amendment is in the log they are undecided like any other: a crash leaves them to the sweep, and the
        next incarnation starts over.
        """
        round = Round(self._log.incarnation, batch_id)
        replaced = {name: dict[str, Committable]() for name in lost}
        for name, committable in ((name, committable) for name, of_sink in lost.items() for committable in of_sink):
            what = f"batch {batch_id} is decided; writing {committable.transaction_id} again"
            with located(sink=name, batch_id=batch_id, transaction_id=committable.transaction_id):
                replacement = self._until_answered(
                    what, write_again, self._sinks[name], committable, round, decided_batch_id=batch_id
                )
            replaced[name][committable.transaction_id] = replacement
            self._tell(TransactionReplayed(name, batch_id, committable, replacement, self._owner))
        return self._amend(batch_id, replaced)

    def _compute_again(self, loss: RecomputableLoss, batch_id: int) -> Work:
        """Have participants write lost records again, and do the rest like ``_replay``, if the records are the same."""
        if self._recompute is None:
            raise loss
        refuse_changed_sinks(loss, self._sinks, batch_id)
        round = Round(self._log.incarnation, batch_id)
        began_s = time.perf_counter()
        replaced = {name: dict[str, Committable]() for name in loss.lost}
        try:
            for name, again in self._recognized(self._recompute, loss, batch_id).items():
                what = f"{round}, computed again: seal of sink {name!r}"
                with located(sink=name):
                    sealed = self._until_answered(
                        what, self._sinks[name].sealed, again, began_s, patience_s=SEAL_PATIENCE_S
                    )
                replaced[name] = {old.transaction_id: new for old, new in zip(loss.lost[name], sealed, strict=True)}
        except Exception as error:
            with contextlib.suppress(Exception):  # recovery does it, too
                self._sweep(recovered=False)
            if failure := not_computed_again(error, round):
                raise failure from error
            raise
        for name, lost in loss.lost.items():
            for committable in lost:
                replacement = replaced[name][committable.transaction_id]
                self._tell(TransactionReplayed(name, batch_id, committable, replacement, self._owner))
        return self._amend(batch_id, replaced)

    def _recognized(
        self, recompute: Recompute, loss: RecomputableLoss, batch_id: int
    ) -> dict[str, Sequence[Committable]]:
        """Have participants write lost records again. Return the transactions that have them, in the order of the lost
        ones. What else was written stays undecided, for the sweep."""

        def votes(wanted: Wanted) -> dict[str, list[Committable]]:
            self._computations += 1
            round = Round(self._log.incarnation, batch_id, self._computations)
            given = list(recompute(round, wanted))
            return {name: [vote[name] for vote in given if name in vote] for name in loss.lost}

        found, again = votes(loss.wanted), dict[str, Sequence[Committable]]()
        try:
            for name, lost in loss.lost.items():
                with located(sink=name):
                    again[name] = recognized(lost, found[name])
        except TransactionLost:
            found = votes(dict.fromkeys(loss.lost, EVERY_PARTITION))
            for name, lost in loss.lost.items():
                if (anywhere := recognized_anywhere(lost, found[name])) is None:
                    raise
                again[name] = anywhere
        return again

    def _amend(self, batch_id: int, replaced: Mapping[str, Mapping[str, Committable]]) -> Work:
        """Have the log name other transactions in place of lost ones: sink's name → lost transaction's name → new.
        Return the new ones."""
        decision = self._unresolved(batch_id)
        committables = {
            name: tuple(replaced.get(name, {}).get(c.transaction_id, c) for c in of_sink)
            for name, of_sink in decision.committables.items()
        }
        self._log.amend(Decision(decision.round, committables))
        for name in replaced:
            self._sinks[name].pending.amend(batch_id, committables[name])
        return {name: tuple(of_sink.values()) for name, of_sink in replaced.items()}

    def _recover_loss(self, batch_id: int, recompute: Recompute | None) -> None:
        """Finish the recovery that waited for its batch to come again."""
        if recompute is None:
            self._require_no_loss()
        self._enter(Phase.RECOVERING, batch_id)
        self._recompute, self._loss = recompute, None
        self._commit_through(batch_id, recovered=True)
        self._until_answered("sweep at recovery", self._sweep, True)
        self._enter(Phase.IDLE, batch_id)

    def _require_no_loss(self) -> None:
        if self._loss is not None:
            raise self._loss

    def _sweep(self, recovered: bool) -> None:
        sweep(self._sinks.values(), self._log, recovered=recovered, tell=self._tell)

    # Recovery. --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open a new incarnation, commit what is decided, abort the rest."""
        self._enter(Phase.RECOVERING)
        self._is_open = False
        prefixes = {name: sink.prefix for name, sink in self._sinks.items()}
        self._attach(CommitLog.open(self._store, self._owner, prefixes))
        self._until_started("sweep at recovery", self._sweep, True)
        self._enter(Phase.IDLE)

    def _attach(self, log: CommitLog) -> None:
        """Tie the sinks to the log, and commit what it has decided."""
        self._log, self._is_open = log, True
        self._recompute, self._loss = None, None  # an earlier batch's frames may be no longer there
        for name, sink in self._sinks.items():
            sink.bind(name, self._log.tail.log_id, self._replay_copies if sink.may_time_out else None)
            sink.last_batch_id = self._log.tail.newest.get(name)
        for decision in self._log.tail.unresolved:
            self._remember(decision)
        away = [sink for sink in self._sinks.values() if not self._opens(sink)]
        if away:
            self._commit_beside(away)
        for sink in away:
            self._open_sink(sink)
        if self._log.tail.decided is not None:
            try:
                self._commit_through(self._log.tail.decided, recovered=True)
            except RecomputableLoss as loss:  # until its batch comes again
                self._loss = loss

    def _opens(self, sink: TwoPhaseCommitSink[Any]) -> bool:
        """Try once to open a sink."""
        try:
            with located(sink=_name(sink)):
                sink.open()
        except Exception as error:  # noqa: BLE001  # raised or told when the sink is opened again
            logger.debug("sink %r: %s", _name(sink), error)
            return False
        return True

    def _commit_beside(self, away: Sequence[TwoPhaseCommitSink[Any]]) -> None:
        """Commit the oldest decided batch in the sinks that are not ``away``: their target systems may roll it back if
        it waits too long. The batch is not completed, later batches wait, and so do sinks that commit last."""
        if not (pending := [due for sink in self._sinks.values() for due in sink.pending]):
            return
        oldest = min(pending)
        here = [sink for sink in self._sinks.values() if sink not in away and not sink.commits_last]
        work: Work = {_name(sink): sink.pending[oldest] for sink in here if oldest in sink.pending}
        with contextlib.suppress(RecomputableLoss), _decided(oldest):  # a loss is found again when all sinks are there
            while work:
                work = self._attempt_commits(work, oldest, recovered=True)

    def _open_sink(self, sink: TwoPhaseCommitSink[Any]) -> None:
        """Open a sink, which may be away for a while.

        Raises:
            OperatorRequired: its target system refuses it, and has decided transactions of it.
        """
        try:
            with located(sink=_name(sink)):
                self._until_started(f"look at the target of sink {_name(sink)!r}", sink.open)
        except Refused as error:
            if not (due := [batch_id for batch_id in sink.pending if sink.pending[batch_id]]):
                raise
            raise OperatorRequired(
                f"batch {due[0]} is decided, and can't be committed to sink {_name(sink)!r} now: {error.message}"
                " Correct that and start again, which commits it; or give it up with 'twopc abandon'.",
                sink=_name(sink),
                batch_id=due[0],
            ) from error

    # Reporting and waiting. --------------------------------------------------------------------------------------

    def _enter(self, phase: Phase, batch_id: int | None = None, now_s: float | None = None) -> None:
        left, self._phase = self._phase, advance(self._phase, phase)
        self._metrics.leave(left, time.perf_counter() if now_s is None else now_s)
        self._notices.withdraw()
        self._tell(PhaseEntered(phase, batch_id, self._owner))

    def _fail(self, error: BaseException, batch_id: int | None = None) -> None:
        """Close after an error, so that the next call recovers first."""
        if isinstance(error, TwoPhaseCommitError):
            error.fill_in(batch_id=batch_id, phase=self._phase)
        if self._phase is Phase.CLOSED:
            self._notices.withdraw()
        else:
            self._enter(Phase.CLOSED, batch_id)
        if batch_id is not None:
            self._tell(BatchFailed(batch_id, error, self._metrics.phases_ms, self._owner))

    def _until_answered(
        self,
        what: str,
        call: Callable[..., ResultT],
        *arguments: object,
        patience_s: float | None = None,
        decided_batch_id: int | None = None,
    ) -> ResultT:
        return until_answered(
            what,
            call,
            *arguments,
            tell=self._tell,
            patience_s=patience_s,
            waits=self._waits,
            decided_batch_id=decided_batch_id,
        )

    def _until_started(self, what: str, call: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Repeat a call like ``_until_answered``, with a limit before the log's first decision: nothing depends on the
        answer then, and a wrong option is the likely reason for none."""
        if self._tail is not None and self._tail.decided is not None:
            return self._until_answered(what, call, *arguments)
        began_s = time.monotonic()
        try:
            return self._until_answered(what, call, *arguments, patience_s=self._start_timeout_s)
        except Retriable as error:
            if self._waits.given_up.is_set():
                raise
            raise Retriable(
                f"{what}: no answer for {time.monotonic() - began_s:.1f} s, and the limit is"
                f" start_timeout_s={self._start_timeout_s:g}, until the log at {self._store.url} has its first"
                f" decision. Nothing was written. The last answer: {error}"
            ) from error

    def _tell(self, event: Event) -> None:
        self._metrics.count(event)
        notify(event)
        if isinstance(event, CallRetried):
            if self._gives_up(event):
                self._waits.given_up.set()
            if event.needs_operator and (tail := self._tail):
                self._notices.post(tail, event)

    def _finished(
        self,
        batch_id: int,
        already_decided: bool,
        committables: Mapping[str, Sequence[Committable]],
        left_out: LeftOut,
    ) -> BatchFinished:
        batch = self._metrics.finished(self._owner, batch_id, already_decided, committables, left_out)
        logger.info("%s", batch)
        self._tell(batch)
        return batch


@contextlib.contextmanager
def _decided(batch_id: int) -> Iterator[None]:
    """Upholds: no error after the decision means that the batch is not decided."""
    try:
        yield
    except (Refused, RoundAborted) as error:
        raise OperatorRequired(
            f"batch {batch_id} is decided, and can't be finished now: {sentence(error)} Correct that and start again:"
            " the next start goes on with it.",
            sink=error.sink,
            batch_id=batch_id,
            transaction_id=error.transaction_id,
        ) from error


def _warn_of_loss(call: CommitCall, batch_id: int, rest: str) -> None:
    logger.warning(
        "batch %d, sink %r: the target system has rolled back %s after the decision; the %d records %s",
        batch_id,
        call.sink,
        call.transaction_id or f"{len(call.committables)} transactions",
        sum(each.records or 0 for each in call.committables),
        rest,
    )


def _newest_entry(store: LogStore) -> Entry | None:
    newest = read_tail(store)
    return newest[1] if newest else None


def _check(sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> None:
    """Refuse sinks that could not be bound to a log, before the log is opened and other coordinators are fenced."""
    if not sinks:
        raise ConfigurationError("a coordinator needs at least one sink")
    if len({id(sink) for sink in sinks.values()}) < len(sinks):
        raise ConfigurationError(f"one sink has several of the names {', '.join(sinks)}: make a sink for each name")
    for name, sink in sinks.items():
        TransactionalIdPool(sink.prefix, "log", name)


def _name(sink: TwoPhaseCommitSink[Any]) -> str:
    return sink.transactional_ids.sink
