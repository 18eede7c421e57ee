"""Calls on threads, and locks, that hold back neither an interrupt nor the end of the interpreter."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

ArgumentT = TypeVar("ArgumentT")
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


class Worker(threading.Thread):
    """A daemon thread. To see its end, wait for ``ended``: if an interrupt ends a ``join`` of a thread that runs,
    CPython before 3.13 takes the thread for ended."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self.ended = threading.Event()
        self.ended.set()

    def start(self) -> None:
        self.ended.clear()
        try:
            super().start()
        except RuntimeError:  # an interpreter that is shutting down, or a full machine, starts no threads
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
    """Return the result of ``call`` for each of ``arguments``, in their order, from up to ``at_once`` threads of this
    name, or from the calling thread if none can start. Raises what a call raised, when all have ended.

    The threads are daemons: the interpreter joins any others before it ends, and a call may wait for a target system
    for as long as that is away. An interrupt of this thread, or an error of a call, calls ``give_up``, which makes the
    other calls end. ``running`` has the threads until they have ended, as a second interrupt ends the wait for them.
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
        if errors:  # an interrupt is not lost
            raise next((each for each in errors if not isinstance(each, Exception)), errors[0])
    finally:
        errors.clear()  # a traceback refers to this frame: a cycle that would keep the callers' frames
    return [results[index] for index in range(len(arguments))]


def call_at_once(call: Callable[[ArgumentT], ResultT], arguments: Sequence[ArgumentT], at_once: int) -> list[ResultT]:
    """Like ``on_threads``, for requests that mostly wait for a store: a single one stays on the calling thread."""
    if min(at_once, len(arguments)) <= 1:
        return [call(each) for each in arguments]
    return on_threads(call, arguments, at_once, "twopc-requests")


def join(running: list[Worker], threads: Sequence[Worker]) -> None:
    """Wait until those of ``threads`` that were started have ended, and take them out of ``running``."""
    for thread in threads:
        while not thread.ended.wait(LOOK_AGAIN_S):
            if thread.ident is None:
                break  # an interrupt came before it began
        with contextlib.suppress(ValueError):  # two may wait for it
            running.remove(thread)
