"""Recovery without an engine: the coordinator's own code, with the sinks in the operator's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import twopc
from twopc import Coordinator
from twopc.cli.sinks_file import Redaction
from twopc.cli.verdicts import Judged, Verdict, judge
from twopc.effects import FailedCommit
from twopc.errors import ConfigurationError, OperatorRequired, OutcomeUnknown, Refused, TransactionLost
from twopc.events import Event, TransactionAborted, TransactionCommitted, TransactionReplayed
from twopc.log.commit_log import read_tail
from twopc.log.entries import check_prefixes, opened
from twopc.log.history import History
from twopc.loss import is_recomputable
from twopc.observing import notify
from twopc.replay import ReplayCopies
from twopc.retry import until_answered
from twopc.sink import TwoPhaseCommitSink
from twopc.stores.places import file_system
from twopc.transaction import Committable, JsonValue


@dataclass
class Work:
    """The results of a recovery, from the coordinator's events."""

    committed: list[dict[str, JsonValue]] = field(default_factory=list)
    replayed: list[dict[str, JsonValue]] = field(default_factory=list)
    aborted: list[dict[str, JsonValue]] = field(default_factory=list)

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        match event:
            case TransactionCommitted(sink, batch_id, committable):
                row = _row(sink, committable) | {"batch_id": batch_id}
                if row not in self.committed:  # recovery runs again after a transaction was given up
                    self.committed.append(row)
            case TransactionReplayed(sink, batch_id, lost, replacement):
                row = _row(sink, replacement) | {"batch_id": batch_id, "lost_transaction_id": lost.transaction_id}
                self.replayed.append(row)
            case TransactionAborted(sink, committable):
                self.aborted.append(_row(sink, committable))
            case _:
                pass

    def sort(self) -> None:
        """Sort the rows: transactions are committed in parallel, and end in any order."""
        for rows in (self.committed, self.replayed, self.aborted):
            rows.sort(key=lambda row: (str(row["sink"]), str(row["transaction_id"])))


def _row(sink: str, committable: Committable) -> dict[str, JsonValue]:
    return {"sink": sink, "transaction_id": committable.transaction_id, "records": committable.records}


@dataclass(frozen=True)
class Lost:
    """A decided transaction that can't be committed, and why."""

    sink: str
    committable: Committable
    error: OperatorRequired

    def to_json(self, redact: Redaction) -> dict[str, JsonValue]:
        reason: dict[str, JsonValue] = {"kind": self.error.kind, "reason": redact(str(self.error))}
        return _row(self.sink, self.committable) | reason


class Recovery:
    """Recovery of one log, with the sinks in the sinks file."""

    def __init__(
        self, history: History, sinks: Mapping[str, TwoPhaseCommitSink[Any]], replay_copies: str | None
    ) -> None:
        self._history = history
        self._sinks = sinks
        self._replay_copies = replay_copies
        self._coordinator = Coordinator(sinks, history.store, owner=history.tail.owner, replay_copies=replay_copies)

    @property
    def _prefixes(self) -> dict[str, str]:
        return {name: sink.prefix for name, sink in self._sinks.items()}

    # Without changing anything. -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the errors that recovery would end with, before it fences a driver.

        Raises:
            LogMismatch: the log contains transactions of a sink that is not in the file, or the file gives a sink
                another prefix.
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
        if copies and (self._replay_copies is None or not _is_folder(self._replay_copies)):
            given = "was not given" if self._replay_copies is None else f"does not exist: {self._replay_copies}"
            raise ConfigurationError(
                f"batch {copies[0][0]} is decided, and the folder of its replay copies ({len(copies)}, such as"
                f" {copies[0][1]}) {given}. Pass --replay-copies as the query was given it. Nothing was changed."
            )

    def look(self) -> list[Judged]:
        """Return the verdict on every transaction of this log that is decided, or open in a target system. Raises
        LogMismatch: the log records another prefix for a sink."""
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

    # Changing the log and the target systems. ----------------------------------------------------------------------

    @property
    def incarnation(self) -> int | None:
        """The incarnation that recovery opened, or None before."""
        return self._coordinator.incarnation

    def end_orphans(self) -> None:
        """Roll back the open transactions of rounds that are over, without opening an incarnation. Transactions that
        may belong to the current round stay. ``look`` reads the log after it has listed the transactions, so no driver
        can decide a transaction that ``look`` reports as undecided. Raises TwoPhaseCommitError: a target system could
        not roll back a transaction."""
        ended: list[Judged] = []
        while (orphans := [row for row in self.look() if row.verdict is Verdict.UNDECIDED]) and orphans != ended:
            for row in orphans:
                abort = self._sinks[row.sink].abort
                until_answered(f"abort of {row.committable.transaction_id}", abort, row.committable)
                notify(TransactionAborted(row.sink, row.committable, recovered=True, owner=self._history.tail.owner))
            ended = orphans  # the next look shows what Kafka leaves open in a partition

    def run(self) -> None:
        """Open a new incarnation, commit every decided transaction, abort the others, and close the log. Raises the
        same errors as ``Coordinator.run``."""
        with self._coordinator:
            self._coordinator.recover()

    @property
    def stuck(self) -> int | None:
        """The batch at which ``run`` failed; all older ones are committed. None if every batch is committed."""
        return next(iter(self._coordinator.in_doubt), None)

    def lost(self, batch_id: int, even_if_repairable: bool) -> list[Lost]:
        """Return the transactions that can't be committed, in the batch at which ``run`` failed. All other due
        transactions are then committed, or will be written again: from their replay copies, or by a query that computes
        their records again. With ``even_if_repairable``, also return those that could be committed if an operator
        removed the cause, and those whose records a query could compute again.

        Raises OperatorRequired: an operator could remove the cause, and ``even_if_repairable`` is false; all
        transactions were tried. Fenced: a newer coordinator has opened the log. TwoPhaseCommitError: a transaction
        can't be committed now for any other reason.
        """
        found = [each for failed in self._coordinator.lost(batch_id) for each in self._lost(failed, even_if_repairable)]
        repairable = [lost.error for lost in found if not isinstance(lost.error, (TransactionLost, OutcomeUnknown))]
        if repairable and not even_if_repairable:
            raise repairable[0]
        return found

    def _lost(self, failed: FailedCommit, even_if_recomputable: bool) -> list[Lost]:
        error = failed.error
        if isinstance(error, Refused):  # too late to refuse: the batch is decided
            error = OperatorRequired(error.message, sink=failed.sink, transaction_id=failed.transaction_id)
        if not isinstance(error, OperatorRequired):
            raise error
        copies = self._sinks[failed.sink].replay_copies
        if isinstance(error, TransactionLost) and copies and all(map(copies.can_replace, failed.committables)):
            return []
        if is_recomputable(failed) and not even_if_recomputable:
            return []
        return [Lost(failed.sink, committable, error) for committable in failed.committables]

    def give_up(self, batch_id: int, lost: list[Lost], by: str) -> None:
        """Record in the log that ``lost`` is given up. No coordinator commits it afterwards. Raises the same errors as
        ``run``."""
        given_up: dict[str, list[Committable]] = {}
        for transaction in lost:
            given_up.setdefault(transaction.sink, []).append(transaction.committable)
        self._coordinator.abandon(batch_id, given_up, by)


def _is_folder(url: str) -> bool:
    fs, path = file_system(url)
    return bool(fs.isdir(path))
