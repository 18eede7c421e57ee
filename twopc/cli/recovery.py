"""Recovery without an engine: the coordinator's own code, over the sinks that the operator describes.

It reads one private name of the coordinator: the open log, in which an operator gives transactions up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import twopc
from twopc import Coordinator
from twopc._bound_sink import CommitCall
from twopc.cli.verdicts import Judged, Verdict, judge
from twopc.errors import ConfigurationError, OperatorRequired, OutcomeUnknown, Refused, TransactionLost
from twopc.events import Event, TransactionAborted, TransactionCommitted, TransactionReplayed
from twopc.log.commit_log import CommitLog, read_tail
from twopc.log.entries import check_prefixes, opened
from twopc.log.history import History
from twopc.places import file_system
from twopc.plugins import notify
from twopc.recompute import is_recomputable
from twopc.replay import ReplayCopies
from twopc.retry import until_answered
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable, JsonValue


@dataclass
class Work:
    """What recovery did, from the coordinator's events."""

    committed: list[dict[str, JsonValue]] = field(default_factory=list)
    replayed: list[dict[str, JsonValue]] = field(default_factory=list)
    aborted: list[dict[str, JsonValue]] = field(default_factory=list)

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        match event:
            case TransactionCommitted(sink, batch_id, committable):
                row = _row(sink, committable) | {"batch_id": batch_id}
                if row not in self.committed:  # after a transaction was given up, it is committed again
                    self.committed.append(row)
            case TransactionReplayed(sink, batch_id, lost, replacement):
                row = _row(sink, replacement) | {"batch_id": batch_id, "lost_transaction_id": lost.transaction_id}
                self.replayed.append(row)
            case TransactionAborted(sink, committable):
                self.aborted.append(_row(sink, committable))
            case _:
                pass

    def sort(self) -> None:
        """Put the rows in one order: transactions are committed beside each other, and end in any."""
        for rows in (self.committed, self.replayed, self.aborted):
            rows.sort(key=lambda row: (str(row["sink"]), str(row["transaction_id"])))


def _row(sink: str, committable: Committable) -> dict[str, JsonValue]:
    return {"sink": sink, "transaction_id": committable.transaction_id, "records": committable.records}


@dataclass(frozen=True)
class Lost:
    """A decided transaction that a repeated commit does not make visible, and why."""

    sink: str
    committable: Committable
    error: OperatorRequired

    def to_json(self) -> dict[str, JsonValue]:
        reason: dict[str, JsonValue] = {"kind": self.error.kind, "reason": str(self.error)}
        return _row(self.sink, self.committable) | reason


