"""The hooks that a plugin implements: the first for a backend, the second for an observer."""

from __future__ import annotations

from typing import Any

import pluggy

from twopc.events import Event
from twopc.sink import TwoPhaseCommitSink

PROJECT = "twopc"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's implementation of a hook."""


@hookspec(firstresult=True)
def twopc_sink() -> type[TwoPhaseCommitSink[Any]]:  # type: ignore[empty-body]
    """Return the sink class of this backend. Its one argument is a mapping of the user's options: text to text or plain
    values. It raises ConfigurationError for an unknown option."""


@hookspec
def twopc_event(event: Event) -> None:
    """Receive an event. Called on the coordinator's own thread or one of phase two's, so it must return quickly. An
    exception is logged and changes nothing."""
