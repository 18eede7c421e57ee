"""Sinks whose target system is this process's memory: the smallest sinks that fulfill the whole contract."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twopc.errors import RecordRefused, RoundAborted, SchemaMismatch, TransactionLost
from twopc.keyed import KeyedSink
from twopc.sink import WholeBatchSink
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import TransactionId

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on


@dataclass
class MemoryTarget:
    """The target system. It outlives every sink that writes to it, as a broker does.

    Attributes:
        visible: the records of committed transactions, in the order of their commits.
        open: transaction id → records, pre-committed or not.
        deletes: id of an open transaction → the keys that it removes.
        committed: the ids of committed transactions.
        batches: scope of a sink that commits whole batches → its newest committed batch.
    """

    visible: list[dict[str, Any]] = field(default_factory=list)
    open: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    deletes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    batches: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


class MemorySink(KeyedSink[Transaction]):
    """Writes to a ``MemoryTarget``. It can't be pickled, because its target system is in this process.

    Args:
        target: the target system.
        key: the columns by which a record replaces another; none to append.
    """

    def __init__(self, target: MemoryTarget, key: Sequence[str] = ()) -> None:
        self.target = target
        self._key = tuple(key)

    @property
    def key(self) -> tuple[str, ...]:
        return self._key

    def begin(self, transaction_id: TransactionId) -> Transaction:
        with self.target.lock:
            self.target.open[transaction_id.exact] = []
        return Transaction(transaction_id)

    def validate(self, schema: pa.Schema) -> None:
        if missing := [name for name in self.key if name not in schema.names]:
            raise SchemaMismatch(f"the records have no column {', '.join(missing)}, which is the key")

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        self._require_key(batch)
        with self.target.lock:
            self.target.open[transaction.id.exact].extend(batch.to_pylist())

    def _require_key(self, batch: pa.RecordBatch) -> None:
        for name in self.key:
            if batch.column(name).null_count:
                first = batch.column(name).is_null().index(True).as_py()
                raise RecordRefused("the key is null", record=first, column=name)

    def delete(self, transaction: Transaction, keys: pa.RecordBatch) -> None:
        self._require_key(keys)
        with self.target.lock:
            self.target.deletes.setdefault(transaction.id.exact, []).extend(keys.to_pylist())

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
            self._apply(name)
            self.target.committed.add(name)

    def _apply(self, name: str) -> None:
        """Make the records and deletes of a transaction visible. A record replaces only the columns that it
        contains."""
        records, deletes = self.target.open.pop(name), self.target.deletes.pop(name, [])
        if self.key:
            rows = {self._key_of(row): row for row in self.target.visible}
            for each in deletes:
                rows.pop(self._key_of(each), None)
            for each in records:
                rows[self._key_of(each)] = {**rows.get(self._key_of(each), {}), **each}
            self.target.visible[:] = rows.values()
        else:
            self.target.visible.extend(records)

    def _key_of(self, record: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(record[name] for name in self.key)

    def abort(self, committable: Committable) -> None:
        with self.target.lock:
            self.target.open.pop(committable.transaction_id, None)
            self.target.deletes.pop(committable.transaction_id, None)

    def recover(self) -> Iterable[Committable]:
        with self.target.lock:
            return [Committable(name, {}) for name in self.target.open if self.transactional_ids.owns_exact(name)]


class MemoryTableSink(WholeBatchSink[Transaction], MemorySink):
    """Makes whole batches visible at once, as a table format does. A batch and its mark are committed together.

    Sinks with the same target show a batch at the same moment, as a catalog shows changes to several tables at once.
    """

    def commit_batch(self, batch_id: int, committables: Sequence[Committable]) -> None:
        with self.target.lock:
            if lost := self._lost(batch_id, committables):
                raise TransactionLost(f"batch {batch_id} is decided, and the target does not have {', '.join(lost)}")
            self._show(batch_id, committables)

    @property
    def commit_group(self) -> Hashable:
        return id(self.target)

    @classmethod
    def commit_together(cls, batch_id: int, due: Mapping[Self, Sequence[Committable]]) -> None:
        with next(iter(due)).target.lock:
            for sink, committables in due.items():
                if not sink._lost(batch_id, committables):  # noqa: SLF001  # of this class
                    sink._show(batch_id, committables)  # noqa: SLF001

    def _is_visible(self, batch_id: int) -> bool:
        return self.target.batches.get(self.transactional_ids.scope, -1) >= batch_id

    def _lost(self, batch_id: int, committables: Sequence[Committable]) -> list[str]:
        """Return the transactions that a batch lacks, unless it is already visible."""
        names = [committable.transaction_id for committable in committables]
        return [] if self._is_visible(batch_id) else [name for name in names if name not in self.target.open]

    def _show(self, batch_id: int, committables: Sequence[Committable]) -> None:
        if not self._is_visible(batch_id):
            names = [committable.transaction_id for committable in committables]
            for name in names:
                self._apply(name)
            self.target.batches[self.transactional_ids.scope] = batch_id
