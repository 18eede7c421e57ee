"""What a history adds up to. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twopc.cli.timeline import Batch, Failed, Mark, Moment, Written


@dataclass(frozen=True, slots=True)
class Totals:
    """Of all known moments. What the log has pruned and no events file has is not in them, such as the records of a
    batch whose driver was killed during its commits.

    Attributes:
        batches: decided batches, each once.
        records, bytes: of all sinks together.
        crashes: starts of an incarnation after one that recorded no end.
        recoveries: starts that found transactions in doubt, batches that found earlier transactions open or came
            again, and batches that were written again.
        failed: failed runs of batches.
    """

    batches: int
    records: int
    bytes: int
    transactions: int
    crashes: int
    recoveries: int
    retries: int
    failed: int


def totals(moments: Sequence[Moment]) -> Totals:
    """Add ``moments`` up."""
    batches = [moment for moment in moments if isinstance(moment, Batch)]
    sinks = by_sink(moments)
    return Totals(
        batches=len({batch.batch_id for batch in batches}),
        records=sum(sink.records for sink in sinks),
        bytes=sum(sink.bytes for sink in sinks),
        transactions=sum(sink.transactions for sink in sinks),
        crashes=marked(moments, Mark.CRASH),
        recoveries=marked(moments, Mark.RECOVERY),
        retries=sum(batch.retries for batch in batches),
        failed=sum(isinstance(moment, Failed) for moment in moments),
    )


def marked(moments: Iterable[Moment], mark: Mark) -> int:
    """Return how many moments have the mark."""
    return sum(mark in moment.marks for moment in moments)


def by_sink(moments: Iterable[Moment]) -> list[Written]:
    """Return what was written to each sink, by the sink's name."""
    sums: dict[str, list[int]] = {}
    for moment in moments:
        if isinstance(moment, Batch):
            for written in moment.written:
                of_sink = sums.setdefault(written.sink, [0, 0, 0])
                for place, count in enumerate((written.records, written.bytes, written.transactions)):
                    of_sink[place] += count
    return [Written(sink, *of_sink) for sink, of_sink in sorted(sums.items())]
