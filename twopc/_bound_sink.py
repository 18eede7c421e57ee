"""What every sink inherits beside the contract: its place in one log, and what the core asks of it with a check."""

from __future__ import annotations

import copy
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from twopc.datasets import Dataset
from twopc.errors import ConfigurationError
from twopc.events import BatchPart
from twopc.pending import PendingTransactions
from twopc.replay import ReplayCopies
from twopc.transaction import Committable
from twopc.transactional_ids import TransactionalIdPool

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitCall:
    """One call of phase two: the transactions of a sink that it commits, and the call."""

    sink: str
    committables: tuple[Committable, ...]
    commit: Callable[[], None]

    @property
    def transaction_id(self) -> str | None:
        """The transaction that it commits; None if it commits several."""
        return self.committables[0].transaction_id if len(self.committables) == 1 else None

    def __str__(self) -> str:
        return f"commit of {self.transaction_id or f'{len(self.committables)} transactions to sink {self.sink!r}'}"


class BoundSink(ABC):
    """A sink under its name in one log, with the pending transactions and the pool of names that come with it.

    Attributes:
        pending: the decided transactions that are not yet known to be committed. On the coordinator only.
        replay_copies: where participants copy what they write to this sink, or None.
        last_batch_id: the newest decided batch that has transactions of this sink, by the log; None if the log does not
            know one. It is committed unless it is ``pending``. On the coordinator only.
    """

    prefix: str
    pending: PendingTransactions
    replay_copies: ReplayCopies | None = None
    last_batch_id: int | None = None
    _transactional_ids: TransactionalIdPool
    _validated: pa.Schema | None = None

    @abstractmethod
    def validate(self, schema: pa.Schema) -> None:
        """Part of the contract in ``twopc.sink``."""

    @abstractmethod
    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
        """Part of the contract in ``twopc.sink``."""

    @abstractmethod
    def commit(self, committable: Committable) -> None:
        """Part of the contract in ``twopc.sink``."""

    @abstractmethod
    def commit_batch(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """Part of the contract in ``twopc.sink``."""

    @property
    @abstractmethod
    def commits_whole_batches(self) -> bool:
        """Part of the contract in ``twopc.sink``."""

    @abstractmethod
    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset] | None:
        """Part of the contract in ``twopc.sink``."""

    def bind(self, name: str, log_id: str, replay_copies: ReplayCopies | None = None) -> None:
        """Tie the sink to its name in one log, and to the folder of its replay copies. The coordinator calls this.

        Raises:
            ConfigurationError: the sink is tied to another log or name, whose transactions it would take for its own.
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

    def unbound(self) -> Self:
        """Return a copy that is tied to no log."""
        twin = copy.copy(self)
        twin.__dict__.pop("_transactional_ids", None)
        return twin

    @property
    def transactional_ids(self) -> TransactionalIdPool:
        """The pool of names that this sink's transactions are allocated from.

        Raises:
            ConfigurationError: no coordinator uses the sink yet.
        """
        try:
            return self._transactional_ids
        except AttributeError:
            raise ConfigurationError(
                f"this {type(self).__name__} has no transactional ids yet: pass it to a Coordinator or foreach_batch"
            ) from None

    def require_valid(self, schema: pa.Schema) -> None:
        """Call ``validate`` once per schema. The answer travels to the participants with the sink. Raises like it."""
        if schema != self._validated:
            self.validate(schema)
            self._validated = schema

    def assume_valid(self, schema: pa.Schema) -> None:
        """Take ``schema`` for one that the sink accepts: another process has asked it."""
        self._validated = schema

    def sealed(self, committables: Sequence[Committable], began_s: float) -> tuple[Committable, ...]:
        """Return ``committables`` with the handles that ``seal`` gives them. Phase one began at ``began_s`` of
        ``time.perf_counter``.

        Raises:
            ConfigurationError: ``seal`` returned other transactions. What it left out would be rolled back.
        """
        sealed = tuple(self.seal(committables, time.perf_counter() - began_s))
        same = [one.is_same_transaction(other) for one, other in zip(sealed, committables, strict=False)]
        if len(sealed) != len(committables) or not all(same):
            raise ConfigurationError(
                f"seal of sink {self.transactional_ids.sink!r} must return the transactions that it is given"
            )
        return tuple(replace(one, handle=other.handle) for one, other in zip(committables, sealed, strict=True))

    def commit_calls(self, batch_id: int, committables: Sequence[Committable]) -> list[CommitCall]:
        """Return the calls that commit ``committables`` of a decided batch: one for all of them if the sink commits
        whole batches, else one per transaction."""
        name = self.transactional_ids.sink
        if self.commits_whole_batches:
            every = tuple(committables)
            return [CommitCall(name, every, partial(self.commit_batch, batch_id, every))] if every else []
        return [CommitCall(name, (committable,), partial(self.commit, committable)) for committable in committables]

    def part_of_batch(self, committables: Sequence[Committable], recovered: bool) -> BatchPart:
        """Return what ``committables`` of a decided batch have written, for observers. Raises nothing: no observer may
        decide the fate of a batch. ``recovered``: the batch may have been written with another schema."""
        name, datasets = self.transactional_ids.sink, None
        try:
            if (found := self.datasets(committables)) is not None:
                datasets = tuple(Dataset(each.namespace, each.name) for each in found)
        except Exception:
            logger.exception("sink %r could not name what it writes to", name)
        records = sum(committable.records or 0 for committable in committables)
        return BatchPart(name, records, datasets, None if recovered else self._validated)

    def __getstate__(self) -> dict[str, object]:
        # Only the coordinator knows what is pending; participants have no use for it.
        return {name: value for name, value in self.__dict__.items() if name != "pending"}
