"""Calls on threads, and locks, that delay neither an interrupt nor the interpreter's exit."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")

LOOK_AGAIN_S = 0.5
"""How long the main thread waits at a time. CPython may miss a signal that arrives just before a wait begins. Without a
timeout, it would handle the signal only when the wait ends, if ever."""


class OwnedLock:
    """A lock that knows whether this thread holds it. If it is taken within a ``try`` and released in the ``finally``,
    an interrupt at any point can't leave it locked.

    ``release`` raises RuntimeError if this thread does not hold the lock. It is implemented in C, because an interrupt
    on entry to a Python function would leave the lock taken.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # it records its owner atomically, so that no interrupt comes in between
        self.release = self._lock.release

    @property
    def is_mine(self) -> bool:
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001  # ``Condition`` uses it, too

    def take(self, *, waits: bool = True) -> bool:
        """Take the lock, and return whether that succeeded. Not reentrant: returns False if this thread already holds
        the lock."""
        if self.is_mine:
            return False
        while not self._lock.acquire(timeout=LOOK_AGAIN_S if waits else 0):
            if not waits:
                return False
        return True


class Worker(threading.Thread):
    """A daemon thread. Wait for ``ended`` instead of calling ``join``: if an interrupt ends a ``join``, CPython before
    3.13 treats the running thread as ended."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self.ended = threading.Event()
        self.ended.set()

    def start(self) -> None:
        self.ended.clear()
        try:
            super().start()
        except RuntimeError:  # an interpreter that shuts down, or a machine at its limit, starts no threads
            self.ended.set()
            raise

    def run(self) -> None:
        try:
            self._work()
        finally:
            self.ended.set()


def on_threads(
    call: Callable[[ArgumentT], ResultT],
    arguments: Sequence[ArgumentT],
    at_once: int,
    name: str,
    give_up: Callable[[], object] = lambda: None,
    running: list[Worker] | None = None,
) -> list[ResultT]:
    """Return the results of ``call`` for ``arguments``, in order, on up to ``at_once`` threads with this name, or on
    the calling thread if none can start. Raises a call's error after all calls have ended.

    The threads are daemons: the interpreter would join other threads before it exits, and a call may wait for as long
    as a target system is away. An interrupt of this thread, or an error of a call, calls ``give_up``, which must make
    the other calls end. ``running`` contains the threads until they end, because a second interrupt ends the wait for
    them.
    """
    results: dict[int, ResultT] = {}
    errors: list[BaseException] = []
    left, lock = deque(enumerate(arguments)), threading.Lock()
    running = [] if running is None else running

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

    threads = [Worker(work, name) for _ in range(min(at_once, len(arguments)))]
    running += threads
    try:
        try:
            for thread in threads:
                thread.start()
        except RuntimeError:
            work()
        join(running, threads)
    except BaseException:
        with lock:
            left.clear()
        give_up()
        join(running, threads)
        raise
    try:
        if errors:  # an interrupt comes first
            raise next((each for each in errors if not isinstance(each, Exception)), errors[0])
    finally:
        errors.clear()  # tracebacks refer to this frame: the cycle would keep the callers' frames alive
    return [results[index] for index in range(len(arguments))]


def call_at_once(call: Callable[[ArgumentT], ResultT], arguments: Sequence[ArgumentT], at_once: int) -> list[ResultT]:
    """Call like ``on_threads``, for requests that mostly wait for a store. A single request runs on the calling
    thread."""
    if min(at_once, len(arguments)) <= 1:
        return [call(each) for each in arguments]
    return on_threads(call, arguments, at_once, "twopc-requests")


def join(running: list[Worker], threads: Sequence[Worker]) -> None:
    """Wait until each of ``threads`` that was started has ended, and remove all of them from ``running``."""
    for thread in threads:
        while not thread.ended.wait(LOOK_AGAIN_S):
            if thread.ident is None:
                break  # an interrupt came before it started
        with contextlib.suppress(ValueError):  # another caller may have removed it
            running.remove(thread)
