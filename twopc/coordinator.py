"""The coordinator: sequences the phases of every batch, and is the only one that decides.

One batch, in order (the design's invariants in brackets):

1. the first batch of an incarnation opens the log, which fences older coordinators, and recovers;
2. a batch that the log has decided is not written again, and must be the one that was decided: what it reads is
   compared, not its number alone;
3. phase one: participants write and pre-commit; any failure rolls the round back;
4. every sink seals its transactions, or vetoes;
5. the decision: one append to the log [before it nothing is visible, after it everything becomes so];
6. phase two: every transaction is committed, however often it takes [no path logs and continues]; in sinks that
   commit last, when the others are through;
7. what is open and not decided is swept away, so that it holds back no reader.

After any error the coordinator closes itself. The next call opens a new incarnation and recovers first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from twopc.errors import (
    ConfigurationError,
    Fenced,
    LogMismatch,
    OperatorRequired,
    OutcomeUnknown,
    Refused,
    Retriable,
    RoundAborted,
    TransactionLost,
)
from twopc.events import (
    BatchFinished,
    CallRetried,
    Event,
    PhaseEntered,
    TransactionAborted,
    TransactionCommitted,
    TransactionReplayed,
)
from twopc.log import notices
from twopc.log.commit_log import CommitLog, read_decision, read_tail
from twopc.log.entries import Decision, Entry
from twopc.log.reads import differences, told
from twopc.log.store import LogStore, store_of
from twopc.metrics import Figures
from twopc.participant import Vote
from twopc.phases import Phase, advance
from twopc.places import refuse_within_outputs
from twopc.plugins import notify
from twopc.replay import DamagedCopy, ReplayCopies
from twopc.resting import REST_INTERVAL_S, Resting
from twopc.retry import Waits, until_answered
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable, JsonValue, Transaction
from twopc.transactional_ids import Round, TransactionalIdPool

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
InSink: TypeAlias = "tuple[TwoPhaseCommitSink[Any], Committable]"

START_TIMEOUT_S = 60.0

SEAL_PATIENCE_S = 120.0
"""How long a target may give no answer before the decision, such as while its brokers are restarted one by one. Then
the round is rolled back, as it may hold locks in other targets."""


class Coordinator:
    """Runs the batches of one query, over all its sinks at once.

    Args:
        sinks: name → sink. The names go into transactional ids and the log; keep them over restarts.
        log: the commit log's folder, as path or URL, or what ``open_store`` makes of one with options.
        owner: names the query, the same after a restart and different for any other (Spark's query id).
        first_batch_id: the first batch that an empty log accepts. Other than 0 only for a query that ran without
            twopc before: with an empty log nothing tells a lost log from a new one.
        replay_copies: a folder where participants keep a copy of what they write, or None. If a target system rolls
            back a decided transaction, as Kafka does after a timeout, the coordinator writes its records again from
            the copy. Without copies the query stops.
        commits_at_once: threads of phase two. A commit mostly waits for its target; 1 commits on the calling thread.
        rest_interval_s: how long after a batch, and how often from then on, to ``rest`` on a thread of its own; or None
            for never.
        start_timeout_s: how long a target system may give no answer before the first decision of a new log. From the
            first decision on, there is no such limit: only the target's answer ends a decided transaction.
        gives_up: asked each time that a target system has given no answer; True ends the wait. The call that waits
            raises ``Retriable``, and the next one recovers.
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
        self._figures = Figures()
        self._one_at_a_time = threading.Lock()
        self._batch_or_rest = threading.Lock()
        self._waits = Waits()
        self._resting = None if rest_interval_s is None else Resting(self.rest, rest_interval_s)
        self._running_in: int | None = None
        self._has_notice = False
        self._log: CommitLog
        self._tail_when_closed: Entry | None = None

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def waited_s(self) -> float:
        """For how long the oldest call to a target system that has no answer yet is repeated; 0 where there is none."""
        return self._waits.longest_s

    @property
    def next_batch_id(self) -> int:
        """The first batch that the log has not decided: where a loop of your own begins after a restart. Reads the log,
        and opens nothing. Call ``recover`` first: no later call commits a last batch that a crash left decided.

        Raises:
            TwoPhaseCommitError: the log can't be read.
        """
        newest = _newest_entry(self._store)
        return self._first_batch_id if newest is None or newest.decided is None else newest.decided + 1

    @property
    def _tail(self) -> Entry | None:
        """The newest entry of the log that is known; None where there is none."""
        return self._tail_when_closed if self._phase is Phase.CLOSED else self._log.tail

    def run(
        self,
        batch_id: int,
        phase_one: Callable[[Round], Iterable[Vote]],
        *,
        reads: JsonValue = None,
        follows: JsonValue = None,
        began_s: float | None = None,
    ) -> BatchFinished:
        """Write batch ``batch_id`` exactly once.

        ``phase_one`` is called once, or not at all where the batch is decided already. It has participants write the
        batch's records, and returns the votes of those that won, one of each partition. Where they began before this
        call, ``began_s`` is an earlier reading of this machine's ``time.perf_counter``.

        ``reads`` says as JSON what the batch reads from its source, such as offsets: the same whenever the same batch
        is run again, and another for any other. It identifies the batch; without it the number alone does. ``follows``
        is what the previous batch read according to the checkpoint; a new batch begins where that one ends. If
        ``follows`` is a dictionary, top-level keys that it lacks are not compared.

        Raises:
            LogMismatch: the log has decided this batch with other ``reads``, or the one before with others than it
                ``follows``; or it is neither the newest decided batch nor the next. Nothing was written.
            RoundAborted: ``phase_one`` failed; nothing of the batch is visible. Its exception is the cause.
            TwoPhaseCommitError: any other of the tree in ``twopc.errors``, which says what to do.
        """
        with self._alone(f"batch {batch_id}", waits=False):
            self._figures = Figures()
            if self._phase is Phase.CLOSED:
                self._open()
            if is_known(batch_id, reads, self._log.tail, self._first_batch_id, self._store, follows):
                return self._finished(batch_id, True, {})
            committables = self._run(Round(self._log.incarnation, batch_id), phase_one, reads, began_s)
            if self._resting is not None:
                self._resting.batch_ended()
            return self._finished(batch_id, False, committables)

    def recover(self) -> Entry:
        """Open a new incarnation, which fences every older one, commit what is decided, and abort the rest. The first
        ``run`` does the same. Waits for a batch that runs. Raises like ``run``.

        Returns:
            The newest entry of the log.
        """
        with self._alone("recover", waits=True):
            self._open()
            return self._log.tail

    def resume(self, log_id: str, incarnation: int) -> None:
        """Go on with an incarnation that ``recover`` opened in another process. What participants have pre-committed
        in it stays, for the next ``run`` to decide. Only one process at a time may go on with an incarnation.

        Raises:
            Fenced: a newer one has opened, or the log is another. Raises otherwise like ``run``.
        """
        with self._alone("resume", waits=True):
            self._enter(Phase.RECOVERING)
            self._attach(CommitLog.resume(self._store, log_id, incarnation))
            self._enter(Phase.IDLE)

    def validate(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Make sure that each sink named in ``schemas`` can write such records. Before the first batch, or the next.

        Raises:
            Refused: one can't; nothing was written.
            TwoPhaseCommitError: like ``run``.
        """
        with self._alone("validate", waits=True):
            if self._phase is Phase.CLOSED:
                self._tail_when_closed = _newest_entry(self._store)
            for name, schema in schemas.items():
                self._until_started(f"look at what sink {name!r} writes to", self._sinks[name].require_valid, schema)
            self._post(None)

    def rest(self) -> None:
        """Between batches: record in the log that everything decided is committed, and roll back what lost attempts
        began after the last sweep. Does nothing where a batch runs or none has run.

        Raises:
            Fenced: a newer coordinator has opened the log. The next ``run`` says so, too.
            Exception: the log may have been changed or not; the next ``run`` recovers first.
        """
        if not self._batch_or_rest.acquire(blocking=False):
            return
        try:
            if self._phase is Phase.IDLE:
                if self._log.tail.unresolved:
                    self._log.complete()
                else:
                    self._log.verify()
                self._sweep(recovered=False)
        except Retriable as error:  # the next batch asks again
            logger.warning("between batches: %s", error)
        except Fenced:
            raise
        except BaseException:
            self._phase = Phase.CLOSED
            raise
        finally:
            self._batch_or_rest.release()

    def close(self) -> None:
        """Stop cleanly: nothing is in doubt, and the log says so. Waits for a batch that runs. It may run again.

        Raises:
            TwoPhaseCommitError: like ``run``. The next start recovers.
        """
        with self._alone("close", waits=True):
            try:
                if self._phase is Phase.IDLE:
                    # A lost attempt may have begun after the last batch's sweep.
                    self._until_started("sweep at the end", self._sweep, False)
                    self._log.close()
                    self._enter(Phase.CLOSED)
            finally:
                for sink in self._sinks.values():
                    sink.close()

    @contextlib.contextmanager
    def _alone(self, what: str, waits: bool) -> Iterator[None]:
        """One call at a time. After any error the coordinator is closed, and the next call recovers first."""
        within = self._running_in == threading.get_ident()
        if within or not self._one_at_a_time.acquire(blocking=waits):
            raise ConfigurationError(f"{what} came while a batch runs: call it when the batch has ended")
        self._running_in = threading.get_ident()
        self._waits.given_up.clear()
        try:
            with self._batch_or_rest:
                yield
        except BaseException:
            self._phase = Phase.CLOSED
            self._post(None)
            raise
        finally:
            self._running_in = None
            self._one_at_a_time.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Recovery. --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open a new incarnation, commit what is decided, abort the rest."""
        self._enter(Phase.RECOVERING)
        prefixes = {name: sink.prefix for name, sink in self._sinks.items()}
        self._attach(CommitLog.open(self._store, self._owner, prefixes))
        self._until_started("sweep at recovery", self._sweep, True)
        self._enter(Phase.IDLE)

    def _attach(self, log: CommitLog) -> None:
        """Tie the sinks to the log, and commit what it has decided."""
        self._log = log
        for name, sink in self._sinks.items():
            sink.bind(name, self._log.tail.log_id, self._replay_copies if sink.may_time_out else None)
            self._until_started(f"look at the target of sink {name!r}", sink.open)
        for decision in self._log.tail.unresolved:
            self._remember(decision)
        self._commit_through(self._log.tail.decided, recovered=True)

    def _remember(self, decision: Decision) -> None:
        for name, sink in self._sinks.items():
            sink.pending.add(decision.batch_id, decision.committables.get(name, ()))

    # One batch. -------------------------------------------------------------------------------------------------

    def _run(
        self, round: Round, phase_one: Callable[[Round], Iterable[Vote]], reads: JsonValue, began_s: float | None
    ) -> dict[str, tuple[Committable, ...]]:
        """What was decided and committed, by sink."""
        started = time.perf_counter() if began_s is None else began_s
        try:
            votes = self._pre_commit(round, phase_one, started)
            committables = self._seal(round, votes, started)
        except Exception as error:  # noqa: BLE001  # whatever failed, the round is rolled back
            self._roll_back(round, error)
        self._decide(Decision(round, committables), reads)
        self._enter(Phase.COMMITTING, round.batch_id)
        self._commit_through(round.batch_id, recovered=False)
        self._enter(Phase.SWEEPING, round.batch_id)
        self._until_answered(f"sweep after batch {round.batch_id}", self._sweep, False)
        self._enter(Phase.IDLE, round.batch_id)
        return committables

    def _pre_commit(self, round: Round, phase_one: Callable[[Round], Iterable[Vote]], started: float) -> list[Vote]:
        self._enter(Phase.PRE_COMMITTING, round.batch_id, started)
        return list(phase_one(round))

    def _seal(self, round: Round, votes: Sequence[Vote], started: float) -> dict[str, tuple[Committable, ...]]:
        self._enter(Phase.SEALING, round.batch_id)
        strangers = {name for vote in votes for name in vote} - self._sinks.keys()
        if strangers:
            raise ConfigurationError(
                f"there are votes for {', '.join(sorted(strangers))}, which are no sinks of this log"
            )
        return {
            name: self._until_answered(
                f"{round}: seal of sink {name!r}",
                sink.sealed,
                [vote[name] for vote in votes if name in vote],
                started,
                patience_s=SEAL_PATIENCE_S,
            )
            for name, sink in self._sinks.items()
        }

    def _roll_back(self, round: Round, error: Exception) -> NoReturn:
        """Abort the round, which no entry of the log has decided, and say so."""
        try:
            self._sweep(recovered=False)
            self._log.verify()  # whoever is fenced must not be told to run the batch again
        except Fenced as fenced:
            raise fenced from error
        except Exception as failure:  # noqa: BLE001  # a sink may raise anything; the first error is told
            logger.warning("could not roll back all of %s, which recovery does: %s", round, failure)
        if isinstance(error, Refused):
            raise error
        raise RoundAborted(
            f"{round} failed before its decision ({type(error).__name__}: {error}). Nothing of it is visible."
            " Run the batch again; a restarted query does."
        ) from error

    def _decide(self, decision: Decision, reads: JsonValue) -> None:
        """The commit point. An append that fails says nothing of the outcome, so nothing is aborted after it."""
        self._enter(Phase.DECIDING, decision.batch_id)
        self._log.decide(decision, committed_through=decision.batch_id - 1, reads=reads)
        self._remember(decision)

    # Phase two and the sweep. -----------------------------------------------------------------------------------

    def _commit_through(self, batch_id: int | None, recovered: bool) -> None:
        """Commit every pending batch up to ``batch_id``, in order, each batch's transactions in parallel."""
        pending = {batch.batch_id for sink in self._sinks.values() for batch in sink.pending}
        for due in sorted(pending):
            if batch_id is not None and due <= batch_id:
                self._commit_batch(due, recovered)

    def _commit_batch(self, batch_id: int, recovered: bool) -> None:
        """Commit a pending batch in all sinks. Upholds: what commits last is never ahead of the others."""
        for last in (False, True):
            self._commit_in([sink for sink in self._sinks.values() if sink.commits_last is last], batch_id, recovered)

    def _commit_in(self, sinks: Sequence[TwoPhaseCommitSink[Any]], batch_id: int, recovered: bool) -> None:
        work = [(sink, committable) for sink in sinks for committable in _of_batch(sink, batch_id)]
        while work:
            work = self._attempt_commits(work, batch_id, recovered)
        for sink in sinks:
            what = f"batch {batch_id} is committed; its completion in sink {_name(sink)!r}"
            self._until_answered(what, sink.complete, batch_id, _of_batch(sink, batch_id))
            sink.pending.settle(batch_id)

    def _attempt_commits(self, work: Sequence[InSink], batch_id: int, recovered: bool) -> list[InSink]:
        """Commit transactions of a pending batch. What their targets had rolled back is written again from its copies.

        Returns:
            What was written again, to be committed next.

        Raises:
            Fenced: a newer coordinator goes on with this batch.
            Exception: a transaction can't be committed. All others have been: nothing else is left undone.
        """

        def failure(sink: TwoPhaseCommitSink[Any], committable: Committable) -> Exception | None:
            try:
                self._commit(sink, batch_id, committable, recovered)
            except Exception as error:  # noqa: BLE001  # raised below, when all have ended
                return error
            return None

        failed = [(done, error) for done, error in zip(work, self._map(failure, work), strict=True) if error]
        if failed:  # a newer coordinator may have settled them, and their names may have been used again since
            self._until_answered("look at the log", self._log.verify)
        lost: list[InSink] = []  # transactions that their target rolled back, and that have a copy
        errors: list[Exception] = []
        for (sink, committable), error in failed:
            logger.error("batch %d, sink %r: %s", batch_id, _name(sink), error)
            if isinstance(error, TransactionLost) and sink.replay_copies and committable.replay_copy:
                lost.append((sink, committable))
            else:
                errors.append(error)
        _raise_worst(errors)
        return self._replay(batch_id, lost) if lost else []

    def _replay(self, batch_id: int, lost: Sequence[InSink]) -> list[InSink]:
        """Write again what targets rolled back after the decision, amend the decision to name that, and return it.

        Until the amendment is in the log the new transactions are undecided like any other: a crash leaves them to
        the sweep, and the next incarnation starts over.
        """
        round = Round(self._log.incarnation, batch_id)
        replaced = {_name(sink): dict[str, Committable]() for sink in self._sinks.values()}
        for sink, committable in lost:
            what = f"batch {batch_id} is decided; writing {committable.transaction_id} again"
            replacement = self._until_answered(what, _written_again, sink, committable, round)
            replaced[_name(sink)][committable.transaction_id] = replacement
            self._tell(TransactionReplayed(_name(sink), batch_id, committable, replacement))
        [decision] = [decision for decision in self._log.tail.unresolved if decision.batch_id == batch_id]
        committables = {
            name: tuple(replaced[name].get(c.transaction_id, c) for c in of_sink)
            for name, of_sink in decision.committables.items()
        }
        self._log.amend(Decision(decision.round, committables))
        for sink in {_name(sink): sink for sink, _ in lost}.values():
            sink.pending.replace(batch_id, committables[_name(sink)])
        return [(sink, replaced[_name(sink)][committable.transaction_id]) for sink, committable in lost]

    def _map(self, call: Callable[..., ResultT], work: Sequence[tuple[Any, ...]]) -> list[ResultT]:
        if self._commits_at_once == 1 or len(work) <= 1:
            return [call(*arguments) for arguments in work]
        with ThreadPoolExecutor(self._commits_at_once, thread_name_prefix="twopc-commit") as pool:
            try:
                return list(pool.map(call, *zip(*work, strict=True)))
            except BaseException:  # such as Ctrl-C: else the pool would wait for as long as its targets are away
                self._waits.given_up.set()
                raise

    def _commit(self, sink: TwoPhaseCommitSink[Any], batch_id: int, committable: Committable, recovered: bool) -> None:
        what = f"batch {batch_id} is decided; commit of {committable.transaction_id}"
        try:
            among = f"batch {batch_id} is decided; commits of {sink.transactional_ids.scope}"
            self._until_answered(what, self._commit_once, sink, committable, recovered, among=among)
        except TransactionLost as error:
            if committable.replay_copy and sink.replay_copies is None:
                raise TransactionLost(
                    f"{error} There is a copy of its records, {committable.replay_copy}: start the query again with the"
                    " 'replay_copies' that it had, and they are written again from it."
                ) from error
            raise
        self._tell(TransactionCommitted(_name(sink), batch_id, committable, recovered))

    def _commit_once(self, sink: TwoPhaseCommitSink[Any], committable: Committable, recovered: bool) -> None:
        try:
            sink.commit(committable)
        except OutcomeUnknown as error:
            if recovered or not error.was_refused_at_first:
                raise
            # Decided by this incarnation, asked for by this process alone, and by no newer coordinator: not committed.
            # Not repeated with the commit, whose second refusal would say less.
            self._until_answered("look at the log", self._log.verify)
            raise TransactionLost(f"{error} It was never committed, so somebody else has rolled it back.") from error

    def _sweep(self, recovered: bool) -> None:
        """Abort what is open and undecided, and remove the copies that nothing will ask for.

        Raises:
            Fenced: a newer coordinator sweeps.
            Exception: a sink can't be swept. All others have been: what is open may hold locks.
        """
        errors: list[Exception] = []
        for sink in self._sinks.values():
            try:
                self._sweep_sink(sink, recovered)
            except Fenced:
                raise
            except Exception as error:  # noqa: BLE001  # raised below, when all are swept
                errors.append(error)
                level = logging.DEBUG if isinstance(error, Retriable) else logging.ERROR  # Waits logs the first
                logger.log(level, "sweep of sink %r: %s", _name(sink), error)
        _raise_worst(errors)
        self._remove_copies()

    def _sweep_sink(self, sink: TwoPhaseCommitSink[Any], recovered: bool) -> None:
        """Looks again after an abort, until there is nothing new: a target may have left a part open, which holds back
        readers."""
        aborted: list[Committable] = []
        while (undecided := self._undecided(sink)) and undecided != aborted:
            for transaction in undecided:
                sink.abort(transaction)
                self._tell(TransactionAborted(_name(sink), transaction, recovered))
            aborted = undecided

    def _undecided(self, sink: TwoPhaseCommitSink[Any]) -> list[Committable]:
        """What is open and owned by this log, and neither decided nor a newer incarnation's.

        The order upholds that a zombie rolls back nothing of a newer coordinator: list, then re-read the log, then
        abort exactly what was listed. What a newer one begins later has another epoch or name and is out of reach.
        """
        open_ = list(sink.recover())
        if not open_:
            return []
        self._log.verify()
        decided = [c for d in self._log.tail.unresolved for of_sink in d.committables.values() for c in of_sink]
        return [
            transaction
            for transaction in open_
            if not any(transaction.is_same_transaction(committable) for committable in decided)
        ]

    def _remove_copies(self) -> None:
        """Those of batches that are known to be complete, and of rounds that are not decided."""
        copies = [
            (sink.replay_copies, copy)
            for sink in self._sinks.values()
            if sink.replay_copies
            for copy in _copies_of(sink)
        ]
        if not copies:
            return
        self._log.verify()
        needed = {c.replay_copy for sink in self._sinks.values() for batch in sink.pending for c in batch.committables}
        for replay_copies, copy in copies:
            if copy not in needed:
                replay_copies.remove(copy)

    # What is told. ----------------------------------------------------------------------------------------------

    def _enter(self, phase: Phase, batch_id: int | None = None, now_s: float | None = None) -> None:
        self._phase = advance(self._phase, phase)
        self._figures.enter(phase, time.perf_counter() if now_s is None else now_s)
        self._post(None)
        self._tell(PhaseEntered(phase, batch_id))

    def _until_answered(
        self,
        what: str,
        call: Callable[..., ResultT],
        *arguments: object,
        patience_s: float | None = None,
        among: str | None = None,
    ) -> ResultT:
        return until_answered(
            what, call, *arguments, tell=self._tell, patience_s=patience_s, waits=self._waits, among=among
        )

    def _until_started(self, what: str, call: Callable[..., ResultT], *arguments: object) -> ResultT:
        """The same, with a limit before the first decision: nobody depends on the answer then, and the likely reason
        for none is a wrong option."""
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
        self._figures.count(event)
        notify(event)
        if isinstance(event, CallRetried):
            if self._gives_up(event):
                self._waits.given_up.set()
            if event.needs_operator:
                self._post(event)

    def _post(self, event: CallRetried | None) -> None:
        """Tell beside the log what is waited for, or with None that nothing is any more."""
        try:
            if event is None and self._has_notice:
                self._has_notice = False
                notices.withdraw(self._store)
            elif event is not None and (tail := self._tail):
                self._has_notice = True
                notices.post(self._store, tail, event)
        except Exception as error:  # noqa: BLE001  # the log tells it, too
            logger.warning("could not write a notice beside the commit log at %s: %s", self._store.url, error)

    def _finished(
        self, batch_id: int, already_decided: bool, committables: Mapping[str, Sequence[Committable]]
    ) -> BatchFinished:
        batch = self._figures.finished(self._owner, batch_id, already_decided, committables)
        logger.info("%s", batch)
        self._tell(batch)
        return batch


def _newest_entry(store: LogStore) -> Entry | None:
    newest = read_tail(store)
    return newest[1] if newest else None


def _raise_worst(errors: Sequence[Exception]) -> None:
    """Raise the one that is the least likely to go away by itself, if there is one."""
    if errors:
        raise max(errors, key=lambda error: (isinstance(error, OperatorRequired), not isinstance(error, Retriable)))


def is_known(
    batch_id: int, reads: JsonValue, tail: Entry, first_batch_id: int, store: LogStore, follows: JsonValue = None
) -> bool:
    """Whether the log in ``store``, with the newest entry ``tail``, has decided the batch that the query is at.

    An earlier batch than the newest decided is known by what it reads, as long as its entry is kept. A query whose
    checkpoint is several batches behind goes through them one by one, so that its state is where it would have been.

    Raises:
        LogMismatch: the batch can't come now, or is decided with other ``reads``, or ``follows`` another than the one
            that is decided.
    """
    if tail.decided is not None and batch_id < tail.decided and reads is not None:
        earlier = read_decision(store, batch_id)
        if earlier is not None and earlier.reads is not None:
            require_same_reads(batch_id, earlier.reads, reads, store.url)
            return True
    if not is_decided(batch_id, tail.decided, first_batch_id, store.url):
        _require_same_end(batch_id, tail.reads, follows, store.url)
        return False
    require_same_reads(batch_id, tail.reads, reads, store.url)
    return True


def is_decided(batch_id: int, newest: int | None, first_batch_id: int, log: str) -> bool:
    """Whether ``log``, which has decided up to ``newest``, has decided the batch that the query is at. Upholds: each
    batch is decided at most once, and in order.

    Raises:
        LogMismatch: it is neither the newest decided nor the next.
    """
    expected = first_batch_id if newest is None else newest + 1
    if batch_id in (newest, expected):
        return batch_id == newest
    if newest is None:
        raise LogMismatch(
            f"the query is at batch {batch_id}, and its commit log at {log} is empty. Nothing was written. Either the"
            " log was deleted: restore it, or what it had decided is written twice. Or the query had another sink"
            f" before: then start this log with first_batch_id={batch_id}."
        )
    way_out = (
        "'twopc checkpoint repair' writes what the checkpoint lacks back, as far as the log keeps it; else restore a"
        " newer checkpoint"
        if batch_id < newest
        else "restore the log that was replaced (or, where Spark has repartitioned the query's state, which counts as a"
        " batch, see 'Repartitioned state' in docs/operating.md)"
    )
    raise LogMismatch(
        f"the query is at batch {batch_id}, and its commit log at {log} has decided batch {newest}, so only {newest} or"
        f" {newest + 1} can come now. Nothing was written. The checkpoint and the log are not of the same age:"
        f" {way_out}, or start both anew. A loop without Spark begins at coordinator.next_batch_id."
    )


def require_same_reads(batch_id: int, decided: JsonValue, now: JsonValue, log: str) -> None:
    """Make sure that a decided batch that comes again is the one that ``log`` has decided. Upholds: a batch is
    identified by what it read, not by its number alone.

    Raises:
        LogMismatch: it reads something else.
    """
    if decided is None or now is None:
        if decided is not now:
            missing = "its commit log" if decided is None else "the caller"
            logger.warning(
                "batch %d is taken for the one that %s has decided: %s does not say what it read, so its number alone"
                " was compared",
                batch_id,
                log,
                missing,
            )
        return
    if found := list(differences(decided, now)):
        raise LogMismatch(
            f"batch {batch_id} is decided in the commit log at {log}, and comes again with other input: {told(found)}."
            " Nothing was written. The checkpoint is older than the log (restored from a backup, or it lost its newest"
            " files), and to go on would lose or double what lies between. Stop the query and run 'twopc checkpoint"
            " repair', which writes what the batch read back into the checkpoint."
        )


def _require_same_end(batch_id: int, decided: JsonValue, now: JsonValue, log: str) -> None:
    """Make sure that a new batch begins where the newest decided one ended. Upholds: no record lies between the two, or
    in both.

    Raises:
        LogMismatch: it does not.
    """
    if decided is None or now is None:
        return
    if isinstance(decided, dict) and isinstance(now, dict):
        decided = {key: value for key, value in decided.items() if key in now}
    if found := list(differences(decided, now)):
        raise LogMismatch(
            f"batch {batch_id} would follow a batch {batch_id - 1} with other input than the commit log at {log} has"
            f" decided: {told(found)}. Nothing was written. The checkpoint had lost that batch; it was planned anew and"
            " taken for done. To go on would lose or double what lies between. Stop the query and run 'twopc"
            " checkpoint repair'."
        )


def _check(sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> None:
    """Refuse what could not be bound to a log, before the log is opened and others are fenced."""
    if not sinks:
        raise ConfigurationError("a coordinator needs at least one sink")
    if len({id(sink) for sink in sinks.values()}) < len(sinks):
        raise ConfigurationError(f"one sink has several of the names {', '.join(sinks)}: make a sink for each name")
    for name, sink in sinks.items():
        TransactionalIdPool(sink.prefix, "log", name)


def _of_batch(sink: TwoPhaseCommitSink[Any], batch_id: int) -> tuple[Committable, ...]:
    return next((batch.committables for batch in sink.pending if batch.batch_id == batch_id), ())


def _name(sink: TwoPhaseCommitSink[Any]) -> str:
    return sink.transactional_ids.sink


def _copies_of(sink: TwoPhaseCommitSink[Any]) -> list[str]:
    """The names of all copies of what was written to ``sink``."""
    copies = sink.replay_copies.names() if sink.replay_copies else []
    return [name for name, transaction_id in copies if sink.transactional_ids.owns_exact(transaction_id)]


_RESTORE = "Restore the copy and start again; or write the records by other means."


def _written_again(sink: TwoPhaseCommitSink[Any], lost: Committable, round: Round) -> Committable:
    """A transaction, pre-committed and sealed, with the records of the replay copy of ``lost``.

    Raises:
        Retriable: it could not be written now. The batch is decided, so it is not for the caller to run again.
        OperatorRequired: it can't be written any more.
    """
    copies = sink.replay_copies
    assert copies is not None
    assert lost.replay_copy is not None
    what = f"transaction {lost.transaction_id} ({lost.records} records) of {round} is decided and was rolled back"
    started = time.perf_counter()
    transaction: Transaction | None = None
    try:
        transaction = sink.begin(sink.transactional_ids.reallocate(lost.transaction_id, round))
        for batch in copies.read(lost.replay_copy):
            sink.write(transaction, batch)
            transaction.records += batch.num_rows
        if transaction.records != lost.records:
            raise DamagedCopy(f"it has {transaction.records} records")
        vote = replace(sink.pre_commit(transaction), replay_copy=lost.replay_copy, bytes=lost.bytes)
        [sealed] = sink.sealed([vote], started)
        return sealed
    except Exception as error:
        if transaction is not None:
            with contextlib.suppress(Exception):  # what stays open, the sweep ends
                sink.abort(transaction)
        match error:
            case FileNotFoundError():
                raise TransactionLost(
                    f"{what} by its target, and its copy {lost.replay_copy} is not in {copies.url} any more. {_RESTORE}"
                ) from error
            case DamagedCopy():
                raise TransactionLost(
                    f"{what} by its target, and its copy {lost.replay_copy} in {copies.url} is damaged: {error}."
                    f" {_RESTORE}"
                ) from error
            case RoundAborted():
                raise Retriable(f"{what} by its target; writing it again failed: {error}") from error
            case Refused():
                raise OperatorRequired(
                    f"{what} by its target, which now refuses its records: {error} Correct that and start again."
                ) from error
        raise
