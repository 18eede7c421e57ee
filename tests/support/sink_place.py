"""The target system of a test: creates sinks for it, and transactions that participants have pre-committed."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

from twopc import Committable, Participant, Round, TwoPhaseCommitSink, WholeBatchSink

ROUND = Round(1, 0)

SinkT = TypeVar("SinkT", bound=TwoPhaseCommitSink[Any])

Written: TypeAlias = "Mapping[str, Any] | Sequence[str] | pa.RecordBatch"
"""Records: columns, values of the column ``value``, or a record batch."""


class SinkPlace(Generic[SinkT]):
    """The target system of one test. Each sink stands for a separate process."""

    def unbound(self, **options: Any) -> SinkT:
        """Return a new sink."""
        raise NotImplementedError

    def sink(self, log_id: str = "log", **options: Any) -> SinkT:
        """Return a new sink, bound and opened as by a coordinator."""
        sink = self.unbound(**options)
        sink.bind("orders", log_id)
        sink.open()
        return sink

    def bound(self, **options: Any) -> SinkT:
        """Return a new sink, bound but without any request to its target system."""
        sink = self.unbound(**options)
        sink.bind("orders", "log")
        return sink

    def commit(self, committable: Committable, sink: SinkT | None = None) -> None:
        """Commit a transaction as a coordinator would; for a ``WholeBatchSink``, as a batch."""
        sink = sink or self.sink()
        if isinstance(sink, WholeBatchSink):
            sink.commit_batch(sink.transactional_ids.round_of(committable.transaction_id).batch_id, [committable])
        else:
            sink.commit(committable)

    def vote(
        self, records: Written, round: Round = ROUND, partition: int = 0, sink: SinkT | None = None
    ) -> Committable:
        """Return a transaction that a participant has written and pre-committed."""
        if not isinstance(records, pa.RecordBatch):
            records = pa.record_batch(records if isinstance(records, Mapping) else {"value": list(records)})
        with Participant({"orders": sink or self.sink()}, round, partition=partition) as participant:
            participant.write("orders", records)
            return participant.pre_commit()["orders"]

    def vote_without_bad(
        self, records: Mapping[str, Any], round: Round = ROUND, **options: Any
    ) -> tuple[Committable, list[int]]:
        """Do the same without the records that the sink refuses. Return the transaction, sealed and read back from a
        log, and the positions of the refused records."""
        batch, sink = pa.record_batch(records), self.sink(**options)
        with Participant({"orders": sink}, round, partition=0, max_bad_records=batch.num_rows) as participant:
            refused = participant.write("orders", batch)
            [sealed] = sink.seal([participant.pre_commit()["orders"]], 0.0)
        return from_log(sealed), [each.record for each in refused if each.record is not None]


def from_log(committable: Committable) -> Committable:
    """Return the committable as a coordinator reads it back from the log."""
    return Committable.from_json(json.loads(json.dumps(committable.to_json())))
