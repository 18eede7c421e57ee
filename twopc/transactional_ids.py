"""The names of transactions: built, bounded and parsed here and nowhere else.

A target such as Kafka keeps every name it has seen for days, so names come from a bounded pool: the incarnation
counts modulo 8 and the batch modulo 4. A zombie would have to outlive eight restarts or four batches to meet its own
name again, and then finds a newer producer epoch. A target that keeps nothing (files) uses the exact name instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from twopc.errors import ConfigurationError, PoolExhausted

INCARNATION_SLOTS = 8
BATCH_SLOTS = 4

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True, order=True, slots=True)
class Round:
    """One attempt at one batch. Never a sum of the two numbers, which two drivers could share."""

    incarnation: int
    batch_id: int

    def __str__(self) -> str:
        return f"batch {self.batch_id}, incarnation {self.incarnation}"


@dataclass(frozen=True, slots=True)
class TransactionId:
    """The name of one transaction: which task attempt of which round writes to which sink of which log."""

    prefix: str
    log_id: str
    sink: str
    round: Round
    partition: int
    stage_attempt: int
    task_attempt: int

    @property
    def exact(self) -> str:
        """Never used twice."""
        return self._name(self.round.incarnation, self.round.batch_id)

    @property
    def pooled(self) -> str:
        """Used again after eight incarnations or four batches."""
        return self._name(self.round.incarnation % INCARNATION_SLOTS, self.round.batch_id % BATCH_SLOTS)

    def _name(self, incarnation: int, batch: int) -> str:
        scope = f"{self.prefix}.{self.log_id}.{self.sink}"
        return f"{scope}.{incarnation}.{batch}.{self.partition}.{self.stage_attempt}.{self.task_attempt}"


@dataclass(frozen=True, slots=True)
class TransactionalIdPool:
    """All names that one sink of one log may use. A value: it travels to the participants with its sink."""

    prefix: str
    log_id: str
    sink: str

    def __post_init__(self) -> None:
        for what, value, allowed in (
            ("transactional id prefix", self.prefix, _PREFIX),
            ("log id", self.log_id, _NAME),
            ("sink name", self.sink, _NAME),
        ):
            if not allowed.fullmatch(value):
                raise ConfigurationError(
                    f"{what} {value!r} can't be part of a transactional id: use letters, digits, '_' and '-'"
                )

    @property
    def scope(self) -> str:
        """What every name of this pool starts with, and no name of another pool does."""
        return f"{self.prefix}.{self.log_id}.{self.sink}."

    def allocate(self, round: Round, partition: int, stage_attempt: int, task_attempt: int) -> TransactionId:
        """The name for one task attempt of ``round``. Two attempts never share one."""
        return TransactionId(
            self.prefix, self.log_id, self.sink, round, partition, stage_attempt, task_attempt
        )

    def owns(self, transaction_id: str) -> bool:
        """Whether ``transaction_id`` was allocated here: the scope, then five numbers and nothing else."""
        fields = transaction_id.removeprefix(self.scope).split(".")
        return transaction_id.startswith(self.scope) and len(fields) == 5 and all(f.isdecimal() for f in fields)

    def reserve(self, round: Round, in_doubt: Iterable[str]) -> None:
        """Make sure that no name ``round`` could allocate is in doubt. Upholds: an id in doubt is never reused.

        Raises:
            PoolExhausted: one is. Nothing was written.
        """
        slot = f"{self.scope}{round.incarnation % INCARNATION_SLOTS}.{round.batch_id % BATCH_SLOTS}."
        held = sorted(name for name in in_doubt if name.startswith(slot))
        if held:
            raise PoolExhausted(
                f"{round} of sink {self.sink!r} would reuse the transactional id {held[0]!r}, which is in doubt"
                f" ({len(held)} such ids). Nothing was written. Restart the query: recovery settles them first."
            )
