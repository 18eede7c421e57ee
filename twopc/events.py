"""What a coordinator reports to its observers, as values. A plugin listens by the hook ``twopc_event``.

Every event ends with ``owner``, the name of the query in its log: a process may run several queries.
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
    """One decided transaction is committed, now or before. ``recovered``: by a later incarnation than its own."""

    sink: str
    batch_id: int
    committable: Committable
    recovered: bool
    owner: str


@dataclass(frozen=True, slots=True)
class TransactionReplayed:
    """The target system had rolled ``lost`` back after its decision. Its records were written again in ``replacement``,
    from the replay copy or because the batch was computed again."""

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
    """A target system could not answer and is asked again: ``attempt`` calls in ``waited_s`` seconds so far, the next
    in ``wait_s`` seconds. ``owner`` is None for a call outside a coordinator, such as a participant's. The call commits
    or completes the decided batch ``decided_batch_id``, or does something else if that is None."""

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
    """What a decided batch has written to one sink.

    Attributes:
        sink: the sink's name.
        records: how many records.
        datasets: what they went to. None if the sink does not name it.
        schema: the schema with which the sink was last validated for the coordinator. None if that was on other
            processes alone, or before a restart.
    """

    sink: str
    records: int
    datasets: tuple[Dataset, ...] | None
    schema: pa.Schema | None


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """A decided batch is committed and complete in every sink: readers see all of it.

    One event per batch, and another one from each later incarnation that finds the batch decided and not yet recorded
    as complete, such as after a crash. ``log_id`` and ``batch_id`` are the same in all of them.

    Attributes:
        parts: what it has written, by sink.
        reads: what it has read, as ``Coordinator.run`` was given it; None if unknown.
        recovered: a later incarnation than the batch's own has completed it.
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
    """What of a batch was left out of its transactions, by the participants' count.

    Attributes:
        unrouted: records that went to no sink, as the condition of each output was false or null for them.
        bad_records: records that a sink refused, and that another sink got instead.
    """

    unrouted: int = 0
    bad_records: int = 0


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """The metrics of one batch that succeeded.

    Attributes:
        already_decided: the log had decided the batch before. Nothing was written, so the next three are empty.
        records, bytes, transactions: counts by sink. Bytes are those of the records as Arrow holds them in memory.
        phases_ms: the time in each phase of the batch, by the phase's name. Pre-committing includes the writing.
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
        error: the exception that ``Coordinator.run`` raises. If the event was forwarded from a file, one whose class
            has the same name.
        phases_ms: the time in each phase that the run entered, by the phase's name. The last one failed.
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
"""What an observer may be given."""
