"""Leaves records that a sink can't write out of its transaction, and returns them with the reason.

A refused record raises ``RecordRefused``, which fails the batch, and fails it again after a restart. If another sink
takes such records, the transaction continues without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from twopc.errors import RecordRefused

if TYPE_CHECKING:
    import pyarrow as pa


def first_bad(column: pa.Array, are_fine: Callable[[pa.Array], bool]) -> int | None:
    """Return the position of the first bad value of ``column``, or None. ``are_fine`` returns whether all values of a
    slice are good. The column is bisected, because a failed cast does not name the value."""
    if are_fine(column):
        return None
    first, count = 0, len(column)
    while count > 1:
        half = count // 2
        if are_fine(column.slice(first, half)):
            first, count = first + half, count - half
        else:
            count = half
    return first


def are_utf8(texts: pa.Array) -> bool:
    """Return whether all strings are valid UTF-8. Spark does not check bytes that it treats as a string, for example in
    a cast."""
    try:
        texts.validate(full=True)
    except ValueError:  # ArrowInvalid
        return False
    return True


_FIRST_DAY, _END = -719_162, 2_932_897  # 0001-01-01 and 10000-01-01
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def are_in_years(values: pa.Array) -> bool:
    """Return whether all dates, or timestamps in UTC, are in the years 1 to 9999, the range of most systems.
    Timestamps in nanoseconds always are: they range from 1677 to 2262."""
    import pyarrow as pa
    import pyarrow.compute as pc

    type = values.type
    if pa.types.is_date32(type):
        per_day, numbers = 1, values.cast(pa.int32())
    elif (unit := "ms" if pa.types.is_date64(type) else type.unit) in _PER_DAY:
        per_day, numbers = _PER_DAY[unit], values.cast(pa.int64())
    else:
        return True
    least, most = pc.min_max(numbers).values()
    return not least.is_valid or (_FIRST_DAY * per_day <= least.as_py() and most.as_py() < _END * per_day)


def are_held(values: pa.Array) -> bool:
    """Return whether Python can hold all values: no invalid UTF-8, no year outside 1 to 9999, no nanoseconds. pyarrow
    silently drops nanoseconds only from times of day, so those are cast first."""
    try:
        values.cast(_without_nanoseconds(values.type)).to_pylist()
    except (ValueError, OverflowError):
        return False
    return True


def _without_nanoseconds(type: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return pa.list_(_without_nanoseconds(type.value_type))
    if pa.types.is_fixed_size_list(type):
        return pa.list_(_without_nanoseconds(type.value_type), type.list_size)
    if pa.types.is_map(type):
        return pa.map_(*map(_without_nanoseconds, (type.key_type, type.item_type)))
    if pa.types.is_dictionary(type):
        return _without_nanoseconds(type.value_type)
    if pa.types.is_struct(type):
        return pa.struct([each.with_type(_without_nanoseconds(each.type)) for each in type])
    return pa.time64("us") if type == pa.time64("ns") else type


def written_by_halves(write: Callable[[pa.RecordBatch], None], batch: pa.RecordBatch) -> Iterator[RecordRefused]:
    """Write a batch without the records that ``write`` refuses, and yield the refusals. For ``write_valid`` of a sink
    whose target system does not report which record it refuses. ``write`` must leave nothing of a refused batch behind.
    Such a batch is halved, and each half is written in turn, so the records keep their order."""
    try:
        write(batch)
    except RecordRefused as error:
        refused = error
    else:
        return
    if batch.num_rows == 1:
        refused.record = 0
        yield refused
        return
    half = batch.num_rows // 2
    for first, part in (0, batch.slice(0, half)), (half, batch.slice(half)):
        for each in written_by_halves(write, part):
            each.record = first + (each.record or 0)
            yield each


def written_without(write: Callable[[pa.RecordBatch], None], batch: pa.RecordBatch) -> Iterator[RecordRefused]:
    """Write a batch without the records that ``write`` refuses, and yield the refusals. For ``write_valid`` of a sink
    whose ``write`` refuses a record by its position, before it writes any of the batch. The records are written in
    their order. Raises RecordRefused if the refusal names no record of the batch."""
    ahead = [(0, batch)]  # a stack of parts to write, each with the position of its first record
    while ahead:
        first, part = ahead.pop()
        try:
            write(part)
        except RecordRefused as error:
            if error.record is None or not 0 <= error.record < part.num_rows:
                raise
            refused, at = error, error.record
        else:
            continue
        # Slices share the batch's memory. A filtered copy would copy the batch once per bad record.
        around = (first + at + 1, part.slice(at + 1)), (first, part.slice(0, at))
        ahead += [(position, records) for position, records in around if records.num_rows]
        refused.record = first + at
        yield refused


def one_too_many(refused: RecordRefused, at_most: int) -> RecordRefused:
    """Return the error for a bad record beyond the batch's limit."""
    error = RecordRefused(
        f"{at_most} records of the batch were refused before, as many as its limit of bad records. This one:"
        f" {super(RecordRefused, refused).message}"
    )
    vars(error).update(vars(refused))
    return error
