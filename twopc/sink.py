"""The contract of a sink. Read this file first, then ``protocol.py``.

A sink knows how one target system begins, writes, pre-commits, commits, aborts and enumerates transactions. It decides
nothing. Only the coordinator decides, by one append to the commit log.

Participants (Spark's tasks) call ``validate``, ``begin``, ``write`` or ``write_valid``, ``pre_commit`` and ``discard``.
The coordinator calls ``validate``, ``open``, ``seal``, ``commit_many``, ``commit`` or ``commit_batch``, ``complete``,
``announce``, ``datasets``, ``abort`` and ``recover``. To write a lost transaction again, it also makes a participant's
calls. ``check`` runs before the query starts, and ``open_transactions`` runs in another process during the query. A
sink is pickled on its way to the participants. Connections and files can't be pickled, so keep them in a
``Transaction``, or open them where they are used.
"""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, final

from twopc.bad_records import written_without
from twopc.checks import CheckResult
from twopc.datasets import Dataset
from twopc.errors import ConfigurationError, RecordRefused
from twopc.replay import ReplayCopies
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import TransactionalIdPool, TransactionId

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on

TransactionT = TypeVar("TransactionT", bound=Transaction)


class TwoPhaseCommitSink(ABC, Generic[TransactionT]):
    """One target system that can prepare a write and later commit it or roll it back, from another process.

    Subclasses implement the six abstract methods: ``begin``, ``write``, ``pre_commit``, ``commit``, ``abort`` and
    ``recover``. Every sink inherits ``pending``, the ordered map of transactions to commit, and ``transactional_ids``,
    the pool that names transactions.
    """

    prefix: str = "twopc"
    """The first part of every transactional id of this sink, for target systems that grant rights by name. The log
    records it, because recovery would not find open transactions under another prefix."""

    may_time_out: bool = False
    """Whether the target system may roll back a decided transaction, for example after a timeout. Only such sinks get
    replay copies."""

    seals_within_s: float | None = None
    """How long participants may write a batch, in seconds. ``seal`` refuses an older batch, because the target system
    could roll it back before its commit. None for no limit. Read on the coordinator, after ``open``."""

    commits_last: bool = False
    """Commit this sink only after all others have completed the batch. For sinks that publish progress, such as
    consumer-group offsets, which must never run ahead of the data."""

    output_folder: str | None = None
    """The folder, as a path or URL, in which readers read files as records; None if the sink writes no files. Commit
    logs, replay copies and checkpoints must be outside it, or under a name that its readers skip."""

    refuses_before_writing: bool = False
    """Whether ``write`` refuses a bad record, by its position, before it writes any record of the batch. If so, the
    default ``write_valid`` writes the other records."""

    @abstractmethod
    def begin(self, transaction_id: TransactionId) -> TransactionT:
        """Start a transaction for one task attempt. Cheap, and without effect on any reader."""

    @abstractmethod
    def write(self, transaction: TransactionT, batch: pa.RecordBatch) -> None:
        """Write one Arrow record batch, never an empty one, into ``transaction``. Readers do not see it yet."""

    def write_valid(self, transaction: TransactionT, batch: pa.RecordBatch) -> Iterator[RecordRefused]:
        """Write the records that the sink accepts, and yield a refusal for each of the others, with its position in
        ``batch``.

        Called instead of ``write`` if the query has a sink for bad records. The default refuses the whole batch, as
        ``write`` does, unless the sink ``refuses_before_writing``.

        Raises:
            RecordRefused: the refusal does not concern a single record of this batch.
        """
        if self.refuses_before_writing:
            yield from written_without(functools.partial(self.write, transaction), batch)
        else:
            self.write(transaction, batch)

    @abstractmethod
    def pre_commit(self, transaction: TransactionT) -> Committable:
        """Vote yes. On return every record is durable in the target system, invisible to committed readers, and can be
        committed by another process after this one is killed.

        Raises:
            Exception: a record could not be delivered. The vote is no.
        """

    @abstractmethod
    def commit(self, committable: Committable) -> None:
        """Make a decided transaction visible. Idempotent: committing a committed transaction succeeds.

        Raises:
            Retriable: the target system could not answer; the coordinator repeats the call without limit.
            TransactionLost: the target system has rolled the transaction back.
            OutcomeUnknown: the target system can't report what became of the transaction.
        """

    def commit_many(self, committables: Sequence[Committable]) -> Collection[str]:  # noqa: ARG002
        """Try to commit decided transactions at a lower cost than one by one. Return the ids of the transactions that
        this call has committed. Each counts as if ``commit`` had returned for it.

        The coordinator calls ``commit`` for each of the others. ``commit`` alone determines their outcome, even if a
        request of this call arrives late. Errors are logged and do not stop the commit. This sink's commits wait for
        the call, so it must end in bounded time.
        """
        return ()

    @property
    def commits_many(self) -> bool:
        """Whether ``commit_many`` matches ``commit``. False if a subclass overrides ``commit`` alone."""
        order = [vars(each) for each in type(self).__mro__]
        many, one = (next(n for n, own in enumerate(order) if name in own) for name in ("commit_many", "commit"))
        return many <= one

    @abstractmethod
    def abort(self, committable: Committable) -> None:
        """Roll back exactly the transaction that ``committable`` identifies, and never a later one with the same name.
        Idempotent: aborting a transaction that is gone succeeds.
        """

    @abstractmethod
    def recover(self) -> Iterable[Committable]:
        """List every transaction that is open in the target system and owned by ``transactional_ids``, whichever
        process began it.

        The method only lists. The coordinator commits what the log has decided and aborts the rest (presumed abort).
        """

    def discard(self, transaction: TransactionT) -> None:
        """Give up a live transaction, on the participant that began it. The default aborts it by its name.

        Override this method to release a connection or files. A sink that leases names must override this, because the
        target system does not know its transactions by their exact names. The coordinator aborts transactions that stay
        open.
        """
        self.abort(Committable(transaction.id.exact, {}))

    def validate(self, schema: pa.Schema) -> None:
        """Refuse a schema that the sink can't write, before anything is written. Runs on the coordinator if it knows
        the schema, else on the participant. For the first batch, this runs before the sink is bound to a log, so it
        must not use ``transactional_ids``.

        Raises:
            Refused: the sink can't write such records; the message names the column or the option.
            Retriable: the target system could not answer; the call is repeated without limit.
        """

    def open(self) -> None:
        """Check that the target system can do what the sink needs. Called on the coordinator as each incarnation
        starts.

        Read-only commands call this method, too, so it must leave no data behind.
        """

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:  # noqa: ARG002
        """Veto the batch, or return the transactions that go into the decision. Called once for all transactions, on
        the coordinator, just before the decision.

        Args:
            committables: one per transaction, from every winning participant that wrote to this sink.
            age_s: seconds since phase one began, by the coordinator's clock alone. No transaction is older.

        Returns:
            The same transactions in the same order, with the handles that their commits will need.

        Raises:
            Retriable: the target system could not answer; the call is repeated, with a greater age.
            Exception: a transaction can't be committed any more. The round is aborted.
        """
        return committables

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """Publish a batch whose transactions are all committed, in this sink and in all others except those that commit
        last. Called on the coordinator.

        Use this for metadata that readers of whole batches need, such as a manifest. Called for every decided batch, in
        order, even one without transactions. Called again after a crash, so it must be idempotent. Raises the same
        errors as ``commit``. ``commit`` must detect a lost transaction itself, because ``twopc abandon`` calls only
        ``commit``.
        """

    def announce(
        self,
        batch_id: int,
        committed: Mapping[str, Sequence[Committable]],
        given_up: Mapping[str, Sequence[Committable]],
    ) -> None:
        """Tell readers that a batch is complete in every sink, including those that commit last. Called on the
        coordinator.

        Use this for signals that span several sinks or transactions, such as a batch marker. Called for every decided
        batch, in order, after ``complete`` has returned for every sink. Called again after a crash, even if it had
        returned, so readers must recognize a repeated announcement. Raises the same errors as ``complete``.

        Args:
            batch_id: the batch.
            committed: sink name → its transactions, as the log records them now. Lost transactions are replaced by
                those that were written instead.
            given_up: sink name → its transactions that an operator gave up. Their outcome may be unknown, so readers
                may see their records.
        """

    def check(self) -> Iterable[CheckResult]:
        """Report what the target system would refuse or could lose. Called by ``twopc doctor``, before the query
        starts.

        A check that needs a transaction begins one under this sink's names and rolls it back. Checks leave nothing
        behind, change nothing that a reader sees, and create nothing that is missing.

        Raises:
            TwoPhaseCommitError: no further check is possible.
        """
        return ()

    def open_transactions(self) -> OpenTransactions:
        """Count the transactions that ``recover`` lists, and report their age if the target system records it. Called
        by ``twopc serve-metrics``, in its own process, while the query runs. Changes nothing.

        Raises:
            TwoPhaseCommitError: the target system does not answer.
        """
        return OpenTransactions(sum(1 for _ in self.recover()))

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset] | None:  # noqa: ARG002
        """Name the datasets that transactions of a decided batch write to, for lineage. Called on the coordinator,
        which only logs an error. Must make no request.

        Use the names that other programs use for the same table, topic or folder (``twopc.datasets``), without
        credentials. Return None, the default, if the sink does not know them, and an empty sequence if it writes no
        dataset.
        """
        return None

    def close(self) -> None:
        """Release what this process holds for the sink. The sink can be used again afterwards."""

    # What every sink inherits: its place in one log, and the schema that it has validated. ---------------------------

    pending: Mapping[int, tuple[Committable, ...]]
    """Batch id → this sink's transactions, for each batch that is decided and not known to be committed, oldest first.
    A view of the coordinator's record, on the coordinator only."""

    replay_copies: ReplayCopies | None = None
    """Where participants copy what they write to this sink, or None."""

    last_batch_id: int | None = None
    """The newest decided batch with transactions of this sink, according to the log, or None. That batch is committed
    unless it is ``pending``. Set on the coordinator only."""

    @property
    def last_committed_batch_id(self) -> int | None:
        """``last_batch_id`` if that batch is committed, else None. If the target system shows only older batches when a
        query starts, it was restored from a backup. ``open`` compares the two where it can."""
        return None if self.last_batch_id in self.pending else self.last_batch_id

    _transactional_ids: TransactionalIdPool
    _validated: pa.Schema | None = None

    def bind(self, name: str, log_id: str, replay_copies: ReplayCopies | None = None) -> None:
        """Bind the sink to its name in one log, and to the folder of its replay copies. The coordinator calls this.

        Raises:
            ConfigurationError: the sink is already bound to another log or name, and would mistake the transactions of
                one for those of the other.
        """
        pool = TransactionalIdPool(self.prefix, log_id, name)
        if getattr(self, "_transactional_ids", pool) != pool:
            raise ConfigurationError(
                f"one {type(self).__name__} is used as {self._transactional_ids.scope!r} and as {pool.scope!r}:"
                " make a sink for each name and for each query"
            )
        self._transactional_ids = pool
        self.pending = {}
        self.replay_copies = replay_copies

    def unbound(self) -> Self:
        """Return a copy that is bound to no log."""
        twin = copy.copy(self)
        twin.__dict__.pop("_transactional_ids", None)
        return twin

    @property
    def transactional_ids(self) -> TransactionalIdPool:
        """The pool that allocates the names of this sink's transactions.

        Raises:
            ConfigurationError: no coordinator uses the sink yet.
        """
        try:
            return self._transactional_ids
        except AttributeError:
            raise ConfigurationError(
                f"this {type(self).__name__} has no transactional ids yet: pass it to a Coordinator or foreach_batch"
            ) from None

    def require_valid(self, schema: pa.Schema) -> None:
        """Call ``validate`` once per schema, and raise like it. The result is pickled with the sink, so participants do
        not ask again."""
        if schema != self._validated:
            self.validate(schema)
            self._validated = schema

    def assume_valid(self, schema: pa.Schema) -> None:
        """Record that another process has validated ``schema``."""
        self._validated = schema

    def __getstate__(self) -> dict[str, object]:
        # Participants have no use for the pending transactions.
        return {name: value for name, value in self.__dict__.items() if name != "pending"}


