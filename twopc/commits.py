"""Phase two in one process: commits one wave of a decided batch on threads, several sinks together where possible."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, TypeAlias

from twopc.effects import Commit, FailedCommit
from twopc.events import Event, TransactionCommitted
from twopc.retry import Waits, until_answered
from twopc.sink import TwoPhaseCommitSink, WholeBatchSink
from twopc.threads import Worker, on_threads
from twopc.transaction import Committable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitCall:
    """One phase-two call, and the transactions that it commits, all from one sink."""

    sink: str
    committables: tuple[Committable, ...]
    commit: Callable[[], None]

    @property
    def transaction_id(self) -> str | None:
        """The transaction that the call commits; None if it commits several."""
        return self.committables[0].transaction_id if len(self.committables) == 1 else None

    def __str__(self) -> str:
        return f"commit of {self.transaction_id or f'{len(self.committables)} transactions to sink {self.sink!r}'}"


Due: TypeAlias = "Sequence[tuple[TwoPhaseCommitSink[Any], Sequence[Committable]]]"
"""Sinks, each with its transactions from one decided batch."""

Group: TypeAlias = "dict[WholeBatchSink[Any], Sequence[Committable]]"
"""Sinks that are committed together, each with its transactions."""


@dataclass(frozen=True, slots=True)
class Wave:
    """The commits of one ``Commit`` effect."""

    asked: Commit
    sinks: Mapping[str, TwoPhaseCommitSink[Any]]
    at_once: int  # threads per sink. With 1, the calling thread commits.
    tell: Callable[[Event], None]  # tells observers
    waits: Waits  # the waits of the coordinator
    running: list[Worker]  # the threads that have not ended

    def failures(self) -> list[FailedCommit]:
        """Try every commit, and return those that failed. An error does not stop the others."""
        calls = commit_calls(self.asked.batch_id, [(self.sinks[name], due) for name, due in self.asked.due.items()])
        by_sink = [[*of_sink] for _, of_sink in groupby(calls, key=attrgetter("sink"))]
        # Each sink has its own threads, so that a target system that is away does not delay other sinks.
        return [*chain.from_iterable(self._map(len(by_sink), len(by_sink))(self._failures_of_sink, by_sink))]

    def _map(self, calls: int, at_once: int) -> Callable[..., Iterable[Any]]:
        """Return a function like ``map`` that makes ``calls`` calls, on this thread or on up to ``at_once`` threads."""
        if self.at_once == 1 or calls <= 1:
            return map
        give_up, running = self.waits.given_up.set, self.running
        return partial(on_threads, at_once=at_once, name="twopc-commit", give_up=give_up, running=running)

    def _failures_of_sink(self, calls: Sequence[CommitCall]) -> list[FailedCommit]:
        left = self._commit_many(calls)
        return [*filter(None, self._map(len(left), self.at_once)(self._attempt, left))]

    def _attempt(self, call: CommitCall) -> FailedCommit | None:
        batch_id = self.asked.batch_id
        what = f"batch {batch_id} is decided; {call}"
        among = f"batch {batch_id} is decided; commits of {self.sinks[call.sink].transactional_ids.scope}"
        try:
            until_answered(what, call.commit, tell=self.tell, waits=self.waits, among=among, decided_batch_id=batch_id)
            self._tell_committed(call)
        except Exception as error:  # noqa: BLE001  # the protocol judges it after all attempts
            return FailedCommit(call.sink, call.committables, error)
        return None

    def _commit_many(self, calls: Sequence[CommitCall]) -> Sequence[CommitCall]:
        """Have a sink commit several transactions at once, if it can. Return the calls that remain."""
        sink = self.sinks[calls[0].sink]
        if len(calls) == 1 or not sink.commits_many:
            return calls
        try:
            committed = frozenset(sink.commit_many([call.committables[0] for call in calls]))
        except Exception as error:  # noqa: BLE001  # not trusted: each commit finds out what happened
            logger.warning(
                "batch %d is decided; sink %r could not commit its %d transactions at once, and commits them one by"
                " one: %s: %s",
                *(self.asked.batch_id, calls[0].sink, len(calls), type(error).__name__, error),
            )
            return calls
        for call in calls:
            if call.transaction_id in committed:
                self._tell_committed(call)
        return [call for call in calls if call.transaction_id not in committed]

    def _tell_committed(self, call: CommitCall) -> None:
        asked = self.asked
        for each in call.committables:
            self.tell(TransactionCommitted(call.sink, asked.batch_id, each, asked.recovered, asked.owner))


def commit_calls(batch_id: int, due: Due) -> list[CommitCall]:
    """Return the calls that commit ``due``, in the order of the sinks. Within a group, whichever call runs first also
    makes the joint commit, before any sink of the group is committed by itself."""
    together = dict[str, _Once]()
    for group in _groups(due):
        once = _Once(batch_id, group)
        together.update(dict.fromkeys(once.names, once))
    calls = [call for sink, committables in due for call in calls_of(sink, batch_id, committables)]
    return [
        replace(call, commit=partial(together[call.sink].then, call.commit)) if call.sink in together else call
        for call in calls
    ]


def calls_of(sink: TwoPhaseCommitSink[Any], batch_id: int, committables: Sequence[Committable]) -> list[CommitCall]:
    """Return the calls that commit ``committables`` of a decided batch: one for all of them if the sink commits whole
    batches, else one per transaction."""
    name = sink.transactional_ids.sink
    if isinstance(sink, WholeBatchSink):
        every = tuple(committables)
        return [CommitCall(name, every, partial(sink.commit_batch, batch_id, every))] if every else []
    return [CommitCall(name, (committable,), partial(sink.commit, committable)) for committable in committables]


def _groups(due: Due) -> list[Group]:
    """Return the groups of at least two sinks that have transactions."""
    found: dict[tuple[type, Hashable], Group] = defaultdict(dict)
    for sink, committables in due:
        if committables and isinstance(sink, WholeBatchSink) and (group := sink.commit_group) is not None:
            found[type(sink), group][sink] = committables
    return [group for group in found.values() if len(group) > 1]


class _Once:
    """Calls ``commit_together`` once, on the first thread that needs it. The other threads wait."""

    def __init__(self, batch_id: int, due: Group) -> None:
        self._batch_id, self._due = batch_id, due
        self.names = [sink.transactional_ids.sink for sink in due]
        self._lock = threading.Lock()
        self._was_called = False

    def then(self, commit: Callable[[], None]) -> None:
        """Call ``commit_together`` unless a thread already has, then commit one sink. Only the sink's own commit
        determines the sink's outcome."""
        with self._lock:
            if not self._was_called:
                self._was_called = True
                self._commit_together()
        commit()

    def _commit_together(self) -> None:
        try:
            type(next(iter(self._due))).commit_together(self._batch_id, self._due)
        except Exception as error:  # noqa: BLE001  # not trusted: each sink checks for itself
            logger.warning(
                "batch %d is decided; it could not be committed together to the sinks %s, which commit it one by one:"
                " %s: %s",
                self._batch_id,
                ", ".join(map(repr, self.names)),
                type(error).__name__,
                error,
            )
