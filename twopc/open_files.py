"""The files that a task has open, when records go to more places than it can keep files open for.

Records of other places wait in memory. Only when too many wait is a file finished to make room, so unsorted records
need few more files than sorted ones.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

MOST_FILES = 32
"""How many files a task has open at a time, by default."""

HELD_BYTES = 48 * 1024 * 1024
"""How many bytes of records the open files may hold together. As many again may wait for a file, and the files' fixed
memory may take as many again. A single file is bounded by its format."""

KEPT_BYTES = 128 * 1024 * 1024
"""How many bytes of already written records the encoders of the open files may keep together."""

PAGE_BYTES = 1024 * 1024
"""At how many bytes Arrow's Parquet writer ends a page, by default."""

COLUMN_BYTES = 700
"""The memory of a column of a record batch beside its values, measured with pyarrow 26."""


def memory_bytes(batch: pa.RecordBatch) -> int:
    """Return the memory that ``batch`` takes: its values, and the objects around each column, which dominate in short
    batches."""
    return int(batch.nbytes + COLUMN_BYTES * batch.num_columns)


def _copied(records: pa.RecordBatch) -> pa.RecordBatch:
    """Copy records into their own memory. Spark sends a record batch as one buffer, so any of its columns keeps all of
    them in memory."""
    import pyarrow as pa

    return pa.concat_batches([records])


class Encoder(Protocol):
    """Writes records to one file.

    Attributes:
        held_bytes: the Arrow size of the records not yet written to the file. Bounded.
        kept_bytes: the Arrow size of the records that it keeps although they are written.
        fixed_bytes: its memory that does not depend on the records; 0 if it is small.
    """

    @property
    def held_bytes(self) -> int: ...

    @property
    def kept_bytes(self) -> int: ...

    @property
    def fixed_bytes(self) -> int: ...

    def write(self, records: pa.RecordBatch, /) -> None:
        """Write records, or hold them."""

    def flush(self) -> None:
        """Write held records to the file, if its format can do that in the middle of a file."""

    def finish(self) -> None:
        """Write everything and complete the file. If this fails, ``discard`` follows."""

    def discard(self) -> None:
        """Release held records. The file is no longer wanted."""


class OpenFile(Encoder, Protocol):
    """A file that is being written. ``finish`` and ``discard`` close it.

    Attributes:
        room: how many more records the file can take; None for any number. Not 0 before the first.
        is_full: whether the file must be finished.
    """

    @property
    def room(self) -> int | None: ...

    @property
    def is_full(self) -> bool: ...


PlaceT = TypeVar("PlaceT")
FileT = TypeVar("FileT", bound=OpenFile)


