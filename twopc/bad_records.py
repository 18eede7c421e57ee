"""Records that a sink can't write: they are left out of its transaction, and told with the reason.

A sink that refuses a record raises ``RecordRefused``, which fails the batch, and fails it again after a restart. If
another sink takes such records, the transaction goes on without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from twopc.errors import RecordRefused

if TYPE_CHECKING:
    import pyarrow as pa


def written_without(write: Callable[[pa.RecordBatch], None], batch: pa.RecordBatch) -> Iterator[RecordRefused]:
    """Write a batch without the records that ``write`` refuses, and yield the refusals. For ``write_valid`` of a sink.

    Args:
        write: writes a record batch. If it refuses a record by its position, it has written none of the batch.
        batch: the records.

    Raises:
        RecordRefused: the refusal names no record.
    """
    import pyarrow as pa

    left = list(range(batch.num_rows))
    while left:
        try:
            write(batch if len(left) == batch.num_rows else batch.take(pa.array(left)))
        except RecordRefused as error:
            if error.record is None:
                raise
            refused, position = error, error.record
        else:
            return
        refused.record = left.pop(position)
        yield refused


def one_too_many(refused: RecordRefused, at_most: int) -> RecordRefused:
    """Return the error for a bad record after as many as a batch may have."""
    error = RecordRefused(
        f"{at_most} records of the batch were refused before, the most that 'max_bad_records' allows. This one:"
        f" {super(RecordRefused, refused).message}"
    )
    vars(error).update(vars(refused))
    return error
