"""What a task of the Kafka sinks writes in most tests, and its vote."""

from typing import Any

import pyarrow as pa

from twopc import Participant, Round


def text(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"value": list(values)})


def written(
    sink: Any,
    *batches: pa.RecordBatch | str,
    round: Round = Round(1, 0),  # noqa: B008  # it never changes
    partition: int = 0,
) -> Any:
    """Return the vote of a participant that wrote ``batches``, of which text is a record."""
    with Participant({"orders": sink}, round, partition=partition) as participant:
        for batch in batches:
            participant.write("orders", text(batch) if isinstance(batch, str) else batch)
        return participant.pre_commit()["orders"]


def sealed(sink: Any, *batches: pa.RecordBatch | str, **where: Any) -> Any:
    """Return what a participant wrote as it is decided."""
    [committable] = sink.seal([written(sink, *batches, **where)], age_s=0)
    return committable
