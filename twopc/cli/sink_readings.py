"""The open transactions of a sink, read on a thread of its own. Nothing is changed in the target system."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twopc.cli.readings import QueryState, Watched, WatchedLog
from twopc.errors import ConfigurationError
from twopc.open_transactions import OpenTransactions
from twopc.sink import TwoPhaseCommitSink


@dataclass(frozen=True, slots=True)
class SinkReading:
    """The open transactions of a sink, as they were read.

    Attributes:
        at_s: when the reading began, in seconds since the epoch.
        owner: the query.
        held_back_s: how long committed readers have been seen at the same position of some place, with more behind it;
            0 if they are nowhere, None if the sink does not know.
    """

    at_s: float
    owner: str
    open: OpenTransactions
    held_back_s: float | None


class WatchedSink(Watched):
    """A sink of the query of ``log``, and its newest reading.

    Args:
        sink: the sink's name in the query.
        target: the sink, tied to no log.
        clock: seconds since the epoch.

    Attributes:
        reading: the newest successful reading; None before the first, and while there is no log.
        waits: whether the log was not there, or not read yet, so that nothing was asked.
    """

    def __init__(
        self,
        sink: str,
        target: TwoPhaseCommitSink[Any],
        log: WatchedLog,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = f"sink {sink}"
        self.sink = sink
        self.log = log
        self._target = target
        self._clock = clock
        self._bound: tuple[str, TwoPhaseCommitSink[Any]] | None = None
        self._held: dict[str, tuple[int, float]] = {}
        self.reading: SinkReading | None = None
        self.waits = False

    def _read(self) -> None:
        query = self.log.reading.query if self.log.reading else None
        self.waits = query is None
        if query is None:
            self.reading = None
            return
        at_s = self._clock()
        found = self._of(query).open_transactions()
        held_back_s = None if found.held_back is None else self._held_back_s(found.held_back, self._clock())
        self.reading = SinkReading(at_s, query.owner, found, held_back_s)

    def _of(self, query: QueryState) -> TwoPhaseCommitSink[Any]:
        """Return the sink under its name in the log, which another log may have replaced.

        Raises:
            ConfigurationError: the log knows no such sink, or another prefix of its transactions.
        """
        if self._bound is not None and self._bound[0] == query.log_id:
            return self._bound[1]
        prefix = self._target.prefix
        if query.prefixes and query.prefixes.get(self.sink) != prefix:
            known = ", ".join(f"{sink} with {query.prefixes[sink]!r}" for sink in sorted(query.prefixes))
            raise ConfigurationError(
                f"the sinks file has a sink {self.sink!r} whose transactions start with {prefix!r}, and the log knows"
                f" {known}. Name the sink as in the query, and give it its prefix; then start this command again."
            )
        bound = self._target.unbound()
        bound.bind(self.sink, query.log_id)
        bound.open()
        self._bound = query.log_id, bound
        return bound

    def _held_back_s(self, positions: Mapping[str, int], at_s: float) -> float:
        before = self._held
        self._held = {
            place: before[place] if place in before and before[place][0] == position else (position, at_s)
            for place, position in positions.items()
        }
        return max((at_s - since_s for _, since_s in self._held.values()), default=0.0)

    def _found(self) -> str:
        return "waits for its log" if self.waits else "read"
