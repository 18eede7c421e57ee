"""The commit log: the ordered, durable record of decisions. An append is the commit point for all sinks together.

``steps`` has what an append takes. Here it is performed, on a store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from twopc.effects import (
    DeleteSlot,
    Effect,
    Log,
    LogView,
    Put,
    ReadSlot,
    RequireCurrent,
    Settle,
    Slots,
    Steps,
    log_line,
    perform,
)
from twopc.errors import Retriable
from twopc.log import steps
from twopc.log.entries import (
    Decision,
    Entry,
    abandoned,
    amended,
    closed,
    completed,
    decided,
    parse,
    serialise,
)
from twopc.log.steps import Changed, where
from twopc.log.store import LogStore, ReplicatedLogStore, warn_of_late_listings
from twopc.transaction import Committable, JsonValue

ResultT = TypeVar("ResultT")

SETTLES_WITHIN_S = 120.0
"""How long a store's listing may differ from what it reads and creates. NFS with its defaults lists a removed file for
up to 60 s (``acdirmax``)."""


def read_tail(store: LogStore) -> tuple[int, Entry] | None:
    """Return the newest slot and its entry, or None if the log is empty.

    Raises:
        Retriable: the store does not answer, or lists a newest entry that it can't read.
        CorruptLog: the newest entry is not one of this version, or is damaged.
    """
    return on_store(store, steps.read_tail())


def read_decision(store: LogStore, batch_id: int) -> Entry | None:
    """Return the newest kept entry whose newest decided batch is ``batch_id``, or None if it was pruned."""
    return on_store(store, steps.read_decision(batch_id))


def on_store(store: LogStore, taken: Steps[ResultT]) -> ResultT:
    """Take steps of the log alone, and return their result."""
    return perform(taken, lambda effect: perform_on(store, effect))


def perform_on(store: LogStore, effect: Effect) -> Any:  # noqa: PLR0911  # one case per effect
    """Perform an effect of the log, and return its answer."""
    match effect:
        case Slots():
            return store.slots()
        case ReadSlot(slot):
            with contextlib.suppress(FileNotFoundError):
                return parse(store.read(slot), where(store.url, slot))
            return None
        case Put(slot, entry):
            return store.put_if_absent(slot, serialise(entry))
        case DeleteSlot(slot):
            return store.delete(slot)
        case RequireCurrent():
            return store.require_current() if isinstance(store, ReplicatedLogStore) else None
        case Settle(look):
            return _settled(store, lambda: on_store(store, look()))
        case Log():
            return log_line(effect)
    raise AssertionError(f"no effect of a log: {effect!r}")


def _settled(store: LogStore, look: Callable[[], ResultT]) -> ResultT:
    """Repeat ``look`` while it raises ``Changed``. Raises Retriable when it has for ``SETTLES_WITHIN_S``."""
    repeat = Retrying(
        retry=retry_if_exception_type(Changed),
        wait=wait_exponential(multiplier=0.001, max=1.0),
        stop=stop_after_delay(SETTLES_WITHIN_S),
        reraise=True,
    )
    try:
        return repeat(look)
    except Changed:
        raise Retriable(
            f"the commit log at {store.url} lists other entries than it reads or lets this process create, for"
            f" {SETTLES_WITHIN_S:g} s. Was something else than twopc removing or creating files there? On NFS or SMB,"
            " mount it with actimeo=0; then start again"
        ) from None


class CommitLog:
    """An open commit log: one incarnation, outside of a coordinator."""

    def __init__(self, store: LogStore, view: LogView) -> None:
        self._store, self._view = store, view

    @classmethod
    def open(cls, store: LogStore, owner: str, sinks: Mapping[str, str] | None = None) -> CommitLog:
        """Start a new incarnation, which fences every older one. ``sinks``: see ``opened``.

        Raises:
            LogMismatch, CorruptLog: nothing was changed.
            Retriable: the store does not answer, or contradicts itself; nothing was changed.
            InDoubt: the store did not report whether the entry was written; open again.
        """
        warn_of_late_listings(store)
        return cls(store, on_store(store, steps.open_log(store.url, owner, sinks)))

    @classmethod
    def resume(cls, store: LogStore, log_id: str, incarnation: int) -> CommitLog:
        """Continue an incarnation that another process opened in the log of that id.

        Raises:
            Fenced: the incarnation is not the log's newest.
            CorruptLog: nothing was changed.
            Retriable: the log could not be read.
        """
        return cls(store, on_store(store, steps.resume_log(store.url, log_id, incarnation)))

    @property
    def tail(self) -> Entry:
        return self._view.tail

    @property
    def incarnation(self) -> int:
        return self.tail.incarnation

    def decide(self, decision: Decision, reads: JsonValue = None) -> None:
        """Append the decision of a batch that read ``reads``. Raises like ``steps.append``."""
        self._append(decided(self.tail, decision, reads))

    def amend(self, decision: Decision) -> None:
        """Append an amended decision: from here on its committables count. Raises like ``decide``."""
        self._append(amended(self.tail, decision))

    def abandon(self, batch_id: int, given_up: Mapping[str, Collection[Committable]], by: str) -> None:
        """Append that an operator gives up decided transactions. Raises like ``abandoned`` and ``decide``."""
        self._append(abandoned(self.tail, batch_id, given_up, by))

    def complete(self) -> None:
        """Record that everything decided is committed. Raises like ``decide`` and ``verify``."""
        self.verify()
        self._append(completed(self.tail))

    def close(self) -> None:
        """Record a clean stop. Like ``complete``."""
        self.verify()
        self._append(closed(self.tail))

    def verify(self) -> None:
        """Make sure that no newer coordinator has opened. Raises like ``steps.verify``."""
        on_store(self._store, steps.verify(self._view))

    def _append(self, entry: Entry) -> None:
        on_store(self._store, steps.append(self._view, entry))
