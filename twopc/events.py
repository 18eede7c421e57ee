"""What a coordinator tells its observers, as values. A plugin listens by the hook ``twopc_event``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from twopc.phases import Phase
from twopc.transaction import Committable


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
    """The target had rolled ``lost`` back after its decision; its staged records were written again."""

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
    """A target could not answer and is asked again: ``attempt`` calls so far, the next in ``wait_s`` seconds."""

    what: str
    attempt: int
    wait_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """What became of one batch.

    Attributes:
        already_decided: the log had decided it before; nothing was written.
        records, transactions: by sink.
        pre_commit_ms: phase one, the writing included.
        protocol_ms: from the last pre-commit to the end of phase two.
    """

    batch_id: int
    already_decided: bool
    records: dict[str, int]
    transactions: dict[str, int]
    pre_commit_ms: float
    protocol_ms: float


Event: TypeAlias = (
    "PhaseEntered | TransactionCommitted | TransactionReplayed | TransactionAborted | CallRetried | BatchFinished"
)
