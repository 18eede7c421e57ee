"""Observers for the duration of a test, and an exception that ends a run like a kill."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import twopc
from twopc.events import Event, PhaseEntered
from twopc.phases import Phase

T = TypeVar("T")


class Killed(BaseException):
    """Ends a run like SIGKILL: no error handler catches it."""


def killed() -> NoReturn:
    raise Killed


@contextlib.contextmanager
def observing(observer: T) -> Iterator[T]:
    """Register ``observer`` in this process while the context is open."""
    twopc.register_observer(observer)
    try:
        yield observer
    finally:
        twopc.unregister_observer(observer)


class Listener:
    """An observer that calls ``hear`` with each event of a kind."""

    def __init__(self, hear: Callable[[Any], object], kind: type[Event] | Any = Event) -> None:
        self._hear, self._kind = hear, kind

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        if isinstance(event, self._kind):
            self._hear(event)


def hearing(hear: Callable[[Any], object], kind: type[Event] | Any = Event) -> Any:
    """Return a context in which ``hear`` is called with each event of a kind."""
    return observing(Listener(hear, kind))


class Moments:
    """An observer that calls a function once at a phase or an event class; by default, it ends the run."""

    def __init__(self, at: Phase | type | None = None, call: Callable[[], object] = killed) -> None:
        self.at: dict[object, Callable[[], object]] = {} if at is None else {at: call}

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        self.at.pop(event.phase if isinstance(event, PhaseEntered) else type(event), lambda: None)()
