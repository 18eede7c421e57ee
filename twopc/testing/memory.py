"""Sinks whose target system is this process's memory: the smallest ones that keep the whole contract."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twopc.errors import RoundAborted, TransactionLost
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import TransactionId

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class MemoryTarget:
    """The target system. It outlives every sink that writes to it, as a broker does.

    Attributes:
        visible: the records of committed transactions, in the order of their commits.
        open: transaction id → records, pre-committed or not.
        committed: the ids of committed transactions.
        batches: scope of a sink that commits whole batches → the newest one that is committed.
    """

    visible: list[dict[str, Any]] = field(default_factory=list)
    open: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    batches: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


class MemorySink(TwoPhaseCommitSink[Transaction]):
    """Writes to a ``MemoryTarget``. It can't be pickled, since its target system is in this process."""

    def __init__(self, target: MemoryTarget) -> None:
        self.target = target

    def begin(self, transaction_id: TransactionId) -> Transaction:
        with self.target.lock:
            self.target.open[transaction_id.exact] = []
        return Transaction(transaction_id)

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        with self.target.lock:
            self.target.open[transaction.id.exact].extend(batch.to_pylist())

    def pre_commit(self, transaction: Transaction) -> Committable:
        with self.target.lock:
            if transaction.id.exact not in self.target.open:
                raise RoundAborted(f"transaction {transaction.id.exact} was rolled back while it was written")
        return Committable(transaction.id.exact, {}, transaction.records)

    def commit(self, committable: Committable) -> None:
        name = committable.transaction_id
        with self.target.lock:
            if name in self.target.committed:
                return
            if name not in self.target.open:
                raise TransactionLost(f"transaction {name} is decided, and the target does not have it any more")
            self.target.visible.extend(self.target.open.pop(name))
            self.target.committed.add(name)

    def abort(self, committable: Committable) -> None:
        with self.target.lock:
            self.target.open.pop(committable.transaction_id, None)

    def recover(self) -> Iterable[Committable]:
        with self.target.lock:
            return [Committable(name, {}) for name in self.target.open if self.transactional_ids.owns_exact(name)]


class MemoryTableSink(MemorySink):
    """Makes whole batches visible at once, as a table format does: a batch and its mark are committed together."""

    def commit_batch(self, batch_id: int, committables: Sequence[Committable]) -> None:
        scope, names = self.transactional_ids.scope, [committable.transaction_id for committable in committables]
        with self.target.lock:
            if self.target.batches.get(scope, -1) >= batch_id:
                return
            if lost := [name for name in names if name not in self.target.open]:
                raise TransactionLost(f"batch {batch_id} is decided, and the target does not have {', '.join(lost)}")
            self.target.visible.extend(record for name in names for record in self.target.open.pop(name))
            self.target.batches[scope] = batch_id
