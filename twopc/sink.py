"""The contract of a sink. Read this file first, then ``coordinator.py``.

A sink says how one system begins, writes, pre-commits, commits, aborts and enumerates transactions. It decides
nothing: the coordinator does, by one append to the commit log. On the participants (Spark's tasks) run ``begin``,
``write``, ``pre_commit`` and ``abort``; on the coordinator ``validate``, ``seal``, ``commit``, ``complete``, ``abort``
and ``recover``; before there is either, ``check``. A sink is pickled on its way to the participants, so what can't be
pickled (connections, files) belongs into a ``Transaction`` or is made where it is used.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from twopc.checks import CheckResult
from twopc.errors import ConfigurationError
from twopc.pending import PendingTransactions
from twopc.replay import ReplayCopies
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import TransactionalIdPool, TransactionId

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on

TransactionT = TypeVar("TransactionT", bound=Transaction)


class TwoPhaseCommitSink(ABC, Generic[TransactionT]):
    """One system that can prepare a write and later commit it or roll it back, from another process.

    Subclasses write the five abstract methods and ``write``. Every sink inherits the pending-transaction ordered map
    (``pending``) and the transactional-id pool (``transactional_ids``).
    """

    prefix: str = "twopc"
    """What the names of all its transactions start with; grant rights on it where the target has access control. A log
    keeps it: with another, what is open would not be found."""

    may_time_out: bool = False
    """Whether the target may roll back what is decided, such as after a time-out. Then staging is for this sink."""

    commits_last: bool = False
    """Whether its part of a batch is committed only when the batch is complete in all other sinks: for what tells
    readers how far those are, which must never be ahead of them."""

    output_folder: str | None = None
    """The folder whose files readers take for records, as path or URL, or None where the sink writes no files. Logs,
    copies and checkpoints must lie outside of it, or below a name that its readers pass over."""

    pending: PendingTransactions
    replay_copies: ReplayCopies | None = None
    _transactional_ids: TransactionalIdPool
    _validated: pa.Schema | None = None

    @abstractmethod
    def begin(self, transaction_id: TransactionId) -> TransactionT:
        """Start a transaction for one task attempt. Cheap, and without effect on any reader."""

    @abstractmethod
    def write(self, transaction: TransactionT, batch: pa.RecordBatch) -> None:
        """Write one Arrow record batch, never empty, into ``transaction``. Not visible to readers."""

    @abstractmethod
    def pre_commit(self, transaction: TransactionT) -> Committable:
        """Vote yes. On return every record is durable in the target, invisible to committed readers, and can be
        committed by another process after this one is killed.

        Raises:
            Exception: any record could not be delivered. The vote is no.
        """

    @abstractmethod
    def commit(self, committable: Committable) -> None:
        """Make a decided transaction visible. Idempotent: what is committed already is a success.

        Raises:
            Retriable: the target could not answer; the coordinator repeats the call without limit.
            TransactionLost: the target has rolled the transaction back.
            OutcomeUnknown: the target can't say.
        """

    @abstractmethod
    def abort(self, transaction: TransactionT | Committable) -> None:
        """Roll back a live transaction (on the participant that began it) or the one that a committable names,
        exactly that one and never a later one of the same name. Idempotent: what does not exist is a success.
        """

    @abstractmethod
    def recover(self) -> Iterable[Committable]:
        """Every transaction that is open in the target and owned by ``transactional_ids``, whoever began it.

        It only enumerates. The coordinator commits what the log has decided and aborts the rest (presumed abort).
        """

    def validate(self, schema: pa.Schema) -> None:
        """Before anything is written: can records of this schema be written at all? On the coordinator, where it knows
        the schema, else on the participant.

        Raises:
            Refused: no; the message names the column or the option.
            Retriable: the target could not answer; the call is repeated without limit.
        """

    def open(self) -> None:
        """On the coordinator, at the start of each incarnation: look at the target, refuse what it can't do."""

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:  # noqa: ARG002
        """On the coordinator, just before the decision: the last chance to veto, for all transactions at once.

        Args:
            committables: of every winning participant that wrote to this sink.
            age_s: seconds since phase one began, by the coordinator's clock alone: none of them is older.

        Returns:
            The committables as they go into the decision, in the same order, with what the commit will need.

        Raises:
            Retriable: the target could not answer; the call is repeated, with a greater age.
            Exception: a transaction can't be committed any more. The round is aborted.
        """
        return committables

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """On the coordinator: every transaction of a batch is committed, in this sink and all others but those that
        commit last.

        For what readers of whole batches look at. Called for every decided batch, in order, also for one without
        transactions; and again after a crash, so it must be idempotent. Raises like ``commit``.
        """

    def check(self) -> Iterable[CheckResult]:
        """For ``twopc doctor``, before there is a query: what the target would refuse, or could lose.

        What can be tried is tried, by transactions under this sink's names that are rolled back. It leaves nothing
        behind, changes nothing that a reader sees, and makes nothing that is missing.

        Raises:
            TwoPhaseCommitError: as soon as nothing else can be found out.
        """
        return ()

    def close(self) -> None:
        """Release what this process holds for the sink. It can be used again afterwards."""

    # What every sink shares. ------------------------------------------------------------------------------------

    def bind(self, name: str, log_id: str, replay_copies: ReplayCopies | None = None) -> None:
        """Tie the sink to its name in one log, and to where its replay copies lie. Called by the coordinator.

        Raises:
            ConfigurationError: it is tied to another already, whose transactions it would take for its own.
        """
        pool = TransactionalIdPool(self.prefix, log_id, name)
        if getattr(self, "_transactional_ids", pool) != pool:
            raise ConfigurationError(
                f"one {type(self).__name__} is used as {self._transactional_ids.scope!r} and as {pool.scope!r}:"
                " make a sink for each name and for each query"
            )
        self._transactional_ids = pool
        self.pending = PendingTransactions()
        self.replay_copies = replay_copies

    def require_valid(self, schema: pa.Schema) -> None:
        """``validate`` each schema once; the answer travels to the participants with the sink. Raises like that."""
        if schema != self._validated:
            self.validate(schema)
            self._validated = schema

    def unbound(self) -> Self:
        """A copy that is tied to no log."""
        twin = copy.copy(self)
        twin.__dict__.pop("_transactional_ids", None)
        return twin

    @property
    def transactional_ids(self) -> TransactionalIdPool:
        """The pool of names that this sink's transactions are allocated from.

        Raises:
            ConfigurationError: the sink is not used by a coordinator yet.
        """
        try:
            return self._transactional_ids
        except AttributeError:
            raise ConfigurationError(
                f"this {type(self).__name__} has no transactional ids yet: pass it to a Coordinator or foreach_batch"
            ) from None

    def __getstate__(self) -> dict[str, object]:
        # What is pending is known to the coordinator alone and is no business of a participant.
        return {name: value for name, value in self.__dict__.items() if name != "pending"}
