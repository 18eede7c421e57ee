"""A participant: one task attempt, which writes to one or more sinks and votes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from twopc.errors import RecordRefused, Retriable, RoundAborted
from twopc.failures import located
from twopc.recompute import sum_of_hashes
from twopc.replay import ReplayCopy
from twopc.retry import until_answered
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable, Fingerprint, Transaction
from twopc.transactional_ids import Round

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on

logger = logging.getLogger(__name__)

Vote: TypeAlias = dict[str, Committable]
"""The yes votes of one participant: sink name → what it pre-committed. Sinks that it wrote nothing to are absent."""


VALIDATE_PATIENCE_S = 30.0
"""How long a target system may give no answer, such as while a broker learns that it coordinates a group."""


class Participant:
    """Begins at most one transaction per sink, at its first record, and rolls all of them back on an exception.

    If a partition may be attempted more than once in a round, each attempt needs a ``serial`` of its own.

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
    ) -> None:
        self._sinks = sinks
        self._round, self._partition, self._serial = round, partition, serial
        self._transactions: dict[str, Transaction] = {}
        self._copies: dict[str, ReplayCopy] = {}
        self._schemas: dict[str, pa.Schema] = {}

    def write(self, sink: str, batch: pa.RecordBatch, hashes: pa.Int64Array | None = None) -> None:
        """Write an Arrow record batch to ``sink``. An empty batch begins no transaction, which could not commit.

        Args:
            sink: the sink's name.
            batch: the records.
            hashes: a hash of each record, equal for equal records in every process. If the target system loses the
                transaction after its decision, the records are recognized by them (``Coordinator.run``).

        Raises:
            Refused: the sink can't write records of this schema. Nothing of the batch was written.
        """
        if batch.num_rows == 0:
            return
        if batch.schema != self._schemas.get(sink):
            self._require_valid(sink, batch.schema)
            self._schemas[sink] = batch.schema
        if sink not in self._transactions:
            self._begin(sink, batch.schema)
        with self._locating(sink):
            self._sinks[sink].write(self._transactions[sink], batch)
        if sink in self._copies:
            self._copies[sink].write(batch)
        transaction = self._transactions[sink]
        transaction.records += batch.num_rows
        transaction.bytes += batch.nbytes
        if hashes is not None and self._sinks[sink].may_time_out and transaction.may_time_out:
            transaction.hash = sum_of_hashes(hashes, transaction.hash or 0)

    def _require_valid(self, name: str, schema: pa.Schema) -> None:
        """Validate with a limit on the wait: the round has no decision yet, so nothing depends on the answer."""
        what = f"look at what sink {name!r} writes to"
        try:
            with located(sink=name, batch_id=self._round.batch_id):
                until_answered(what, self._sinks[name].require_valid, schema, patience_s=VALIDATE_PATIENCE_S)
        except Retriable as error:
            raise RoundAborted(f"could not {what}: {error}", sink=name, batch_id=self._round.batch_id) from error

    def _begin(self, name: str, schema: pa.Schema) -> None:
        sink = self._sinks[name]
        transaction_id = sink.transactional_ids.allocate(self._round, self._partition, self._serial)
        with located(sink=name, batch_id=self._round.batch_id):
            self._transactions[name] = sink.begin(transaction_id)
        if sink.replay_copies is not None and self._transactions[name].may_time_out:
            self._copies[name] = sink.replay_copies.create(transaction_id, schema)

    def pre_commit(self) -> Vote:
        """Pre-commit every transaction begun. From here on only the coordinator decides their outcome."""
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
        """Add to an error of ``sink`` what only the participant knows."""
        try:
            with located(sink=sink, batch_id=self._round.batch_id):
                yield
        except RecordRefused as refused:
            refused.locate(sink, self._partition, self._transactions[sink].records)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception):
            return
        for name, transaction in self._transactions.items():
            try:
                self._sinks[name].discard(transaction)
            except Exception:
                # The vote is no either way. What stays open is swept by the coordinator.
                logger.warning("could not discard %s of sink %s", transaction.id.exact, name, exc_info=True)
        for copy in self._copies.values():
            copy.discard()
