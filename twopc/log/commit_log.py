"""Performs the effects of ``steps`` on a commit log's store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from twopc import effects
from twopc.effects import Effect, Steps, log_line, perform
from twopc.errors import Retriable
from twopc.log import notices, steps
from twopc.log.entries import Entry
from twopc.log.entry_json import parse, parse_id, serialise
from twopc.log.steps import Changed, where
from twopc.log.store import LogStore, ReplicatedLogStore

ResultT = TypeVar("ResultT")

STABLE_WITHIN_S = 120.0
"""How long a store's listing may contradict its reads and creates. By default, NFS lists a removed file for up to 60 s
(``acdirmax``)."""


def read_tail(store: LogStore) -> tuple[int, Entry] | None:
    """Return the newest slot and its entry, or None if the log is empty. Raises Retriable if the store does not answer,
    or can't read the newest entry that it lists. Raises CorruptLog if that entry is damaged or of a later release."""
    return on_store(store, steps.read_tail())


def on_store(store: LogStore, taken: Steps[ResultT]) -> ResultT:
    """Perform steps whose only effects are on the log, and return their result."""
    return perform(taken, lambda effect: perform_on(store, effect))


def perform_on(store: LogStore, effect: Effect) -> Any:  # noqa: PLR0911  # one case per effect
    """Perform an effect of the log, and return its answer."""
    match effect:
        case effects.Slots():
            return store.slots()
        case effects.ReadSlot(slot) | effects.ReadId(slot):
            read = parse if isinstance(effect, effects.ReadSlot) else parse_id
            with contextlib.suppress(FileNotFoundError):
                return read(store.read(slot), where(store.url, slot))
            return None
        case effects.Put(slot, entry):
            return store.put_if_absent(slot, serialise(entry))
        case effects.DeleteSlot(slot):
            return store.delete(slot)
        case effects.RequireCurrent():
            return store.require_current() if isinstance(store, ReplicatedLogStore) else None
        case effects.UntilStable(look):
            return _until_stable(store, lambda: on_store(store, look()))
        case effects.Noted(tail):
            return notices.noted(store, tail)
        case effects.Note(tail, repetition):
            return notices.Notices(store).note(tail, repetition)
        case effects.Log():
            return log_line(effect)
    raise AssertionError(f"no effect of a log: {effect!r}")


def _until_stable(store: LogStore, look: Callable[[], ResultT]) -> ResultT:
    """Repeat ``look`` while it raises ``Changed``. Raises Retriable after ``STABLE_WITHIN_S``."""
    began_s, wait_s = time.monotonic(), 0.001
    while True:
        try:
            return look()
        except Changed:
            if time.monotonic() - began_s >= STABLE_WITHIN_S:
                raise Retriable(
                    f"the commit log at {store.url} lists other entries than it reads or lets this process create, for"
                    f" {STABLE_WITHIN_S:g} s. Was something else than twopc removing or creating files there? On NFS"
                    " or SMB, mount it with actimeo=0; then start again"
                ) from None
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, 1.0)
