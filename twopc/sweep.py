"""The sweep: roll back every transaction that is open and undecided, so that none holds back a reader.

Recovery, a failed round, every batch and a query that rests end with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from twopc.errors import Fenced, Retriable
from twopc.events import TransactionAborted
from twopc.failures import located, worst_of
from twopc.log.commit_log import CommitLog
from twopc.replay import remove_copies
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable

logger = logging.getLogger(__name__)


def sweep(
    sinks: Collection[TwoPhaseCommitSink[Any]],
    log: CommitLog,
    *,
    recovered: bool,
    tell: Callable[[TransactionAborted], None],
) -> None:
    """Abort what is open and undecided in each sink, and remove the replay copies that nothing will ask for.

    Raises:
        Fenced: a newer coordinator sweeps.
        Exception: a sink can't be swept. All others have been, since open transactions may hold locks.
    """
    errors: list[Exception] = []
    for sink in sinks:
        try:
            with located(sink=sink.transactional_ids.sink):
                _sweep_sink(sink, log, recovered, tell)
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001  # raised below, when all sinks are swept
            errors.append(error)
            level = logging.DEBUG if isinstance(error, Retriable) else logging.ERROR  # Waits logs the first
            logger.log(level, "sweep of sink %r: %s", sink.transactional_ids.sink, error)
    if errors:
        raise worst_of(errors)
    remove_copies(sinks, log)


def _sweep_sink(
    sink: TwoPhaseCommitSink[Any], log: CommitLog, recovered: bool, tell: Callable[[TransactionAborted], None]
) -> None:
    """Look again after an abort until nothing new is open: a target system may have left a part open, which holds back
    readers."""
    aborted: list[Committable] = []
    while (undecided := _undecided(sink, log)) and undecided != aborted:
        for transaction in undecided:
            with located(transaction_id=transaction.transaction_id):
                sink.abort(transaction)
            tell(TransactionAborted(sink.transactional_ids.sink, transaction, recovered, log.tail.owner))
        aborted = undecided


def _undecided(sink: TwoPhaseCommitSink[Any], log: CommitLog) -> list[Committable]:
    """List the open transactions of this log that it has not decided. Raises Fenced if a newer incarnation has opened.

    The order upholds that a zombie rolls back nothing of a newer coordinator: list, then re-read the log, then abort
    exactly what was listed. What a newer coordinator begins later has another epoch or name and is out of reach.
    """
    listed = list(sink.recover())
    if not listed:
        return []
    log.verify()
    decided = [c for d in log.tail.unresolved for of_sink in d.committables.values() for c in of_sink]
    return [
        transaction
        for transaction in listed
        if not any(transaction.is_same_transaction(committable) for committable in decided)
    ]
