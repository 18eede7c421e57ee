"""The names of transactions, which are built and parsed only here.

A target system that forgets finished transactions (files, PostgreSQL) gets exact names, which are never used twice.
Kafka keeps every name for days, so its sink leases names (``twopc_kafka.leases``): no other attempt gets a name until
its holder is certainly dead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from twopc.errors import ConfigurationError, CorruptLog

BATCH_SLOTS = 4
"""A leased name ends with the batch number modulo this value. A different remainder shows that an open transaction does
not belong to the running batch."""

_LOG_ID = re.compile(r"[A-Za-z0-9_-]+")
_SINK = re.compile(r"(?![0-9]+$)[A-Za-z0-9_-]+")  # not a number, so that a name parses unambiguously from its end
_LEASED = r"[0-9a-f]{16}\.[0-9]"  # token, batch modulo BATCH_SLOTS
_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True, order=True, slots=True)
class Round:
    """One attempt at one batch. Its numbers are kept apart and never added, because two drivers could arrive at the
    same sum.

    Attributes:
        replay: counts the computations of a decided batch, in which participants write its lost records again; 0 before
            the decision.
    """

    incarnation: int
    batch_id: int
    replay: int = 0

    def __str__(self) -> str:
        return f"batch {self.batch_id}, incarnation {self.incarnation}"


@dataclass(frozen=True, slots=True)
class TransactionId:
    """The name of one transaction: which task attempt of which round writes to which sink of which log.

    Attributes:
        partition: the partition that it writes, for operators.
        serial: a number that no other attempt of the round has.
        replay: how often it was written again after its target system rolled it back.
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
        """The exact name, never used twice."""
        numbers = (self.round.incarnation, self.round.batch_id, self.partition, self.serial, self.replay)
        return ".".join(map(str, (self.prefix, self.log_id, self.sink, *numbers)))


@dataclass(frozen=True, slots=True)
class TransactionalIdPool:
    """All names that one sink of one log may use. A value that is pickled with its sink for the participants."""

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
        """The common start of this pool's names. No name of another pool starts with it."""
        return f"{self.prefix}.{self.log_id}.{self.sink}."

    def allocate(self, round: Round, partition: int, serial: int | None = None) -> TransactionId:
        """Return the id for one attempt of ``round`` at ``partition``. ``serial`` is a number that no other attempt of
        the round has, on any partition: if two attempts, such as retries or speculative copies, shared a name, the
        later one would roll back what the earlier one pre-committed. The default is the partition number, for rounds
        with one attempt per partition."""
        number = partition if serial is None else serial
        return TransactionId(self.prefix, self.log_id, self.sink, round, partition, number, round.replay)

    def reallocate(self, lost: str, round: Round) -> TransactionId:
        """Return the id for writing the transaction ``lost`` again in ``round``. No attempt of the round has this id.

        Raises:
            ValueError: ``lost`` was not allocated here.
        """
        if self.owns_leased(lost):
            return replace(self.allocate(round, 0), replay=1)  # it leases another name
        if not self.owns_exact(lost):
            raise ValueError(f"{lost!r} is no transactional id of {self.scope!r}")
        _, _, partition, serial, replay = map(int, lost.removeprefix(self.scope).split("."))
        return replace(self.allocate(round, partition, serial), replay=replay + 1)

    def may_be_of(self, leased: str, batch_id: int) -> bool:
        """Return whether a leased name may belong to that batch. It may also belong to another."""
        return leased.rpartition(".")[2] == str(batch_id % BATCH_SLOTS)

    def owns_exact(self, transaction_id: str) -> bool:
        """Return whether this pool allocated ``transaction_id`` as an exact name."""
        return re.fullmatch(re.escape(self.scope) + r"[0-9]+(\.[0-9]+){4}", transaction_id) is not None

    def round_of(self, exact: str) -> Round:
        """Return the round in which an exact name was allocated."""
        incarnation, batch_id, *_ = map(int, exact.removeprefix(self.scope).split("."))
        return Round(incarnation, batch_id)

    def is_replay(self, exact: str) -> bool:
        """Return whether an exact name belongs to a transaction that was written again."""
        return not exact.endswith(".0")

    def owns_leased(self, transaction_id: str) -> bool:
        """Return whether this pool leased ``transaction_id``."""
        return re.fullmatch(re.escape(self.scope) + _LEASED, transaction_id) is not None

    def exact(self, transaction_id: str) -> str:
        """Return a committable's exact name unchanged, after a check.

        Raises:
            CorruptLog: this pool did not allocate the name.
        """
        if not self.owns_exact(transaction_id):
            raise self.not_owned(transaction_id)
        return transaction_id

    def not_owned(self, transaction_id: str) -> CorruptLog:
        """Return the error for a committable of another pool. Upholds: no log ends another log's transactions."""
        return CorruptLog(
            f"the commit log names transaction {transaction_id!r}, which is none of {self.scope!r}. Nothing was"
            " touched. Was the log edited? Restore it."
        )
