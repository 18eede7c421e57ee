"""The turns of a coordinator: its callers are admitted one at a time, and a rest only while none is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from twopc.errors import ConfigurationError

ResultT = TypeVar("ResultT")

LOOK_AGAIN_S = 0.5
"""How long the main thread waits at a time. CPython does not look at a signal that arrives just before a wait begins,
so without a timeout it would be seen when the wait ends, if ever."""


class OwnedLock:
    """A lock that knows whether this thread holds it. So whoever takes it within a ``try`` and releases it in the
    ``finally`` leaks nothing, even if an interrupt comes between the two.

    ``release`` raises RuntimeError if this thread does not hold it. It is a method in C: an interrupt can come as a
    function in Python is entered, and the lock would stay taken.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # it notes its owner as it is taken, where no interrupt can come in between
        self.release = self._lock.release

    @property
    def is_mine(self) -> bool:
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001  # ``Condition`` asks it, too

    def take(self, *, waits: bool = True) -> bool:
        """Take the lock, and return whether it was free or became free. A thread takes it once at a time."""
        if self.is_mine:
            return False
        while not self._lock.acquire(timeout=LOOK_AGAIN_S if waits else 0):
            if not waits:
                return False
        return True


class Turns:
    """Who is admitted. An interrupt at any moment leaves no lock taken, so each is taken within a ``try``."""

    def __init__(self) -> None:
        self.callers = OwnedLock()  # of public methods, of which a second is refused or waits
        self.batch_or_rest = OwnedLock()  # a rest is skipped while a batch runs, and a batch waits for a rest

    @property
    def is_mine(self) -> bool:
        """Whether this thread is amid a turn."""
        return self.callers.is_mine or self.batch_or_rest.is_mine

    def take(self, what: str, call: Callable[[], ResultT], *, waits: bool) -> ResultT:
        """Make a call when no other one, and no rest, is under way. ``what`` names it to the caller. Raises
        ConfigurationError: this thread has a turn, or another one that this one is not to wait for."""
        within = self.is_mine
        try:
            if within or not self.callers.take(waits=waits):
                raise ConfigurationError(f"{what} came while a batch runs: call it when the batch has ended")
            self.batch_or_rest.take()
            return call()
        finally:
            # No function in Python between, in which an interrupt could leave one taken.
            if not within:
                try:
                    self.batch_or_rest.release()
                except RuntimeError:  # it was not taken
                    pass
                finally:
                    try:  # noqa: SIM105
                        self.callers.release()
                    except RuntimeError:
                        pass

    def rest(self, call: Callable[[], object]) -> None:
        """Make a call unless a batch or another rest is under way, in this thread or another one."""
        if self.batch_or_rest.is_mine:
            return
        try:
            if self.batch_or_rest.take(waits=False):
                call()
        finally:
            try:  # noqa: SIM105  # as in ``take``
                self.batch_or_rest.release()
            except RuntimeError:
                pass
