"""The contract of a sink whose records replace rows by key, with deletes by key."""

from __future__ import annotations

import functools
import os
import threading
from abc import abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from twopc.bad_records import written_without
from twopc.errors import ConfigurationError, RecordRefused, SchemaMismatch
from twopc.sink import TransactionT, TwoPhaseCommitSink
from twopc.threads import on_threads

if TYPE_CHECKING:
    import pyarrow as pa

FileT = TypeVar("FileT")
ResultT = TypeVar("ResultT")


class KeyedSink(TwoPhaseCommitSink[TransactionT]):
    """A sink that can hold one record per key: a record replaces the existing record with its key, and a delete removes
    the record with its key.

    A batch's transactions name each key at most once, in a ``write`` or in a ``delete``: the caller has grouped the
    records by key and kept the last of each. So the order of a batch's calls does not matter, neither within a
    transaction nor between transactions.

    Batches are committed in order. A commit may be repeated after a crash, or by an older coordinator that wakes up,
    even after a later batch. A commit that is repeated after it has succeeded must change nothing.

    If the sink ``may_time_out``, its ``write`` treats a record as a delete if all columns but the key are null. Replay
    copies store deletes in this form.

    A sink that also commits whole batches inherits from both: ``class LakeSink(WholeBatchSink[T], KeyedSink[T])``.

    Attributes:
        takes_repeated_keys: whether the sink copes with a batch that names a key more than once: the batch leaves one
            row for the key, or is refused. ``format("twopc")`` requires that, because it does not group records by key.
    """

    takes_repeated_keys: ClassVar[bool] = False

    @property
    @abstractmethod
    def key(self) -> tuple[str, ...]:
        """The columns by which records replace each other; empty if this sink only appends. Makes no request."""

    def validate_deletes(self) -> None:
        """Refuse deletes if the target system can't do them. If the sink may get deletes, this runs on the driver
        before the first batch, and before the sink is bound to a log. The default accepts them.

        Raises:
            Refused: the target system can't delete rows by their key; the message says what to do.
            Retriable: the target system could not answer.
        """

    @abstractmethod
    def delete(self, transaction: TransactionT, keys: pa.RecordBatch) -> None:
        """Remove the rows of these keys when ``transaction`` is committed. Readers still see them until then. A key
        without a row is no error.

        Args:
            transaction: the transaction, which may have no records at all.
            keys: the columns of ``key`` in this order, of the types that ``validate`` has accepted. Never empty.

        Raises:
            RecordRefused: a key can't be a value of the column.
        """

    def delete_valid(self, transaction: TransactionT, keys: pa.RecordBatch) -> Iterator[RecordRefused]:
        """Delete the keys that the sink accepts, and yield a refusal for each of the others, with its position in
        ``keys``. Called instead of ``delete`` if the query has a sink for bad records. The default works like the
        default of ``write_valid``: ``refuses_before_writing`` applies to ``delete``, too.

        Raises:
            RecordRefused: the refusal does not concern a single key of this batch.
        """
        if self.refuses_before_writing:
            yield from written_without(functools.partial(self.delete, transaction), keys)
        else:
            self.delete(transaction, keys)


ROWS_AT_ONCE = 2**18
"""How many rows of a file are read at a time. Each comparison with the keys covers at least this many rows, unless they
exceed the limit on bytes."""

READERS = 8
"""The most files that a sink searches for keys at a time."""

BYTES_AT_ONCE = 2**25
"""How many bytes of rows each reader may gather, unless its share of the size of all keys is more."""

_ROW = "__twopc_row"


@dataclass(frozen=True, slots=True)
class Part(Generic[FileT]):
    """Rows of a file in which a sink looks for keys.

    Attributes:
        file: the file.
        first: the position of the first row.
        columns: the rows' key columns, in the order and of the types of the keys.
        may_have: for each key, whether the rows may contain it.
    """

    file: FileT
    first: int
    columns: Sequence[pa.Array]
    may_have: pa.BooleanArray


def in_shares(
    search: Callable[[Sequence[FileT], threading.Event], ResultT], files: Sequence[FileT], is_local: bool
) -> list[ResultT]:
    """Search files on threads, and return each thread's result. Local files get one thread per processor, because more
    threads would take memory and save no time. Files in an object store get ``READERS`` threads, which mostly wait.
    ``search`` passes its event to ``find_rows``."""
    given_up = threading.Event()
    at_once = min(READERS, len(files), (os.cpu_count() or 1) if is_local else READERS)
    if at_once <= 1:
        return [search(files, given_up)]
    shares = [files[number::at_once] for number in range(at_once)]
    return on_threads(lambda share: search(share, given_up), shares, at_once, "twopc-search", given_up.set)


