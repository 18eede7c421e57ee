"""What every sink inherits beside the contract: its place in one log, and which schema it has validated."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from twopc.errors import ConfigurationError
from twopc.replay import ReplayCopies
from twopc.transaction import Committable
from twopc.transactional_ids import TransactionalIdPool

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on


class BoundSink(ABC):
    """A sink under its name in one log, with the pending transactions and the pool of names that come with it.

    Attributes:
        pending: batch id → its transactions of this sink, if the batch is decided and not known to be committed, oldest
            batch first. A view of the coordinator's record, and empty elsewhere.
        replay_copies: where participants copy what they write to this sink, or None.
        last_batch_id: the newest decided batch that has transactions of this sink, by the log; None if the log does not
            know one. It is committed unless it is ``pending``. On the coordinator only.
    """

    prefix: str
    pending: Mapping[int, tuple[Committable, ...]]
    replay_copies: ReplayCopies | None = None
    last_batch_id: int | None = None
    _transactional_ids: TransactionalIdPool
    _validated: pa.Schema | None = None

    @abstractmethod
    def validate(self, schema: pa.Schema) -> None:
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
        self.pending = {}
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

    def __getstate__(self) -> dict[str, object]:
        # Only the coordinator knows what is pending; participants have no use for it.
        return {name: value for name, value in self.__dict__.items() if name != "pending"}