class Recovery:
    """Recovery of one log, over the sinks of the sinks file."""

    def __init__(
        self, history: History, sinks: Mapping[str, TwoPhaseCommitSink[Any]], replay_copies: str | None
    ) -> None:
        self._history = history
        self._sinks = sinks
        self._replay_copies = replay_copies
        self._coordinator = self._start()

    @property
    def _prefixes(self) -> dict[str, str]:
        return {name: sink.prefix for name, sink in self._sinks.items()}

    def _start(self) -> Coordinator:
        return Coordinator(
            self._sinks, self._history.store, owner=self._history.tail.owner, replay_copies=self._replay_copies
        )

    # Without changing anything. -------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse what recovery would fail at, before it fences a driver.

        Raises:
            LogMismatch: the log has work for a sink that is not in the file, or a sink has another prefix in the file.
            ConfigurationError: the log names replay copies, and no folder for them was given.
        """
        opened(self._history.tail, self._history.tail.owner, self._prefixes)
        copies = [
            (decision.batch_id, committable.replay_copy)
            for decision in self._history.tail.unresolved
            for committables in decision.committables.values()
            for committable in committables
            if committable.replay_copy
        ]
        if self._replay_copies is None and copies:
            raise ConfigurationError(
                f"batch {copies[0][0]} is decided, and its records have replay copies ({len(copies)}, such as"
                f" {copies[0][1]}). Pass --replay-copies URL with the folder that the query was given."
                " Nothing was changed."
            )
        if self._replay_copies is not None and copies and not _is_folder(self._replay_copies):
            raise ConfigurationError(
                f"batch {copies[0][0]} is decided, and the folder {self._replay_copies} of its replay copies (such as"
                f" {copies[0][1]}) does not exist. Pass --replay-copies as the query was given it."
                " Nothing was changed."
            )

    def look(self) -> list[Judged]:
        """Return every transaction of this log that is open in a target system, or decided, with the verdict on it.

        Raises:
            LogMismatch: a sink has another prefix than in the log.
        """
        check_prefixes(self._history.tail, self._prefixes)
        open_ = {name: self._open_in(name) for name in self._sinks}
        newest = read_tail(self._history.store)
        assert newest is not None  # a log that had entries is never empty
        return [row for n, found in open_.items() for row in judge(newest[1], self._sinks[n].transactional_ids, found)]

    def _open_in(self, name: str) -> list[Committable]:
        sink = self._sinks[name]
        sink.bind(name, self._history.tail.log_id)
        sink.open()
        return list(sink.recover())

    def leftover_copies(self) -> list[str]:
        """Return the replay copies that recovery would remove, now or when their batch is committed."""
        if self._replay_copies is None:
            return []
        pools = [sink.transactional_ids for sink in self._sinks.values()]
        return [
            name
            for name, written in ReplayCopies(self._replay_copies).names()
            if any(pool.owns_exact(written) for pool in pools)
        ]

    # What changes the log and the target systems. ------------------------------------------------------------------

    @property
    def log(self) -> CommitLog | None:
        """The log, once it is open."""
        return getattr(self._coordinator, "_log", None)

    def end_orphans(self) -> None:
        """Roll back every open transaction of a round that is over, and open no incarnation. Transactions that may
        belong to the current round stay. ``look`` reads the log after it has listed the transactions, so no driver can
        decide those that it reports as undecided.

        Raises:
            TwoPhaseCommitError: a target system could not roll one back.
        """
        ended: list[Judged] = []
        while (orphans := [row for row in self.look() if row.verdict is Verdict.UNDECIDED]) and orphans != ended:
            for row in orphans:
                abort = self._sinks[row.sink].abort
                until_answered(f"abort of {row.committable.transaction_id}", abort, row.committable)
                notify(TransactionAborted(row.sink, row.committable, recovered=True, owner=self._history.tail.owner))
            ended = orphans  # the next look shows what Kafka leaves open in a partition

    def run(self) -> None:
        """Open a new incarnation, commit what is decided, abort the rest, close. Raises like ``Coordinator.run``."""
        if self.log is not None:
            self._coordinator = self._start()
        with self._coordinator:
            self._coordinator.recover()

    @property
    def stuck(self) -> int | None:
        """The batch at which ``run`` failed: all older ones are committed. None if all batches are."""
        return min((batch_id for sink in self._sinks.values() for batch_id in sink.pending), default=None)

    def lost(self, batch_id: int, even_if_repairable: bool) -> list[Lost]:
        """Return the transactions of a batch that can't be committed, after ``run`` failed. All others that were due
        with them are then committed, or will be written again: from their replay copies, or by a query that computes
        them again.

        Args:
            batch_id: the batch at which ``run`` failed.
            even_if_repairable: return also those that could be committed if an operator removed a cause, and those
                that a query could compute again.

        Raises:
            OperatorRequired: such a cause, without ``even_if_repairable``. All transactions were tried.
            Fenced: a newer coordinator has opened the log.
            TwoPhaseCommitError: any other reason for which a transaction can't be committed now.
        """
        assert self.log is not None
        # Upholds: a sink that commits last is never ahead of the others. While one of these has not completed the
        # batch, the former wait; they are committed after what is lost was given up.
        due = [sink for sink in self._sinks.values() if batch_id in sink.pending]
        due = [sink for sink in due if not sink.commits_last] or due
        found: list[Lost] = []
        for sink in due:
            for call in sink.commit_calls(batch_id, sink.pending[batch_id]):
                found += self._commit(call, even_if_repairable)
        until_answered("look at the log", self.log.verify)  # a newer driver may have settled what is lost here
        repairable = [lost.error for lost in found if not isinstance(lost.error, (TransactionLost, OutcomeUnknown))]
        if repairable and not even_if_repairable:
            raise repairable[0]
        return found

    def _commit(self, call: CommitCall, even_if_recomputable: bool) -> list[Lost]:
        sink = self._sinks[call.sink]
        try:
            until_answered(str(call), call.commit)
        except Refused as error:  # the batch is decided, whatever it says
            refused = OperatorRequired(error.message, sink=call.sink, transaction_id=call.transaction_id)
            return [Lost(call.sink, committable, refused) for committable in call.committables]
        except OperatorRequired as error:
            copies = sink.replay_copies
            if isinstance(error, TransactionLost) and copies and all(map(copies.can_replace, call.committables)):
                return []
            if is_recomputable(call, error) and not even_if_recomputable:
                return []
            return [Lost(call.sink, committable, error) for committable in call.committables]
        return []

    def give_up(self, batch_id: int, lost: list[Lost], by: str) -> None:
        """Write into the log that ``lost`` is given up. From then on no coordinator commits it. Raises like ``run``."""
        assert self.log is not None
        given_up: dict[str, list[Committable]] = {}
        for transaction in lost:
            given_up.setdefault(transaction.sink, []).append(transaction.committable)
        self.log.abandon(batch_id, given_up, by)


def _is_folder(url: str) -> bool:
    fs, path = file_system(url)
    return bool(fs.isdir(path))