class WholeBatchSink(TwoPhaseCommitSink[TransactionT]):
    """A sink whose target system makes a whole batch visible at once, as a table format does with one snapshot.

    Subclasses implement ``commit_batch`` instead of ``commit``. If the target system can make a batch of several sinks
    visible with one request, they also override ``commit_group`` and ``commit_together``.
    """

    @abstractmethod
    def commit_batch(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """Make all of this sink's transactions of a decided batch visible at once, as one snapshot of a table.

        Called once for each batch with transactions, in batch order.

        Idempotent: after a crash the call is repeated with the same transactions, or with those of an amended decision
        if the target system had lost some. At any time, an older coordinator may wake up in the middle of its own call.
        Raises the same errors as ``commit``, for the whole batch: after ``TransactionLost`` nothing of it is visible.
        """

    @property
    def commit_group(self) -> Hashable | None:
        """The group of sinks that ``commit_together`` can commit with this one, identified by what they share, such as
        a catalog. None, the default, if this sink commits alone. Read before each commit, so it must make no request
        and raise nothing.
        """
        return None

    @classmethod
    def commit_together(cls, batch_id: int, due: Mapping[Self, Sequence[Committable]]) -> None:
        """Try to make a decided batch visible in several sinks at the same moment, so that no reader sees it in one
        before another.

        Called once, before any ``commit_batch`` of these sinks, if at least two sinks of this class with equal groups
        have transactions in the batch. It may do all of the work, a part or nothing. ``commit_batch`` of each sink
        always follows, and it alone determines the outcome. It must recognize what this call has made visible, even if
        the call raised, and even if one of its requests arrives late. Errors are logged and do not stop the commit.

        The sinks' commits wait for this call, so it must end in bounded time: repeat a request a few times at most.

        Args:
            batch_id: the batch.
            due: sink → its transactions, as ``commit_batch`` gets them.
        """

    @final
    def commit(self, committable: Committable) -> None:
        """Never called: a transaction is visible with its batch or not at all."""
        raise NotImplementedError(f"{committable.transaction_id} is committed by commit_batch, with its whole batch")


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """The open transactions of a sink at one moment.

    Attributes:
        count: the number of open transactions.
        oldest_s: the age of the oldest, in seconds, not negative; 0 if none is open, None if unknown.
        timeout_s: the age at which the target system itself rolls back the oldest; None if it never rolls one back.
        held_back: each place where committed readers are held back, such as a partition → the position that they can't
            read beyond. None if unknown.
    """

    count: int
    oldest_s: float | None = None
    timeout_s: float | None = None
    held_back: Mapping[str, int] | None = None
