"""An observer for the time of a test, and the exception with which it ends a run as a kill does."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn, TypeVar

import twopc

ObserverT = TypeVar("ObserverT")


class Killed(BaseException):
    """Ends a run as SIGKILL does: nothing that handles errors sees it."""


def killed() -> NoReturn:
    raise Killed


@contextlib.contextmanager
def observing(observer: ObserverT) -> Iterator[ObserverT]:
    """Have coordinators of this process tell ``observer``."""
    twopc.register_observer(observer)
    try:
        yield observer
    finally:
        twopc.unregister_observer(observer)
