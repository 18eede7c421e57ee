"""What happens to requests of a sink on their way to an Iceberg catalog, and to the answers on their way back."""

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
    """Stands between one sink and its catalog, and sees each ``commit_table``.

    Attributes:
        before: called before each request passes.
        after: called before each answer passes.
        passes: how many more requests reach the catalog.
        requests: those that were seen, to be sent again or late.
        requirements: what each of them required.
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
    """Return what calls ``call`` the first time, and does nothing later."""
    return times(1, call)


def times(count: int, call: Callable[[], object]) -> Callable[[], object]:
    """Return what calls ``call`` the first ``count`` times, and does nothing later."""
    calls: Iterator[Callable[[], object]] = iter([call] * count)

    def call_next() -> None:
        next(calls, nothing)()

    return call_next


def lost() -> None:
    """Lose an answer."""
    raise requests.ReadTimeout("the answer was lost")
