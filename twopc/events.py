"""What a coordinator tells its observers, as values. A plugin listens by the hook ``twopc_event``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from twopc.phases import Phase
from twopc.transaction import Committable

OPERATOR_AFTER_S = 60.0
"""How long a call is repeated before an operator is told: longer than most brokers take to restart."""


@dataclass(frozen=True, slots=True)
class PhaseEntered:
    """The coordinator goes into ``phase``; nothing of it has been done yet. ``batch_id`` is None outside a batch."""

    phase: Phase
    batch_id: int | None


@dataclass(frozen=True, slots=True)
class TransactionCommitted:
    """One decided transaction is committed, now or before. ``recovered``: by a later incarnation than its own."""

    sink: str
    batch_id: int
    committable: Committable
    recovered: bool


@dataclass(frozen=True, slots=True)
class TransactionReplayed:
    """The target had rolled ``lost`` back after its decision; its replay copy's records were written again."""

    sink: str
    batch_id: int
    lost: Committable
    replacement: Committable


@dataclass(frozen=True, slots=True)
class TransactionAborted:
    """One transaction that was open and not decided is rolled back."""

    sink: str
    committable: Committable
    recovered: bool


@dataclass(frozen=True, slots=True)
class CallRetried:
    """A target could not answer and is asked again: ``attempt`` calls in ``waited_s`` seconds so far, the next in
    ``wait_s`` seconds. From 60 seconds on it is for an operator."""

    what: str
    attempt: int
    wait_s: float
    reason: str
    waited_s: float = 0.0

    @property
    def needs_operator(self) -> bool:
        return self.waited_s >= OPERATOR_AFTER_S


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """What became of one batch, in figures.

    Attributes:
        owner: the query's name in its log; a process may run several.
        already_decided: the log had decided it before; nothing was written, so nothing stands in the next three.
        records, bytes, transactions: by sink. Bytes are those of the records as Arrow holds them in memory.
        phases_ms: time in each phase that it went through, by the phase's name. Pre-committing includes the writing.
        retries: of calls that a target could not answer, on the coordinator.
        recovered: transactions left by earlier incarnations, committed or rolled back before the batch began.
    """

    owner: str
    batch_id: int
    already_decided: bool
    records: dict[str, int]
    bytes: dict[str, int]
    transactions: dict[str, int]
    phases_ms: dict[str, float]
    retries: int
    recovered: int

    def __str__(self) -> str:
        written = [
            f"{self.records[name]} records ({self.bytes[name]} bytes) in {count} transactions to {name}"
            for name, count in self.transactions.items()
        ]
        phases = [f"{phase} {spent_ms:.0f} ms" for phase, spent_ms in self.phases_ms.items()]
        what = "; ".join(written) or "committed before, nothing written"
        rest = ", ".join([*phases, f"{self.retries} retries", f"{self.recovered} recovered"])
        return f"batch {self.batch_id}: {what}; {rest}"


Event: TypeAlias = (
    "PhaseEntered | TransactionCommitted | TransactionReplayed | TransactionAborted | CallRetried | BatchFinished"
)
