"""Tells the observers of this process of events."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from twopc import registry
from twopc.events import Event

if TYPE_CHECKING:
    import pluggy

logger = logging.getLogger(__name__)

_observers: list[tuple[object, pluggy.PluginManager]] = []  # each has a manager, so that none can silence another


def register_observer(observer: object) -> None:
    """Have ``observer``'s implementation of the hook ``twopc_event`` called for every event in this process."""
    manager = registry.hook_manager()
    manager.register(observer)
    _observers.append((observer, manager))


def unregister_observer(observer: object) -> None:
    """Undo ``register_observer``."""
    _observers[:] = [entry for entry in _observers if entry[0] is not observer]


def has_observers() -> bool:
    """Whether ``notify`` would report to anybody."""
    return bool(_observers)


def notify(event: Event, at: datetime | None = None) -> None:
    """Report ``event``, which happened ``at`` that time or just now, to every observer. An observer's exception is
    logged: it must not decide the fate of a batch."""
    at = datetime.now(timezone.utc) if at is None else at
    for observer, manager in tuple(_observers):
        try:
            manager.hook.twopc_event(event=event, at=at)
        except Exception:
            logger.exception("observer %r failed on %s", observer, event)
