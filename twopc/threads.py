"""Many requests at a time: each mostly waits for a store or a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def in_threads(call: Callable[[ItemT], ResultT], items: Sequence[ItemT], most: int) -> list[ResultT]:
    """Return the result of ``call`` for each item, in order, from at most so many calls at a time."""
    if min(most, len(items)) <= 1:
        return [call(each) for each in items]
    with ThreadPoolExecutor(min(most, len(items)), thread_name_prefix="twopc-requests") as pool:
        return list(pool.map(call, items))
