"""Waits that an interrupt ends: calls on several threads at once, and locks."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

LOOK_AGAIN_S = 0.5
"""How long the main thread waits at a time. CPython does not look at a signal that arrives just before a wait begins,
so without a timeout it would be seen when the wait ends, if ever."""

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


class OwnedLock:
    """A lock that knows whether this thread holds it. So whoever takes it within a ``try`` and releases it in the
    ``finally`` leaks nothing, even if an interrupt comes between the two.

    Attributes:
        release: releases the lock; raises RuntimeError if this thread does not hold it. A method in C: an interrupt can
            come as a function in Python is entered, and the lock would stay taken.
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


def on_threads(
    call: Callable[[ArgumentT], ResultT],
    arguments: Sequence[ArgumentT],
    at_once: int,
    give_up: Callable[[], None],
    running: list[threading.Thread],
) -> list[ResultT]:
    """Return the result of ``call`` for each of ``arguments``, in their order, from up to ``at_once`` threads.

    The threads are daemons: the interpreter joins any others before it ends, and a call may wait for a target system
    for as long as that is away. An interrupt of this thread, or an error of a call, calls ``give_up``, which makes the
    other calls end. ``running`` has the threads until they have ended, as a second interrupt ends the wait for them.

    Raises:
        BaseException: what a call raised, when all have ended.
    """
    results: dict[int, ResultT] = {}
    errors: list[BaseException] = []
    left, lock = deque(enumerate(arguments)), threading.Lock()

    def work() -> None:
        for index, argument in iter(take, None):
            try:
                results[index] = call(argument)
            except BaseException as error:  # noqa: BLE001  # raised below
                errors.append(error)
                give_up()

    def take() -> tuple[int, ArgumentT] | None:
        with lock:
            return left.popleft() if left and not errors else None

    threads = [
        threading.Thread(target=work, name="twopc-commit", daemon=True) for _ in range(min(at_once, len(arguments)))
    ]
    running += threads
    try:
        try:
            for thread in threads:
                thread.start()
        except RuntimeError:  # an interpreter that is shutting down, or a full machine, starts no threads
            work()
        join(running, threads)
    except BaseException:
        with lock:
            left.clear()
        give_up()
        join(running, threads)
        raise
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(arguments))]


def join(running: list[threading.Thread], threads: Sequence[threading.Thread]) -> None:
    """Wait until those of ``threads`` that were started have ended, and take them out of ``running``."""
    for thread in threads:
        while thread.is_alive():
            thread.join(LOOK_AGAIN_S)
        with contextlib.suppress(ValueError):  # two may wait for it
            running.remove(thread)
