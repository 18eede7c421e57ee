"""The events that a coordinator reports to its observers. A plugin receives them by the hook ``twopc_event``.

Every event has ``owner``, the query's name in its log, because a process may run several queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from twopc.datasets import Dataset
from twopc.phases import Phase
from twopc.transaction import Committable, JsonValue

if TYPE_CHECKING:
    import pyarrow as pa

OPERATOR_AFTER_S = 60.0
"""How long a call is repeated before it needs an operator: longer than most brokers take to restart."""


@dataclass(frozen=True, slots=True)
class PhaseEntered:
    """The coordinator enters ``phase`` and has done nothing in it yet. ``batch_id`` is None outside a batch."""

    phase: Phase
    batch_id: int | None
    owner: str


@dataclass(frozen=True, slots=True)
class TransactionCommitted:
    """A decided transaction is committed, by this call or an earlier one. ``recovered``: by a later incarnation."""

    sink: str
    batch_id: int
    committable: Committable
    recovered: bool
    owner: str


@dataclass(frozen=True, slots=True)
class TransactionReplayed:
    """The target system rolled back ``lost`` after its decision. Its records were written again in ``replacement``,
    from the replay copy or by computing the batch again."""

    sink: str
    batch_id: int
    lost: Committable
    replacement: Committable
    owner: str


@dataclass(frozen=True, slots=True)
class TransactionAborted:
    """An open, undecided transaction is rolled back."""

    sink: str
    committable: Committable
    recovered: bool
    owner: str


@dataclass(frozen=True, slots=True)
class CallRetried:
    """A target system could not answer, and the call is repeated: ``attempt`` calls in ``waited_s`` seconds so far, the
    next in ``wait_s`` seconds. ``owner`` is None for a call outside a coordinator, such as a participant's.
    ``decided_batch_id`` is the decided batch that the call commits or completes; None for any other call."""

    what: str
    attempt: int
    wait_s: float
    reason: str
    waited_s: float = 0.0
    owner: str | None = None
    decided_batch_id: int | None = None

    @property
    def needs_operator(self) -> bool:
        return self.waited_s >= OPERATOR_AFTER_S


@dataclass(frozen=True, slots=True)
class BatchPart:
    """The records that a decided batch has written to one sink.

    Attributes:
        sink: the sink's name.
        records: the number of records.
        datasets: the datasets that the records went to. None if the sink does not name its datasets.
        schema: the schema for which the coordinator last validated the sink. None if only other processes validated
            it, or only before a restart.
    """

    sink: str
    records: int
    datasets: tuple[Dataset, ...] | None
    schema: pa.Schema | None


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """A decided batch is committed and complete in every sink: readers see all of it.

    There is one event per batch, plus one from each later incarnation that finds the batch decided but not yet recorded
    as complete, for example after a crash. ``log_id`` and ``batch_id`` are the same in all of them.

    Attributes:
        parts: what the batch wrote, by sink.
        reads: what the batch read, as passed to ``Coordinator.run``; None if unknown.
        recovered: whether a later incarnation than the batch's own completed it.
        log_id: the id of the commit log, chosen when the log was created.
    """

    batch_id: int
    parts: tuple[BatchPart, ...]
    reads: JsonValue
    recovered: bool
    log_id: str
    owner: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Counts of the records that participants left out of a batch's transactions.

    Attributes:
        unrouted: records that went to no sink, because each output's condition was false or null.
        bad_records: records that a sink refused, and that went to another sink instead.
    """

    unrouted: int = 0
    bad_records: int = 0


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """The metrics of one batch that succeeded.

    Attributes:
        already_decided: the log had already decided the batch. Nothing was written, so the next three attributes are
            empty.
        records, bytes, transactions: counts by sink. Bytes are the records' size in Arrow, in memory.
        phases_ms: the time in each phase of the batch, by the phase's name. Pre-committing includes writing.
        retries: how often a target system could not answer a call of the coordinator.
        recovered: transactions of earlier incarnations that were committed or rolled back before the batch began.
        unrouted, bad_records: see ``LeftOut``.
    """

    batch_id: int
    already_decided: bool
    records: dict[str, int]
    bytes: dict[str, int]
    transactions: dict[str, int]
    phases_ms: dict[str, float]
    retries: int
    recovered: int
    owner: str
    unrouted: int = 0
    bad_records: int = 0

    def __str__(self) -> str:
        written = [
            f"{self.records[name]} records ({self.bytes[name]} bytes) in {count} transactions to {name}"
            for name, count in self.transactions.items()
        ]
        phases = [f"{phase} {spent_ms:.0f} ms" for phase, spent_ms in self.phases_ms.items()]
        if self.unrouted:
            written.append(f"{self.unrouted} records to no sink")
        if self.bad_records:
            written.append(f"{self.bad_records} bad records")
        what = "; ".join(written) or "committed before, nothing written"
        rest = ", ".join([*phases, f"{self.retries} retries", f"{self.recovered} recovered"])
        return f"batch {self.batch_id}: {what}; {rest}"


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """A run of a batch failed, and the coordinator has closed. One event per failed run, even of a fenced coordinator.

    Attributes:
        error: the exception that ``Coordinator.run`` raises. In an event forwarded from a file, this is an exception
            whose class has the same name.
        phases_ms: the time in each phase that the run entered, by the phase's name. The last phase failed.
    """

    batch_id: int
    error: BaseException
    phases_ms: dict[str, float]
    owner: str


Event: TypeAlias = (
    PhaseEntered
    | TransactionCommitted
    | TransactionReplayed
    | TransactionAborted
    | CallRetried
    | BatchCommitted
    | BatchFinished
    | BatchFailed
)
"""Any event that an observer may receive."""