class OpenFiles(Generic[PlaceT, FileT]):
    """Writes each record to a file of its place. Not thread-safe.

    ``create`` creates a file for each given place without an open file. It gets as many places at a time as possible,
    so that one request can announce the files. At most ``most_files`` are open at a time. ``fixed_bytes`` is that of
    every file, if known before the first.
    """

    def __init__(
        self,
        create: Callable[[Sequence[PlaceT]], Iterable[FileT]],
        most_files: int = MOST_FILES,
        fixed_bytes: int | None = None,
    ) -> None:
        self._create = create
        self._most_files = most_files
        self._largest_fixed_bytes = fixed_bytes
        # Place → open file, the least recently written first.
        self._open: dict[PlaceT, FileT] = {}
        # Place without an open file → waiting records.
        self._waiting: dict[PlaceT, list[pa.RecordBatch]] = {}
        self._waiting_bytes: Counter[PlaceT] = Counter()

    def write(self, parts: Iterable[tuple[PlaceT, pa.RecordBatch]]) -> None:
        """Write records to files of their places. Raises what ``create`` and the files raise."""
        given = list(parts)
        self._open_each([*dict.fromkeys(place for place, _ in given if place not in self._open)])
        for place, records in given:
            if place in self._open or self._room():
                self._write(place, records)
            else:
                self._wait(place, records)
            self._hold_less()

    def finish(self) -> None:
        """Write the waiting records, then finish every file. Raises what ``create`` and the files raise."""
        self._finish_each()
        while self._waiting:
            self._open_each([*self._waiting])
            for place in [*self._open]:
                self._write_waiting(place)
            self._finish_each()

    def discard(self) -> None:
        """Discard the waiting records and every open file. Raises what the files raise, after all are discarded."""
        self._waiting.clear()
        self._waiting_bytes.clear()
        with contextlib.ExitStack() as discards:
            while self._open:
                discards.callback(self._open.popitem()[1].discard)

    def _room(self) -> int:
        """Return how many more files may be opened, assuming the fixed memory of the largest so far."""
        free = self._most_files - len(self._open)
        if self._largest_fixed_bytes is None:
            return min(free, 1)
        if self._largest_fixed_bytes:
            left_bytes = HELD_BYTES - sum(file.fixed_bytes for file in self._open.values())
            free = min(free, math.ceil(left_bytes / self._largest_fixed_bytes))
        return max(free, 0)

    def _open_each(self, places: Sequence[PlaceT]) -> None:
        """Open files for as many places as allowed."""
        while places and (room := self._room()):
            some, places = places[:room], places[room:]
            for place, file in zip(some, self._create(some), strict=True):
                self._open[place] = file
                self._largest_fixed_bytes = max(self._largest_fixed_bytes or 0, file.fixed_bytes)

    def _wait(self, place: PlaceT, records: pa.RecordBatch) -> None:
        """Hold ``records`` because no further file may be opened. If too many records wait, finish a file and open one
        for the place with the most waiting records."""
        self._waiting.setdefault(place, []).append(_copied(records))
        self._waiting_bytes[place] += memory_bytes(records)
        if sum(self._waiting_bytes.values()) > HELD_BYTES:
            self._finish(next(iter(self._open)))
            # That place has at least as many bytes as ``place``, so no more wait afterwards than before this call.
            [(place, _)] = self._waiting_bytes.most_common(1)
            self._write_waiting(place)

    def _write_waiting(self, place: PlaceT) -> None:
        del self._waiting_bytes[place]
        for records in self._waiting.pop(place, ()):
            self._write(place, records)

    def _write(self, place: PlaceT, records: pa.RecordBatch) -> None:
        """Write ``records``, after the waiting ones, to the open file of ``place`` or to new files."""
        self._write_waiting(place)
        rest = records
        while rest.num_rows:
            file = self._open.pop(place, None) or next(iter(self._create([place])))
            self._open[place] = file  # as the most recently written
            room = rest.num_rows if file.room is None else file.room
            taken, rest = rest.slice(0, room), rest.slice(room)
            file.write(taken)
            if file.is_full:
                self._finish(place)

    def _hold_less(self) -> None:
        """Flush or finish the files that take the most memory. Upholds: memory is bounded, however many are open."""
        while len(self._open) > 1 and sum(file.held_bytes for file in self._open.values()) > HELD_BYTES:
            place, file = max(self._open.items(), key=lambda item: item[1].held_bytes)
            file.flush()
            if file.held_bytes:
                self._finish(place)
        while len(self._open) > 1 and sum(file.kept_bytes for file in self._open.values()) > KEPT_BYTES:
            self._finish(max(self._open, key=lambda place: self._open[place].kept_bytes))

    def _finish(self, place: PlaceT) -> None:
        # The file counts as open until it is closed, so that it is discarded if this fails.
        self._open[place].finish()
        del self._open[place]

    def _finish_each(self) -> None:
        for place in [*self._open]:
            self._finish(place)


