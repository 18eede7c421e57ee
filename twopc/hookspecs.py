"""The hooks that plugins implement for a backend, a log store or an observer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from twopc.events import Event

PROJECT = "twopc"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's implementation of a hook."""


@hookspec(firstresult=True)
def twopc_sink() -> type[Any]:  # type: ignore[empty-body]
    """Return this backend's class, a ``TwoPhaseCommitSink``. Its only argument is a mapping of the user's options: text
    to text or plain values. It raises ConfigurationError for an unknown option."""


@hookspec(firstresult=True)
def twopc_log_store() -> Callable[..., Any]:  # type: ignore[empty-body]
    """Return the class of a ``LogStore`` for a URL scheme, such as ``postgresql``. The plugin's entry point is in the
    group ``twopc.log_stores``, and its name is the scheme.

    The class takes the URL, without a password, and the user's options as keywords. It makes no request and writes
    nothing until a method is called. It raises ConfigurationError for a wrong URL or an unknown option."""


@hookspec
def twopc_event(event: Event, at: datetime) -> None:
    """Receive an event. Called on the coordinator's own thread or on a thread of phase two, so implementations must
    return quickly. An exception is logged and has no other effect.

    ``at`` is when the event happened, with a time zone. That may be long ago if the event was forwarded from a file.
    An implementation may omit the argument."""
