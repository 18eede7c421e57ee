"""A participant: one task attempt, which writes to one or more sinks and votes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twopc.bad_records import one_too_many
from twopc.errors import ConfigurationError, RecordRefused, Retriable
from twopc.failures import located
from twopc.keyed import KeyedSink
from twopc.replay import ReplayCopy
from twopc.retry import until_answered
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import (
    Fingerprint,
    Transaction,
    sum_of_hashes,
)
from twopc.transaction import (
    Vote as Vote,  # noqa: PLC0414  # users import it from here
)
from twopc.transactional_ids import Round

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on

logger = logging.getLogger(__name__)

VALIDATE_PATIENCE_S = 30.0
"""How long a target system may fail to answer, for example while a broker learns that it coordinates a group."""


class Participant:
    """Begins at most one transaction per sink, at its first record, and rolls all of them back on an exception.

    If a partition may be attempted more than once in a round, each attempt needs its own ``serial``. Up to
    ``max_bad_records`` records that sinks refuse are left out of the transactions. One more fails the attempt.

    >>> with Participant(sinks, round, partition=0) as participant:  # doctest: +SKIP
    ...     participant.write("orders", record_batch)
    ...     vote = participant.pre_commit()
    """

    def __init__(
        self,
        sinks: Mapping[str, TwoPhaseCommitSink[Any]],
        round: Round,
        *,
        partition: int,
        serial: int | None = None,
        max_bad_records: int = 0,
    ) -> None:
        self._sinks = sinks
        self._max_bad_records, self._bad_records = max_bad_records, 0
        self._round, self._partition, self._serial = round, partition, serial
        self._transactions: dict[str, Transaction] = {}
        self._copies: dict[str, ReplayCopy] = {}
        self._schemas: dict[str, pa.Schema] = {}

    def write(self, sink: str, batch: pa.RecordBatch, hashes: pa.Int64Array | None = None) -> Sequence[RecordRefused]:
        """Write an Arrow record batch to ``sink``. An empty batch begins no transaction, because a transaction without
        records could not commit.

        Args:
            sink: the sink's name.
            batch: the records.
            hashes: a hash of each record, equal for equal records in every process. If the target system loses the
                transaction after its decision, the hashes identify the records (``Coordinator.run``).

        Returns:
            A refusal for each record that was left out, with its position in ``batch``.

        Raises:
            Refused: the sink can't write records of this schema, or refuses more records than may be left out.
        """
        return self._add(sink, batch, hashes, self._sinks[sink].write, self._sinks[sink].write_valid)

    def delete(
        self, sink: str, records: pa.RecordBatch, hashes: pa.Int64Array | None = None
    ) -> Sequence[RecordRefused]:
        """Delete the rows of ``sink``, a ``KeyedSink``, that have the keys of ``records``. Other columns of ``records``
        are ignored. Otherwise like ``write``.

        Raises:
            ConfigurationError: the sink has no key.
        """
        import pyarrow as pa

        keyed = self._sinks[sink]
        if not isinstance(keyed, KeyedSink) or not keyed.key:
            raise ConfigurationError(f"sink {sink!r} has no key, so nothing can be deleted from it", sink=sink)
        key = list(keyed.key)
        # A delete becomes a record with nulls beside its key, which is counted and copied like any other.
        columns = {field.name: pa.nulls(records.num_rows, field.type) for field in records.schema}
        deletes = pa.record_batch(columns | {name: records.column(name) for name in key}, schema=records.schema)

        def delete(transaction: Transaction, batch: pa.RecordBatch) -> None:
            keyed.delete(transaction, batch.select(key))

        def delete_valid(transaction: Transaction, batch: pa.RecordBatch) -> Iterator[RecordRefused]:
            return keyed.delete_valid(transaction, batch.select(key))

        return self._add(sink, deletes, hashes, delete, delete_valid)

    def _add(
        self,
        sink: str,
        batch: pa.RecordBatch,
        hashes: pa.Int64Array | None,
        add: Callable[[Transaction, pa.RecordBatch], None],
        add_valid: Callable[[Transaction, pa.RecordBatch], Iterator[RecordRefused]],
    ) -> Sequence[RecordRefused]:
        """Add records or deletes to the transaction of ``sink``, with ``add`` or ``add_valid``."""
        if batch.num_rows == 0:
            return ()
        if batch.schema != self._schemas.get(sink):
            self._require_valid(sink, batch.schema)
            self._schemas[sink] = batch.schema
        if sink not in self._transactions:
            self._begin(sink, batch.schema)
        with self._locating(sink):
            refused = self._added(self._transactions[sink], batch, add, add_valid)
        if refused:
            taken = [position not in refused for position in range(batch.num_rows)]
            batch = batch.filter(taken)
            hashes = None if hashes is None else hashes.filter(taken)
        if batch.num_rows:
            self._count(sink, batch, hashes)
        return tuple(refused.values())

    def _added(
        self,
        transaction: Transaction,
        batch: pa.RecordBatch,
        add: Callable[[Transaction, pa.RecordBatch], None],
        add_valid: Callable[[Transaction, pa.RecordBatch], Iterator[RecordRefused]],
    ) -> Mapping[int, RecordRefused]:
        """Add the records that the sink accepts. Return the refusals by their positions in the batch."""
        if not self._max_bad_records:
            add(transaction, batch)
            return {}
        refused: dict[int, RecordRefused] = {}
        for each in add_valid(transaction, batch):
            assert each.record is not None
            self._bad_records += 1
            if self._bad_records > self._max_bad_records:
                raise one_too_many(each, self._max_bad_records)
            refused[each.record] = each
        return refused

    def _count(self, name: str, written: pa.RecordBatch, hashes: pa.Int64Array | None) -> None:
        """Add written records to the transaction's replay copy and sums."""
        transaction = self._transactions[name]
        if name in self._copies:
            self._copies[name].write(written)
        transaction.records += written.num_rows
        transaction.bytes += written.nbytes
        if hashes is not None and self._sinks[name].may_time_out:
            transaction.hash = sum_of_hashes(hashes, transaction.hash or 0)

    def _require_valid(self, name: str, schema: pa.Schema) -> None:
        """Validate, with a limited wait: before the round's decision, nothing depends on the answer."""
        what = f"look at what sink {name!r} writes to"
        try:
            with located(sink=name, batch_id=self._round.batch_id):
                until_answered(what, self._sinks[name].require_valid, schema, patience_s=VALIDATE_PATIENCE_S)
        except Retriable as error:
            raise Retriable(f"could not {what}: {error}", sink=name, batch_id=self._round.batch_id) from error

    def _begin(self, name: str, schema: pa.Schema) -> None:
        sink = self._sinks[name]
        transaction_id = sink.transactional_ids.allocate(self._round, self._partition, self._serial)
        with located(sink=name, batch_id=self._round.batch_id):
            self._transactions[name] = sink.begin(transaction_id)
        if sink.replay_copies is not None and self._transactions[name].may_time_out:
            self._copies[name] = sink.replay_copies.create(transaction_id, schema)

    def pre_commit(self) -> Vote:
        """Pre-commit every transaction. From here on only the coordinator decides their outcome.

        A transaction whose records were all refused is discarded, because an empty one could not commit.
        """
        for name in [name for name, live in self._transactions.items() if not live.records]:
            self._discard(name)
        copies = {name: copy.finish() for name, copy in self._copies.items()}
        vote = {}
        for name, live in self._transactions.items():
            with self._locating(name):
                committable = self._sinks[name].pre_commit(live)
            fingerprint = None if live.hash is None else Fingerprint(self._partition, live.hash)
            vote[name] = replace(committable, replay_copy=copies.get(name), bytes=live.bytes, fingerprint=fingerprint)
        return vote

    @contextlib.contextmanager
    def _locating(self, sink: str) -> Iterator[None]:
        """Add the details that only the participant knows to an error from ``sink``."""
        try:
            with located(sink=sink, batch_id=self._round.batch_id):
                yield
        except RecordRefused as refused:
            refused.locate(sink, self._partition, self._transactions[sink].records)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception):
            return
        for name in [*self._transactions]:
            self._discard(name)

    def _discard(self, name: str) -> None:
        """Roll back a transaction that no vote names."""
        transaction = self._transactions.pop(name)
        try:
            self._sinks[name].discard(transaction)
        except Exception:
            # The coordinator sweeps what stays open.
            logger.warning("could not discard %s of sink %s", transaction.id.exact, name, exc_info=True)
        if copy := self._copies.pop(name, None):
            copy.discard()
