"""A participant: one task attempt, which writes to one or more sinks and votes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import Round

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on

logger = logging.getLogger(__name__)

Vote: TypeAlias = "dict[str, Committable]"
"""The yes votes of one participant: sink name → what it pre-committed. A sink it wrote nothing to is not in it."""


class Participant:
    """Begins at most one transaction per sink, at the first record for it, and rolls all back on an exception.

    >>> with Participant(sinks, round, partition=0) as participant:  # doctest: +SKIP
    ...     participant.write("orders", record_batch)
    ...     vote = participant.pre_commit()
    """

    def __init__(
        self,
        sinks: Mapping[str, TwoPhaseCommitSink[Any]],
        round: Round,
        partition: int,
        attempt_number: int = 0,
        task_attempt_id: int = 0,
    ) -> None:
        self._sinks = sinks
        self._attempt = (round, partition, attempt_number, task_attempt_id)
        self._transactions: dict[str, Transaction] = {}

    def write(self, sink: str, batch: pa.RecordBatch) -> None:
        """Write an Arrow record batch to ``sink``. An empty one begins nothing: an empty transaction can't commit."""
        if batch.num_rows == 0:
            return
        if sink not in self._transactions:
            transaction_id = self._sinks[sink].transactional_ids.allocate(*self._attempt)
            self._transactions[sink] = self._sinks[sink].begin(transaction_id)
        self._sinks[sink].write(self._transactions[sink], batch)
        self._transactions[sink].records += batch.num_rows

    def pre_commit(self) -> Vote:
        """Pre-commit every transaction begun. From here on only the coordinator decides what becomes of them."""
        return {name: self._sinks[name].pre_commit(live) for name, live in self._transactions.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception):
            return
        for name, transaction in self._transactions.items():
            try:
                self._sinks[name].abort(transaction)
            except Exception:
                # The vote is no either way. What stays open is swept by the coordinator.
                logger.warning("could not abort %s of sink %s", transaction.id.exact, name, exc_info=True)
