"""Phase one of a batch, for most tests."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from twopc import Participant, Round, Vote


def writes(
    sinks: Mapping[str, Any], *partitions: pa.RecordBatch | Mapping[str, Any]
) -> Callable[[Round], Iterator[Vote]]:
    """Return a phase one in which each partition writes its records to every sink, and votes."""

    def phase_one(round: Round) -> Iterator[Vote]:
        for partition, records in enumerate(partitions):
            batch = records if isinstance(records, pa.RecordBatch) else pa.record_batch(records)
            with Participant(sinks, round, partition=partition) as participant:
                for name in sinks:
                    participant.write(name, batch)
                yield participant.pre_commit()

    return phase_one
