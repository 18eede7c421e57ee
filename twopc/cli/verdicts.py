"""The log's verdict on each transaction. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from twopc.log.entries import Entry
from twopc.transaction import Committable, JsonValue, among
from twopc.transactional_ids import TransactionalIdPool


class Verdict(Enum):
    """The log's verdict on a transaction. Values are for programs, meanings for operators."""

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
    Verdict.ENDED: "decided, not open: committed or lost; only a repeated commit shows which",
    Verdict.UNDECIDED: "undecided: will be aborted",
    Verdict.CURRENT: "undecided, of a round that a running driver may write; resolve fences that driver and aborts",
    Verdict.NEWER: "of a newer incarnation than this log knows: perhaps LOG is an old copy; resolve aborts",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One transaction with the log's verdict. ``batch_id`` and ``records`` are known for decided transactions."""

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
    """Return the verdict on every transaction that is open in the sink of ``pool``, or decided for it.

    ``tail`` must be read after ``open_`` is listed, so that a transaction decided in between counts as decided.
    """
    found = list(open_)
    is_open = among(found)
    rows = [
        Judged(pool.sink, Verdict.DECIDED if is_open(each) else Verdict.ENDED, each, decision.batch_id)
        for decision in tail.unresolved
        for each in decision.committables.get(pool.sink, ())
    ]
    undecided = itertools.filterfalse(among(row.committable for row in rows), found)
    return rows + [Judged(pool.sink, _judge_undecided(tail, pool, c.transaction_id), c) for c in undecided]


def _judge_undecided(tail: Entry, pool: TransactionalIdPool, transaction_id: str) -> Verdict:
    # A running driver writes the batch after the newest decided one, and replaces lost transactions of decided batches.
    following = 0 if tail.decided is None else tail.decided + 1
    unresolved = [decision.batch_id for decision in tail.unresolved]
    if pool.owns_exact(transaction_id):
        round = pool.round_of(transaction_id)
        if round.incarnation > tail.incarnation:
            return Verdict.NEWER
        is_again = round.batch_id in unresolved and pool.is_replay(transaction_id)
        is_current = round.incarnation == tail.incarnation and (is_again or round.batch_id == following)
    else:
        is_current = any(pool.may_be_of(transaction_id, batch_id) for batch_id in (following, *unresolved))
    return Verdict.CURRENT if tail.kind != "close" and is_current else Verdict.UNDECIDED