def find_rows(
    keys: pa.Table, parts: Iterable[Part[FileT]], given_up: threading.Event
) -> Iterator[tuple[FileT, array[int]]]:
    """Yield each file with the positions of its rows whose key is one of ``keys``. A file may be yielded several times,
    once per part. ``keys`` contain no nulls.

    A search hashes all of its keys. So parts are gathered until they have as many rows as candidate keys, which makes
    the time per row nearly independent of the number of keys. Parts with many bytes are searched earlier: together, all
    ``READERS`` gather about as much memory as the keys take, or ``BYTES_AT_ONCE`` each. Arrow can't combine 2 GiB of
    ``string``.

    Raises CancelledError at the next part after ``given_up`` is set.
    """
    import pyarrow.compute as pc

    most = max(BYTES_AT_ONCE, keys.nbytes // READERS)
    gathered, rows, size, wanted = list[Part[FileT]](), 0, 0, None
    for part in parts:
        if given_up.is_set():
            raise CancelledError
        gathered.append(part)
        rows += len(part.columns[0])
        size += sum(column.nbytes for column in part.columns)
        wanted = part.may_have if wanted is None else pc.or_kleene(wanted, part.may_have)
        if rows >= max(ROWS_AT_ONCE, wanted.true_count) or size >= most:
            yield from _found(keys.filter(wanted), gathered)
            gathered, rows, size, wanted = [], 0, 0, None
    if gathered:
        yield from _found(keys.filter(wanted), gathered)


def _found(keys: pa.Table, parts: Sequence[Part[FileT]]) -> Iterator[tuple[FileT, array[int]]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [pa.chunked_array(chunks) for chunks in zip(*(part.columns for part in parts), strict=True)]
    positions, begin, first = _positions_of(keys, columns), 0, 0
    for part in parts:
        rows = len(part.columns[0])
        end = bisect_left(range(len(positions)), first + rows, begin, key=lambda at: positions[at].as_py())
        if end > begin:
            in_file = pc.add(pc.subtract(positions.slice(begin, end - begin), first), part.first)
            found = array("Q")
            found.frombytes(memoryview(in_file.buffers()[1])[: found.itemsize * (end - begin)])
            yield part.file, found
        begin, first = end, first + rows


def _positions_of(keys: pa.Table, columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """Return the positions of the rows whose key is one of ``keys``, in ascending order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = [pc.is_in(column, value_set=of_keys) for column, of_keys in zip(columns, keys.columns, strict=True)]
    at = pc.indices_nonzero(functools.reduce(pc.and_, found))
    if len(columns) > 1 and len(at):
        candidates = pa.Table.from_arrays([*(column.take(at) for column in columns), at], [*keys.column_names, _ROW])
        at = candidates.join(keys, keys.column_names, join_type="left semi").sort_by(_ROW).column(_ROW).combine_chunks()
    return at


def key_of(sink: TwoPhaseCommitSink[TransactionT]) -> tuple[str, ...]:
    """Return the columns by which a sink's records replace each other; empty if it only appends."""
    return sink.key if isinstance(sink, KeyedSink) else ()


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """An index that refuses rows because of others: a primary key, a unique index or an exclusion constraint."""

    name: str
    # Its columns; None for an expression or a prefix, and for every column of an index with a condition.
    columns: frozenset[str | None]
    can_replace: bool = True  # whether it can identify the row that a record replaces, if its columns are the key
    # Column in which the index treats different values as equal → why, and what to do.
    inexact: Mapping[str, str] = field(default_factory=dict)

    def may_refuse_an_exchange(self, key: Collection[str], written: Collection[str]) -> bool:
        """Return whether rows with different keys may collide while they exchange their values. The source allowed both
        changes, but no order of the two satisfies the index. ``written``: the columns of the records."""
        return not (self.columns >= {*key} or self.columns.isdisjoint({None, *written}))


def check_key(
    key: Collection[str],
    written: Collection[str],
    indexes: Collection[UniqueIndex],
    table: str,
    *,
    any_replaces: bool = False,
    numbered: Collection[str] | None = None,
) -> None:
    """Check that a record can replace a row of a table by ``key``, and that only the key selects the row. ``written``:
    the columns of the records. ``numbered``: the columns in which the database gives each record a new number; None if
    unknown. ``any_replaces``: whether the database replaces a row that is equal in any unique index.

    Raises SchemaMismatch if the records lack a column of the key. Raises ConfigurationError if no unique index is on
    exactly these columns, if that index treats different keys as equal, or if another unique index may also select a
    row.
    """
    for name in key:
        if name not in written:
            raise SchemaMismatch(f"the records have no column {name!r}, which 'upsert_by' names")
    if not any(index.columns == {*key} and index.can_replace for index in indexes):
        raise ConfigurationError(
            f"{table} has no primary key or unique index on exactly the columns of 'upsert_by' ({', '.join(key)}):"
            " create a unique index on them, on whole columns, not deferrable and without a condition",
            option="upsert_by",
        )
    for index in indexes:
        if index.columns >= {*key} and (names := [name for name in key if name in index.inexact]):
            raise ConfigurationError(
                f"column {names[0]!r} of {table} is one of 'upsert_by', and {index.inexact[names[0]]}. Nothing was"
                " written.",
                option="upsert_by",
            )
    for index in indexes:
        if any_replaces:
            why = "A record could replace the row that is equal in it, although another row has its key."
            or_else = "" if numbered is None else ", or do not select its column if the database numbers the rows"
            decides = index.columns != {*key} and index.columns.isdisjoint(numbered or ())
        else:
            why = "A source may exchange its values between two rows, and no order of the two changes satisfies it."
            or_else = ", or do not select its columns"
            decides = index.may_refuse_an_exchange(key, written)
        if decides:
            raise ConfigurationError(
                f"{table} has another unique index, {index.name}, than that of 'upsert_by'. {why} Nothing was written."
                f" Drop it or make it an index that is not unique{or_else}.",
                option="upsert_by",
            )
