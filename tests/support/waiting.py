"""Waits for a condition, with a timeout."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(holds: Callable[[], T], timeout_s: float = 60.0, what: object = "") -> T:
    """Wait until a condition is true. Return its value."""
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not so after {timeout_s:.0f} s: {what}"
        time.sleep(0.01)
    return found
