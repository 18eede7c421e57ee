"""Waits that an interrupt ends: calls on several threads at once, and locks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

LOOK_AGAIN_S = 0.5
"""How long the main thread waits at a time. CPython does not look at a signal that arrives just before a wait begins,
so without a timeout it would be seen when the wait ends, if ever."""

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


def acquire(lock: threading.Lock) -> None:
    """Wait for a lock and hold it."""
    while not lock.acquire(timeout=LOOK_AGAIN_S):
        pass


def on_threads(
    call: Callable[[ArgumentT], ResultT],
    arguments: Sequence[ArgumentT],
    at_once: int,
    give_up: Callable[[], None],
) -> list[ResultT]:
    """Return the result of ``call`` for each of ``arguments``, in their order, from up to ``at_once`` threads.

    The threads are daemons: the interpreter joins any others before it ends, and a call may wait for a target system
    for as long as that is away. An interrupt of this thread, or an error of a call, calls ``give_up``, which makes the
    other calls end.

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
    try:
        try:
            for thread in threads:
                thread.start()
        except RuntimeError:  # an interpreter that is shutting down, or a full machine, starts no threads
            work()
        _join(threads)
    except BaseException:
        with lock:
            left.clear()
        give_up()
        _join(threads)
        raise
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(arguments))]


def _join(threads: Sequence[threading.Thread]) -> None:
    """Wait until those that were started have ended."""
    for thread in threads:
        while thread.is_alive():
            thread.join(LOOK_AGAIN_S)
