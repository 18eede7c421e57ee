"""The file in which the processes that Spark starts on the driver's machine leave their events for the driver."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from twopc.observers.json_lines import JsonLinesObserver
from twopc.observing import register_observer, unregister_observer

FLUSH_TIMEOUT_S = 1.0
"""How long the end of the calls waits for the disk at most: Spark may end the process right after it."""


@contextlib.contextmanager
def spooled(path: str | None) -> Iterator[None]:
    """Append the events of the calls inside to the file at ``path``, if there is one. The process is Spark's, and goes
    on to serve other queries."""
    if path is None:
        yield
        return
    observer = _observer(path)
    register_observer(observer)
    try:
        yield
    finally:
        unregister_observer(observer)
        observer.flush(FLUSH_TIMEOUT_S)


@functools.lru_cache(maxsize=100)
def _observer(path: str) -> JsonLinesObserver:
    """One per file, as it logs once that it can't write."""
    return JsonLinesObserver(path)
