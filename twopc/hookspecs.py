"""The hooks that a plugin implements. A backend has the first, an observer the second."""

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
    """The sink class of this backend, made with the user's options as its one argument: a mapping of text to text
    or plain values. It raises ConfigurationError for an unknown option."""


@hookspec
def twopc_event(event: Event) -> None:
    """Something happened. Called on the coordinator's own thread or one of phase two's, so it must be quick; an
    exception is logged and changes nothing."""
