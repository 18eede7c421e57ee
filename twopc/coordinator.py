"""The coordinator of one query: the public class over the protocol.

``protocol`` decides everything, in order, and ``performer`` carries out its requests. This module admits callers one at
a time, and runs a thread that rests between batches.

After any error the coordinator closes itself. The next call opens a new incarnation and recovers first.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from twopc import protocol
from twopc.effects import FailedCommit, Life, Offer, Recompute, perform
from twopc.errors import ConfigurationError, Fenced, InDoubt, Retriable, RoundAborted
from twopc.events import BatchFinished, CallRetried, LeftOut
from twopc.failures import NotComputedAgain, located
from twopc.log.batch_identity import as_logged
from twopc.log.commit_log import read_tail
from twopc.log.entries import Entry
from twopc.log.store import LogStore, store_of, warn_of_late_listings
from twopc.metrics import NO_OPENING, Metrics, Opening
from twopc.performer import Performer
from twopc.phases import Phase
from twopc.replay import ReplayCopies
from twopc.resting import REST_INTERVAL_S, Resting
from twopc.sink import TwoPhaseCommitSink, WholeBatchSink
from twopc.stores.places import refuse_within_outputs
from twopc.transaction import Committable, JsonValue, Vote
from twopc.transactional_ids import Round, TransactionalIdPool
from twopc.turns import Turns

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

START_TIMEOUT_S = 60.0


class Coordinator:
    """Runs the batches of one query, over all its sinks at once.

    Args:
        sinks: name → sink. The names go into transactional ids and the log; keep them across restarts.
        log: the commit log's folder, as path or URL, or a store that ``open_store`` returns.
        owner: the query's name, the same after a restart and different from any other query's (Spark's query id).
        first_batch_id: the first batch that an empty log accepts. Set it only for a query that ran without twopc
            before, or whose log is lost: an empty log can't be told from a lost one.
        replay_copies: a folder where participants keep a copy of what they write, or None. If a target system rolls
            back a decided transaction, as Kafka does after a timeout, the coordinator writes its records again from
            the copy. Without copies the query stops.
        commits_at_once: threads of phase two per sink. A commit mostly waits for its target system. With 1, only the
            calling thread works: a target system that is away delays the sinks after it, and a batch that takes longer
            than a sink allows (``seals_within_s``) is reported only when it is sealed.
        rest_interval_s: how long after a batch, and how often from then on, a background thread calls ``rest``; None
            for never.
        start_timeout_s: how long a target system may fail to answer before the first decision of a new log. After the
            first decision there is no such limit: only the target system's answer ends a decided transaction.
        gives_up: called each time that a target system does not answer. If it returns True, the waiting call raises
            ``Retriable``, and the next call recovers.
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
        if commits_at_once < 1:
            raise ConfigurationError(f"commits_at_once must be 1 or more, not {commits_at_once}")
        self._sinks = dict(sorted(sinks.items()))  # the same order in every start
        self._store = store_of(log)
        self._owner, self._first_batch_id = owner, first_batch_id
        copies = replay_copies
        if copies is not None and not isinstance(copies, ReplayCopies):
            copies = ReplayCopies(copies)  # type: ignore[arg-type]  # it takes paths, too
        refuse_within_outputs("the commit log", self._store.url, self._sinks)
        if copies is not None:
            refuse_within_outputs("the folder of replay copies", copies.url, self._sinks)
        self._performer = Performer(self._sinks, self._store, owner, copies, commits_at_once, start_timeout_s, gives_up)
        self._has_passed = False  # the steps before a batch that may fail at each start
        self._turns = Turns(self._performer)
        self._resting = None if rest_interval_s is None else Resting(self.rest, rest_interval_s)

    @property
    def phase(self) -> Phase:
        return self._performer.phase

    @property
    def waited_s(self) -> float:
        """How long the oldest unanswered call to a target system has been repeated; 0 if there is none."""
        return self._performer.waits.longest_s

    @property
    def opening(self) -> Opening:
        """The metrics of ``recover``, for the ``run`` of a coordinator in another process."""
        return self._performer.metrics.opening

    @property
    def next_batch_id(self) -> int:
        """The id of the first undecided batch, with which a loop without Spark begins after a restart.

        Reads the log and opens nothing. Call ``recover`` first: after a crash, the last batch may be decided and
        uncommitted, and perhaps no later call commits it.

        Raises:
            TwoPhaseCommitError: the log can't be read.
        """
        newest = _newest_entry(self._store)
        return self._first_batch_id if newest is None or newest.decided is None else newest.decided + 1

    @property
    def in_doubt(self) -> tuple[int, ...]:
        """The batches that are decided and not known to be committed, oldest first, as far as this process knows."""
        return tuple(self._performer.life.pending) if self.incarnation else ()

    @property
    def incarnation(self) -> int | None:
        """The number of the newest incarnation that this process has opened or continued; None if there is none."""
        return self._performer.life.log.incarnation if hasattr(self._performer, "life") else None

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
        already_decided: Callable[[], object] = lambda: None,
    ) -> BatchFinished:
        """Write batch ``batch_id`` exactly once.

        Args:
            batch_id: the batch after the newest that the log has decided, or a decided batch. A decided batch is not
                written again; it is recognized by ``reads`` as long as the log keeps its entry.
            phase_one: has participants write the batch's records, and returns the votes of the winning attempts, one
                per partition. Called once, or not at all if the batch is already decided.
            reads: what the batch reads from its source, as JSON, such as offsets. It must be the same whenever this
                batch is run again, and different for every other batch. ``reads`` identifies the batch; without it,
                only the number identifies the batch.
            follows: what the previous batch read according to the checkpoint. A new batch begins where the previous
                batch ends. In a dictionary, top-level keys that ``follows`` lacks are not compared.
            began_s: when participants began, by this machine's ``time.perf_counter``, if that was before this call.
            opening: the ``opening`` of the coordinator that opened the incarnation for this batch, if this coordinator
                resumed that incarnation. Used for the metrics.
            recompute: has participants write partitions of this batch again, each only to the sinks that have lost it,
                and returns their votes. Called for transactions that a target system has rolled back after their
                decision, if they were written with hashes (``Participant.write``). If the records differ, the query
                stops.
            left_out: returns what participants left out of the batch, for the metrics. Called after ``phase_one``.
            already_decided: called for a batch that is not written again, after its commit. An error from this function
                ends the run, and counts like any other failure.

        Raises:
            LogMismatch: the log records other ``reads`` for this batch, or its reads for the previous batch differ from
                ``follows``; or the batch is neither the newest decided batch nor the next one. Nothing was written.
            RoundAborted: ``phase_one`` failed; nothing of the batch is visible. Its exception is the cause.
            TwoPhaseCommitError: any other error in ``twopc.errors``, which lists what to do about each.
        """

        def batch() -> BatchFinished:
            self._performer.metrics = Metrics(opening)
            if self.phase is Phase.CLOSED:
                self._begin()
            rest = LeftOut()

            def counted(round: Round) -> Iterable[Vote]:
                nonlocal rest
                votes = list(phase_one(round))
                rest = left_out()
                return votes

            as_read = as_logged(reads), as_logged(follows)
            offer = Offer(batch_id, counted, *as_read, began_s, recompute, self._first_batch_id)
            decision = perform(protocol.batch(self._performer.life, offer), self._performer.do)
            if decision is None:
                try:
                    already_decided()
                except RoundAborted as error:  # its message would deny that the batch is visible
                    raise NotComputedAgain(
                        f"batch {batch_id} is decided and committed, and was not evaluated again: {error.message}"
                    ) from error
                return self._performer.finish(batch_id, True, {}, LeftOut())
            self._performer.failed_rests = 0  # its sweep was answered
            if self._resting is not None:
                self._resting.batch_ended()
            return self._performer.finish(batch_id, False, decision.committables, rest)

        return self._turns.take(f"batch {batch_id}", batch, waits=False, batch_id=batch_id)

    def recover(self) -> Entry:
        """Open a new incarnation, which fences every older one, commit what is decided, and abort the rest.

        The first ``run`` does the same. Waits for a running batch. Raises the same errors as ``run``.

        Returns:
            The newest entry of the log.
        """

        def recovered() -> Entry:
            life = self._begin()
            perform(protocol.settle(life, recovered=True), self._performer.do)  # raises a loss that waits for its batch
            return life.tail

        return self._turns.take("recover", recovered)

    def resume(self, log_id: str, incarnation: int) -> None:
        """Continue an incarnation that ``recover`` opened in another process.

        Its pre-committed transactions stay, for the next ``run`` to decide. Only one process at a time may continue an
        incarnation.

        Raises:
            Fenced: a newer incarnation has opened, or the log was replaced.
            TwoPhaseCommitError: like ``run``.
        """

        def resumed() -> None:
            self._performer.leave_incarnation()
            perform(protocol.resume(self._store.url, log_id, incarnation), self._performer.do)

        self._turns.take("resume", resumed)

    def has_decided(self, batch_id: int, reads: JsonValue = None, follows: JsonValue = None) -> bool:
        """Return whether the log has decided a batch. Call ``recover`` or ``resume`` first. Raises the same errors as
        ``run``."""
        as_read = as_logged(reads), as_logged(follows)
        offer = Offer(batch_id, lambda _: (), *as_read, None, None, self._first_batch_id)
        return perform(protocol.recognize(self._life, offer), self._performer.do)

    def validate(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Check that each sink named in ``schemas`` can write records of its schema. For use between batches.

        Raises:
            Refused: a sink can't write records of its schema; nothing was written.
            TwoPhaseCommitError: like ``run``.
        """

        def validated() -> None:
            if self.phase is Phase.CLOSED:
                self._performer.tail_when_closed = _newest_entry(self._store)
            for name, schema in schemas.items():
                what = f"look at what sink {name!r} writes to"
                with located(sink=name):
                    self._performer.until_started(what, self._sinks[name].require_valid, schema)
            self._performer.notices.withdraw()

        self._turns.take("validate", validated)

    def rest(self) -> None:
        """Record in the log that everything decided is committed, and roll back transactions that lost attempts began
        after the last sweep. Does nothing while a batch runs or before an incarnation is open. Rolls nothing back
        before the first ``run``, because participants of another process may already have voted in the batch that
        ``run`` will decide.

        Raises:
            Fenced: a newer coordinator has opened the log. The next ``run`` raises Fenced, too.
            Exception: the log may or may not have been changed. The next ``run`` recovers first.
        """

        def rested() -> None:
            try:
                if self.phase is Phase.IDLE and perform(protocol.rest(self._performer.life), self._performer.do):
                    self._performer.rest_is_answered()
            except Retriable as error:
                self._performer.rest_failed(error, self._resting.interval_s if self._resting else 0.0)

        self._turns.rest(rested)

    def close(self) -> None:
        """Stop cleanly: record in the log that no batch is in doubt. Waits for a running batch. ``run`` may be called
        again.

        Raises:
            TwoPhaseCommitError: like ``run``. The next start recovers.
        """
        self._close()

    def _close(self, patience_s: float | None = None) -> None:
        def closed() -> None:
            try:
                if self.phase is Phase.IDLE:
                    has_passed = self._has_passed or self._performer.life.has_run
                    start = self._turns.start if has_passed else None
                    perform(protocol.close(self._performer.life, start, patience_s), self._performer.do)
            finally:
                for sink in self._sinks.values():
                    sink.close()

        self._turns.take("close", closed)

    @contextlib.contextmanager
    def failures_counted(self) -> Iterator[None]:
        """Count an error of the block, for example of a source or a plan, like a failed batch. For use between batches.

        Within a batch it does nothing, because the batch counts its own failures.

        Raises:
            RepeatedFailure: raised in place of an error that has occurred again and again.
            Fenced: a newer coordinator has opened the log. Raised in place of any error, which becomes the cause.
            InDoubt: the log may or may not contain the last entry. Raised in place of any error, which becomes the
                cause.
        """
        try:
            yield
            self._has_passed = True
        except Exception as error:
            if self._turns.is_mine:
                raise
            failed: Exception = error
            if isinstance(error, RoundAborted):  # its message is about a batch
                failed = NotComputedAgain(f"no batch was begun: {error.message}")
                failed.__cause__ = error
            try:
                self.rest()  # before the count, which refers to the newest entry
            except (Fenced, InDoubt) as known:
                raise known from failed
            except Exception as unrecorded:  # noqa: BLE001  # the first error is raised
                logger.warning("the end of the last batch could not be recorded: %s", unrecorded)
            turns = self._turns
            meant = turns.take("an error outside of batches", lambda: turns.explained(failed, is_asked_again=True))
            if meant is error:
                raise
            raise meant from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, Exception):
            return self.close()
        try:
            self._close(patience_s=0.0)  # no target system may hold up the block's error
        except (Fenced, InDoubt):
            raise
        except Exception as error:  # noqa: BLE001  # the first error is raised
            logger.warning("the coordinator could not stop cleanly after an error: %s", error)
        return None

    # For operators. -------------------------------------------------------------------------------------------------

    def lost(self, batch_id: int) -> list[FailedCommit]:
        """Commit a batch in doubt as far as possible, after ``recover`` failed at it.

        Returns:
            The commits that fail.

        Raises:
            LogMismatch: this process has no record that the batch is in doubt. Nothing was committed.
            Fenced: a newer coordinator has opened the log.
        """

        def failed() -> list[FailedCommit]:
            life = self._life
            self._performer.tail_when_closed = life.tail
            found = perform(protocol.lost(life, batch_id), self._performer.do)
            self._performer.notices.withdraw()
            return found

        return self._turns.take("lost", failed)

    def abandon(self, batch_id: int, given_up: Mapping[str, Collection[Committable]], by: str) -> None:
        """Record in the log that ``by``, an operator, gives up transactions of a batch in doubt, by sink name. From
        then on no coordinator commits them. Call ``lost`` before and ``recover`` afterwards.

        Raises:
            LogMismatch: the decision does not name one of the transactions. Nothing was changed.
            TwoPhaseCommitError: like ``run``.
        """

        def abandoned() -> None:
            perform(protocol.abandon(self._life, batch_id, given_up, by), self._performer.do)

        self._turns.take("abandon", abandoned)

    # Shared. ----------------------------------------------------------------------------------------------------------

    @property
    def _life(self) -> Life:
        """The newest incarnation of this process. Raises ConfigurationError if there is none."""
        if self.incarnation is None:
            raise ConfigurationError("this coordinator has opened no incarnation yet: call recover first")
        return self._performer.life

    def _begin(self) -> Life:
        self._performer.leave_incarnation()
        warn_of_late_listings(self._store)
        prefixes = {name: sink.prefix for name, sink in self._sinks.items()}
        return perform(protocol.begin(self._store.url, self._owner, prefixes), self._performer.do)


def _newest_entry(store: LogStore) -> Entry | None:
    newest = read_tail(store)
    return newest[1] if newest else None


def _check(sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> None:
    """Refuse sinks that can't be bound to a log, before opening the log fences other coordinators."""
    if not sinks:
        raise ConfigurationError("a coordinator needs at least one sink")
    if len({id(sink) for sink in sinks.values()}) < len(sinks):
        raise ConfigurationError(f"one sink has several of the names {', '.join(sinks)}: make a sink for each name")
    for name, sink in sinks.items():
        if hasattr(sink, "commit_batch") and not isinstance(sink, WholeBatchSink):
            raise ConfigurationError(f"sink {name!r} has commit_batch: it must subclass WholeBatchSink", sink=name)
        TransactionalIdPool(sink.prefix, "log", name)
