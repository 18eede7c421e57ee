"""The contract of a sink whose records replace rows: a key, and deletes by it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, ClassVar

from twopc.errors import RecordRefused
from twopc.sink import TransactionT, TwoPhaseCommitSink

if TYPE_CHECKING:
    import pyarrow as pa


class KeyedSink(TwoPhaseCommitSink[TransactionT]):
    """A sink that can hold one record per key: a record replaces the one that is there, and a delete removes it.

    A batch's transactions name each key at most once, in a ``write`` or in a ``delete``: who calls them has brought the
    records of a key together and kept the last. So the order of the calls for a batch does not matter, neither within
    a transaction nor between transactions.

    Batches are committed in their order. A commit may come again, after a crash or from an older coordinator that wakes
    up, even after a later batch: then it must change nothing.

    If the sink ``may_time_out``, its ``write`` takes a record whose columns beside the key are null for a delete. That
    is how a replay copy keeps one.

    A sink that also commits whole batches inherits from both: ``class LakeSink(WholeBatchSink[T], KeyedSink[T])``.

    Attributes:
        takes_repeated_keys: whether a batch whose transactions name a key more than once leaves one row of it, or is
            refused. ``format("twopc")``, which does not bring the records of a key together, needs that.
    """

    takes_repeated_keys: ClassVar[bool] = False

    @property
    @abstractmethod
    def key(self) -> tuple[str, ...]:
        """The columns by which a record replaces the one that is there; empty if this sink only appends. Makes no
        request."""

    def validate_deletes(self) -> None:
        """Refuse deletes that the target system can't do. Runs on the driver before the first batch is written, if the
        sink may get deletes and before it is bound to a log. The default accepts them.

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
        """Delete the keys of a batch that the sink can look for, and yield a refusal for each of the others, with its
        position in ``keys``. Called in place of ``delete`` if bad records are to go elsewhere. The default refuses the
        whole batch, as ``delete`` does.

        Raises:
            RecordRefused: the refusal is not about one key of this batch.
        """
        self.delete(transaction, keys)
        yield from ()


def key_of(sink: TwoPhaseCommitSink[TransactionT]) -> tuple[str, ...]:
    """Return the columns by which records of a sink replace others; empty if it only appends."""
    return sink.key if isinstance(sink, KeyedSink) else ()


def may_refuse_an_exchange(index: Collection[str | None], key: Collection[str], written: Collection[str]) -> bool:
    """Whether rows with different keys may collide in another unique index while they exchange their values. Then no
    order of the two changes satisfies it, although the source has made both.

    Args:
        index: the columns of the index. One that is an expression, or of an index with a condition, is None.
        key: the columns by which a record replaces a row.
        written: the columns that records have.
    """
    columns = {*index}
    return not (columns >= {*key} or columns.isdisjoint({None, *written}))
