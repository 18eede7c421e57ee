"""The names of transactions: built, bounded and parsed here and nowhere else.

A target such as Kafka keeps every name it has seen for days, so names come from a bounded pool: the incarnation
counts modulo 8 and the batch modulo 4. A zombie would have to outlive eight restarts or four batches to meet its own
name again, and then finds a newer producer epoch. A target that keeps nothing (files) uses the exact name instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from twopc.errors import ConfigurationError, CorruptLog, PoolExhausted

INCARNATION_SLOTS = 8
BATCH_SLOTS = 4

_LOG_ID = re.compile(r"[A-Za-z0-9_-]+")
_SINK = re.compile(r"(?![0-9]+$)[A-Za-z0-9_-]+")  # not a number, so that a name has one reading from its end
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
    """The name of one transaction: which task attempt of which round writes to which sink of which log.

    Attributes:
        partition: what it writes; for people.
        serial: tells it from every other attempt of the round.
        replay: how often it was written again after its target had rolled it back.
    """

    prefix: str
    log_id: str
    sink: str
    round: Round
    partition: int
    serial: int
    replay: int

    @property
    def exact(self) -> str:
        """Never used twice."""
        round = self.round
        return f"{self._scope}.{round.incarnation}.{round.batch_id}.{self.partition}.{self.serial}.{self.replay}"

    @property
    def pooled(self) -> str:
        """Used again after eight incarnations or four batches."""
        round = self.round
        slots = f"{round.incarnation % INCARNATION_SLOTS}.{round.batch_id % BATCH_SLOTS}"
        return f"{self._scope}.{slots}.{self.serial}.{self.replay}"

    @property
    def _scope(self) -> str:
        return f"{self.prefix}.{self.log_id}.{self.sink}"


@dataclass(frozen=True, slots=True)
class TransactionalIdPool:
    """All names that one sink of one log may use. A value: it travels to the participants with its sink."""

    prefix: str
    log_id: str
    sink: str

    def __post_init__(self) -> None:
        for what, value, allowed in (
            ("transactional id prefix", self.prefix, _PREFIX),
            ("log id", self.log_id, _LOG_ID),
            ("sink name", self.sink, _SINK),
        ):
            if not allowed.fullmatch(value):
                raise ConfigurationError(
                    f"{what} {value!r} can't be part of a transactional id: use letters, digits, '_' and '-', and not"
                    " digits alone"
                )

    @property
    def scope(self) -> str:
        """What every name of this pool starts with, and no name of another pool does."""
        return f"{self.prefix}.{self.log_id}.{self.sink}."

    def allocate(self, round: Round, partition: int, serial: int | None = None) -> TransactionId:
        """The name for one attempt of ``round`` at ``partition``.

        ``serial`` is a number that no other attempt of the round has, whatever its partition: retries, speculative
        copies and lost tasks that wake up late would else meet in one name, and the later of two would roll back what
        the earlier has pre-committed. By default the partition: for one attempt at each.
        """
        number = partition if serial is None else serial
        return TransactionId(self.prefix, self.log_id, self.sink, round, partition, number, replay=0)

    def reallocate(self, lost: str, round: Round) -> TransactionId:
        """The name for writing the transaction ``lost``, pooled or exact, once more in ``round``. No attempt of the
        round has it.

        Raises:
            ValueError: ``lost`` was not allocated here.
        """
        if not (self.owns_exact(lost) or self.owns_pooled(lost)):
            raise ValueError(f"{lost!r} is no transactional id of {self.scope!r}")
        numbers = [int(number) for number in lost.removeprefix(self.scope).split(".")]
        partition, serial, replay = numbers[2], numbers[-2], numbers[-1]  # a pooled name has its serial alone
        return replace(self.allocate(round, partition, serial), replay=replay + 1)

    def owns_exact(self, transaction_id: str) -> bool:
        """Whether it was allocated here, as an exact name."""
        return re.fullmatch(re.escape(self.scope) + r"[0-9]+(\.[0-9]+){4}", transaction_id) is not None

    def owns_pooled(self, transaction_id: str) -> bool:
        """Whether it was allocated here, as a pooled name."""
        return re.fullmatch(re.escape(self.scope) + r"[0-9]+(\.[0-9]+){3}", transaction_id) is not None

    def not_owned(self, transaction_id: str) -> CorruptLog:
        """The error for a committable that was not allocated here. Upholds: no log ends what is another's."""
        return CorruptLog(
            f"the commit log names transaction {transaction_id!r}, which is none of {self.scope!r}. Nothing was"
            " touched. Was the log edited? Restore it."
        )

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