class RowGroups:
    """Collects the records of one file into row groups, and writes each when it is full. One row group per Spark batch
    of 10 000 rows would be too small: columns would hardly compress, and readers would spend their time on metadata.

    Args:
        write: writes a row group.
        most_bytes: the Arrow size of a full row group.

    Attributes:
        held_bytes: like the other attributes, see ``Encoder``.
        kept_bytes: Arrow's Parquet writer keeps the pages of the last row group, plain and compressed, until the next
            one begins or the file is closed.
    """

    fixed_bytes = 0
    room = None

    def __init__(self, write: Callable[[pa.Table], object], most_bytes: int) -> None:
        self._write, self._most_bytes = write, most_bytes
        self._held: list[pa.RecordBatch] = []
        self.held_bytes = self.kept_bytes = 0

    def write(self, records: pa.RecordBatch) -> None:
        """Hold records until their row group is full. Those that fill it are written now, and need no copy."""
        self.held_bytes += memory_bytes(records)
        is_full = self.held_bytes >= self._most_bytes
        self._held.append(records if is_full else _copied(records))
        if is_full:
            self.flush()

    def flush(self) -> None:
        """Write the held records as a row group."""
        if self._held:
            import pyarrow as pa

            self._write(pa.Table.from_batches(self._held))
            self.kept_bytes, self.held_bytes = self.held_bytes, 0
            self._held.clear()

    def discard(self) -> None:
        """Release the held records."""
        self._held.clear()
        self.held_bytes = 0


def values_at_once(records: pa.Table) -> int:
    """Return how many values Arrow's Parquet writer may encode before it looks whether a page is full, by the first row
    group. It takes 1,024 of any size by default, so a page of large records, and what is made of it, would take several
    times the memory of the row group."""
    return max(1, min(1_024, len(records) * PAGE_BYTES // max(1, int(records.nbytes))))


def with_bounds(schema: pa.Schema) -> list[str]:
    """Return the paths of a Parquet file's columns that get bounds, which let readers skip row groups.

    Floats get none: Parquet excludes NaN from bounds, but for Spark and DuckDB NaN is the greatest value, so they would
    skip row groups that contain it. Lists and maps get none, because no reader uses their bounds.
    """
    from pyarrow import types

    leaves = [*_leaves(schema, "")]
    unbounded = {path for path, type in leaves if types.is_floating(type)}  # two columns may share a path
    return [path for path, type in leaves if path not in unbounded and not types.is_nested(type)]


def _leaves(fields: Iterable[pa.Field], within: str) -> Iterator[tuple[str, pa.DataType]]:
    from pyarrow import types

    for field in fields:
        path = f"{within}{field.name}"
        type = field.type.value_type if types.is_dictionary(field.type) else field.type
        if types.is_struct(type):
            yield from _leaves(type, f"{path}.")
        else:
            yield path, type


def split_by(records: pa.RecordBatch, columns: Sequence[pa.Array]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Group records by their values in ``columns``, which must not be empty. Yield the position of each group's first
    record, and the group's records in order. Nulls are equal, and so are NaNs.

    Each group is a copy: a slice would keep all of ``records`` in memory while a file holds it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    tuples = None
    for column in columns:
        encoded = column.dictionary_encode("encode")
        values = encoded.indices.cast(pa.int64())
        if tuples is not None:
            values = pc.add(pc.multiply(tuples, len(encoded.dictionary)), values)
            values = values.dictionary_encode().indices.cast(pa.int64())  # to keep it below the number of records
        tuples = values
    assert tuples is not None
    order = pc.sort_indices(tuples)  # stable
    start = 0
    for end in pc.run_end_encode(tuples.take(order)).run_ends.to_pylist():
        positions = order.slice(start, end - start)
        yield positions[0].as_py(), records if len(positions) == len(records) else records.take(positions)
        start = end


# Partition folders, as Hive and Spark name them. ----------------------------------------------------------------------

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The folder value that Hive and Spark read as null."""

_ESCAPED = {code: f"%{code:02X}" for code in (*range(32), 127, *map(ord, "\"#%'*/:=?\\{[]^"))}
"""The characters that Spark escapes in folder names (``ExternalCatalogUtils``), and NUL. polars can read such names."""


def partition_text(value: Any) -> str | None:
    """Return the value of a partition column as Spark casts it to a string; None for null."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case Decimal():
            return format(value, "f")  # never an exponent
        case dt.date():
            return value.isoformat()
        case _:
            return str(value)


def partition_folder(column: str, value: Any) -> str:
    """Return ``column=value`` as Spark writes it. Different values have different names, except texts that readers
    read as null, which sinks refuse."""
    text = partition_text(value)
    return f"{column.translate(_ESCAPED)}={DEFAULT_PARTITION if text is None else text.translate(_ESCAPED)}"
