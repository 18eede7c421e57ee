"""What becomes of each transaction, by the log's word. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from twopc.entries import Decision, Entry
from twopc.transaction import Committable, JsonValue
from twopc.transactional_ids import Round, TransactionalIdPool


class Verdict(Enum):
    """The keys are for programs; what they mean is for people."""

    DECIDED = "decided"
    ENDED = "ended"
    UNDECIDED = "undecided"
    CURRENT = "current"
    NEWER = "newer"

    @property
    def meaning(self) -> str:
        return _MEANING[self]


_MEANING = {
    Verdict.DECIDED: "decided: will be committed",
    Verdict.ENDED: "decided, not open: was committed or is lost; the commit, repeated, tells",
    Verdict.UNDECIDED: "undecided: will be aborted",
    Verdict.CURRENT: "undecided, of the newest round: a driver that runs may decide it; resolve fences it and aborts",
    Verdict.NEWER: "of a newer incarnation than this log knows: is it an old copy of the log? resolve aborts",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One transaction with the log's verdict. ``batch_id`` and ``records`` are known of what is decided."""

    sink: str
    verdict: Verdict
    committable: Committable
    batch_id: int | None = None

    @property
    def is_open(self) -> bool:
        return self.verdict is not Verdict.ENDED

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "sink": self.sink,
            "transaction_id": self.committable.transaction_id,
            "verdict": self.verdict.value,
            "open": self.is_open,
            "batch_id": self.batch_id,
            "records": self.committable.records,
        }


def judge(tail: Entry, pool: TransactionalIdPool, open_: Iterable[Committable]) -> list[Judged]:
    """The verdict on every transaction that is open in the target of the sink of ``pool``, or decided for it.

    ``tail`` must have been read after ``open_`` was listed: what was decided in between is then known as decided.
    """
    found = list(open_)
    rows = [
        Judged(pool.sink, Verdict.DECIDED if _is_among(committable, found) else Verdict.ENDED, committable, batch_id)
        for batch_id, committable in _decided(tail.unresolved, pool.sink)
    ]
    decided = [row.committable for row in rows]
    undecided = [committable for committable in found if not _is_among(committable, decided)]
    return rows + [Judged(pool.sink, _of_undecided(tail, pool, c.transaction_id), c) for c in undecided]


def _decided(decisions: Iterable[Decision], sink: str) -> list[tuple[int, Committable]]:
    return [(decision.batch_id, c) for decision in decisions for c in decision.committables.get(sink, ())]


def _is_among(committable: Committable, others: list[Committable]) -> bool:
    return any(committable.is_same_transaction(other) for other in others)


def _of_undecided(tail: Entry, pool: TransactionalIdPool, transaction_id: str) -> Verdict:
    numbers = _numbers(pool, transaction_id)
    is_exact = len(numbers) == len(_numbers(pool, pool.allocate(Round(0, 0), 0).exact))
    if is_exact and numbers[0] > tail.incarnation:
        return Verdict.NEWER
    newest = pool.allocate(Round(tail.incarnation, 0 if tail.decided is None else tail.decided + 1), 0)
    of_newest = _numbers(pool, newest.exact if is_exact else newest.pooled)
    return Verdict.CURRENT if tail.kind != "close" and numbers[:2] == of_newest[:2] else Verdict.UNDECIDED


def _numbers(pool: TransactionalIdPool, transaction_id: str) -> list[int]:
    """Incarnation and batch (modulo the pool's sizes, where the name is pooled), then what names the attempt."""
    return [int(number) for number in transaction_id.removeprefix(pool.scope).split(".")]
