"""Reports events to the observers of this process."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from twopc import registry
from twopc.events import Event

if TYPE_CHECKING:
    import pluggy

logger = logging.getLogger(__name__)

_observers: list[tuple[object, pluggy.PluginManager]] = []  # one manager each, so that an observer can't silence others


def register_observer(observer: object) -> None:
    """Have ``observer``'s implementation of the hook ``twopc_event`` called for every event in this process."""
    manager = registry.hook_manager()
    manager.register(observer)
    _observers.append((observer, manager))


def unregister_observer(observer: object) -> None:
    """Undo ``register_observer``."""
    _observers[:] = [entry for entry in _observers if entry[0] is not observer]


def has_observers() -> bool:
    """Return whether there are observers to notify."""
    return bool(_observers)


def notify(event: Event, at: datetime | None = None) -> None:
    """Report ``event``, which happened ``at`` that time or just now, to every observer. An observer's exception is only
    logged, so that it can't fail a batch."""
    at = datetime.now(timezone.utc) if at is None else at
    for observer, manager in tuple(_observers):
        try:
            manager.hook.twopc_event(event=event, at=at)
        except Exception:
            logger.exception("observer %r failed on %s", observer, event)
