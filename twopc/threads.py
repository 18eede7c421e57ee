"""Calls on threads that hold back neither an interrupt nor the end of the interpreter."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from twopc.turns import LOOK_AGAIN_S

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


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
        errors.clear()  # their tracebacks hold this frame, which would hold them, and all that the callers' frames hold
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
