"""Intercepts a sink's requests to an Iceberg catalog, and their responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import requests

if TYPE_CHECKING:
    from twopc_iceberg import IcebergSink


def nothing() -> None:
    """Let a request pass."""


@dataclass
class Between:
    """Intercepts each ``commit_table`` between one sink and its catalog.

    Attributes:
        before: called before each request is passed on.
        after: called before each response is returned.
        passes: how many more requests are passed on.
        requests: functions that send the intercepted requests again.
        requirements: the requirements of each intercepted request.
    """

    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing
    passes: float = float("inf")
    requests: list[Callable[[], Any]] = field(default_factory=list)
    requirements: list[tuple[Any, ...]] = field(default_factory=list)

    def stand(self, sink: IcebergSink) -> Between:
        catalog = sink._lake.catalog()
        commit = catalog.commit_table

        def commit_table(*arguments: Any) -> Any:
            self.requests.append(lambda: commit(*arguments))
            self.requirements.append(arguments[1])
            self.before()
            self.passes -= 1
            if self.passes < 0:
                raise requests.ConnectionError("the request was lost")
            answer = commit(*arguments)
            self.after()
            return answer

        catalog.commit_table = commit_table  # type: ignore[method-assign, assignment]
        return self


def once(call: Callable[[], object]) -> Callable[[], object]:
    """Return a function that calls ``call`` the first time, and does nothing afterwards."""
    return times(1, call)


def times(count: int, call: Callable[[], object]) -> Callable[[], object]:
    """Return a function that calls ``call`` the first ``count`` times, and does nothing afterwards."""
    calls: Iterator[Callable[[], object]] = iter([call] * count)

    def call_next() -> None:
        next(calls, nothing)()

    return call_next


def lost() -> None:
    """Lose a response."""
    raise requests.ReadTimeout("the answer was lost")
