"""Observers for the time of a test, and the exception with which one ends a run as a kill does."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import twopc
from twopc.events import Event, PhaseEntered
from twopc.phases import Phase

T = TypeVar("T")


class Killed(BaseException):
    """Ends a run as SIGKILL does: nothing that handles errors sees it."""


def killed() -> NoReturn:
    raise Killed


@contextlib.contextmanager
def observing(observer: T) -> Iterator[T]:
    """Have coordinators of this process tell ``observer``."""
    twopc.register_observer(observer)
    try:
        yield observer
    finally:
        twopc.unregister_observer(observer)


class Listener:
    """Calls ``hear`` with each event of a kind."""

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
    """Calls what a test has put ``at`` a phase or a class of events, once; without more, it ends the run."""

    def __init__(self, at: Phase | type | None = None, call: Callable[[], object] = killed) -> None:
        self.at: dict[object, Callable[[], object]] = {} if at is None else {at: call}

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        self.at.pop(event.phase if isinstance(event, PhaseEntered) else type(event), lambda: None)()
