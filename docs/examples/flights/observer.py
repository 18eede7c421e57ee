"""An observer that records events, and kills its driver at a chosen moment."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from settings import Settings

import twopc
from twopc.events import BatchFinished, Event, PhaseEntered, TransactionAborted, TransactionCommitted
from twopc.phases import Phase

Moments: TypeAlias = "Mapping[str, Callable[[Any], bool]]"

AROUND_THE_DECISION: Moments = {
    "between pre-commit and decision": lambda event: event == PhaseEntered(Phase.DECIDING, event.batch_id, event.owner),
    "right after the decision": lambda event: event == PhaseEntered(Phase.COMMITTING, event.batch_id, event.owner),
}
EXPOSED_S = 0.5
"""How long a driver pauses before a kill in a phase, so that watchers would notice records that are visible too early.
"""


class Observer:
    """Records events, and kills this driver with its JVM and workers at the chosen moment."""

    def __init__(self, settings: Settings, moments: Moments) -> None:
        self._is_moment = moments.get(settings.die_at or "", lambda _: False)
        self._events = (Path(settings.folder) / "events.jsonl").open("a", encoding="utf-8")

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        """Record an event, and kill the driver if its moment has come."""
        if isinstance(event, (BatchFinished, TransactionCommitted, TransactionAborted)):
            self._write(type(event).__name__, asdict(event))
        if getattr(event, "batch_id", None) is not None and self._is_moment(event):
            if isinstance(event, PhaseEntered):  # not amid phase two: other threads would commit the rest
                time.sleep(EXPOSED_S)
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def _write(self, kind: str, event: dict[str, object]) -> None:
        self._events.write(json.dumps({"event": kind, **event}) + "\n")
        self._events.flush()
