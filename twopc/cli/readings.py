"""Reads logs and the open transactions of sinks repeatedly. Each log or sink is read on its own thread, so that a slow
system does not hold up the other readings. Changes nothing."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from twopc.cli.output import kind_of
from twopc.errors import ConfigurationError, CorruptLog
from twopc.log.entries import Entry
from twopc.log.history import FollowedLog, History, NoLog
from twopc.sink import OpenTransactions, TwoPhaseCommitSink

Sample: TypeAlias = "tuple[str, list[str], float]"
"""A metric's name, the values of its labels, and its value."""


class Watched(ABC):
    """A log or a sink that is read repeatedly, on a thread of its own.

    ``name`` is for operators, without secrets. ``is_up``: whether the newest reading succeeded. ``problem``: why it
    failed, or None.
    """

    name: str
    is_up = False
    problem: str | None = None

    @abstractmethod
    def _read(self) -> None:
        """Read once."""

    @abstractmethod
    def _found(self) -> str:
        """Summarize the newest reading in a few words."""

    @abstractmethod
    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the newest reading."""

    def read(self) -> None:
        """Read once. If that fails, keep the last reading, and store the reason in ``problem``."""
        try:
            self._read()
            self.is_up, self.problem = True, None
        except Exception as error:  # noqa: BLE001  # any error may pass
            self.is_up, self.problem = False, f"{kind_of(error)}: {error}"

    def follow(self, interval_s: float, say: Callable[[str], None], after_s: float = 0.0) -> Callable[[], None]:
        """Start a daemon thread that reads every ``interval_s``, first after ``after_s``. Return a function that stops
        it. ``say`` gets a line whenever the log or sink becomes readable or unreadable."""
        ends = threading.Event()

        def run() -> None:
            said: str | None = None
            wait_s = after_s
            while not ends.wait(wait_s):
                wait_s = interval_s
                self.read()
                found = self._found() if self.problem is None else f"can't be read: {self.problem}"
                if (line := f"{self.name}: {found}") != said:
                    with contextlib.suppress(OSError):  # such as a full disk; keep reading
                        say(line)
                    said = line

        threading.Thread(target=run, name=f"twopc-reads-{self.name}", daemon=True).start()
        return ends.set


@dataclass(frozen=True, slots=True)
class LogReading:
    """One reading of a log."""

    history: History | None  # the log's contents; None if no query has begun a log yet
    samples: Sequence[Sample]  # its metrics


class WatchedLog(Watched):
    """A log and its newest successful ``reading``, which is None before the first. ``clock`` returns seconds since the
    epoch. Raises ConfigurationError in the same cases as ``twopc.log.store.open_store``."""

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self._followed = FollowedLog(url)
        self._clock = clock
        self._doubt = _Doubt()
        self.name = self._followed.store.url
        self.reading: LogReading | None = None

    def _read(self) -> None:
        at_s = self._clock()
        history = None
        with contextlib.suppress(NoLog):
            history = self._followed.read()
        in_doubt_s = self._doubt.note(history, at_s)
        self.reading = LogReading(history, [*_samples_of_log(self.name, at_s, history, in_doubt_s)])

    def _found(self) -> str:
        history = self.reading.history if self.reading else None
        return f"the log of query {history.tail.owner}" if history else "no log is there yet"

    def samples(self) -> Iterator[Sample]:
        yield "twopc_log_up", [self.name], self.is_up
        if self.reading is not None:
            yield from self.reading.samples


def _samples_of_log(name: str, at_s: float, history: History | None, oldest_in_doubt_s: float) -> Iterator[Sample]:
    """Yield the metrics of a log at one moment. Raises CorruptLog: an entry's time can't be parsed."""
    yield "twopc_log_read_timestamp_seconds", [name], at_s
    yield "twopc_log_entries", [name], len(history.entries) if history else 0
    if history is None:
        return
    tail = history.tail
    decided = [decision.committables for decision in tail.unresolved]
    given_up = [abandonment.given_up.committables for abandonment in tail.abandoned]
    of_query = [name, tail.owner]
    yield "twopc_log_bytes", of_query, history.bytes
    if tail.decided is not None:
        yield "twopc_log_batch_id", of_query, tail.decided
    yield "twopc_log_incarnation", of_query, tail.incarnation
    yield "twopc_log_last_entry_timestamp_seconds", of_query, timestamp(tail.written_at)
    yield "twopc_log_clean_stop", of_query, history.is_clean
    yield "twopc_log_unanswered_seconds", of_query, history.notice.waited_s if history.notice else 0.0
    yield "twopc_oldest_in_doubt_seconds", of_query, oldest_in_doubt_s
    yield "twopc_usual_in_doubt_seconds", of_query, usual_in_doubt_s(history.entries)
    # For every sink of the query, so that no time series ends when a batch is committed.
    for sink in sorted({*tail.prefixes, *(name for each in (*decided, *given_up) for name in each)}):
        yield "twopc_in_doubt_transactions", [*of_query, sink], sum(len(each.get(sink, ())) for each in decided)
        yield "twopc_abandoned_transactions", [*of_query, sink], sum(len(each.get(sink, ())) for each in given_up)


class _Doubt:
    """Measures the age of the oldest batch in doubt.

    Times in the log are by the writer's clock, which may differ from the reader's. So the age is bounded by what the
    reader saw: at least the time since it first saw the batch in doubt, at most the time since the reading before that.
    """

    def __init__(self) -> None:
        self._batch: tuple[str, int, int] | None = None
        self._seen_s = 0.0
        self._not_before_s = float("-inf")
        self._last_s = float("-inf")

    def note(self, history: History | None, at_s: float) -> float:
        """Return the age, for a log that was read at ``at_s``."""
        decision = next(iter(history.tail.unresolved), None) if history else None
        if history is None or decision is None:
            self._batch = None
            self._last_s = at_s
            return 0.0
        batch = (history.tail.log_id, decision.batch_id, decision.round.incarnation)
        if batch != self._batch:
            self._batch, self._seen_s, self._not_before_s = batch, at_s, self._last_s
        self._last_s = at_s
        by_log_s = at_s - timestamp(history.in_doubt_since(decision.batch_id))
        return max(0.0, at_s - self._seen_s, min(by_log_s, at_s - self._not_before_s))


def usual_in_doubt_s(entries: Sequence[Entry]) -> float:
    """Return how long a batch in these entries is usually in doubt: the median over batches that one incarnation both
    decided and recorded as committed; 0 if there is none.

    In the log, a batch is in doubt until the next decision, although it was committed long before.
    """
    return statistics.median(_settling_times_s(entries) or [0.0])


def _settling_times_s(entries: Sequence[Entry]) -> list[float]:
    since: dict[int, Entry] = {}
    spans: list[float] = []
    for entry in entries:
        unresolved = {decision.batch_id for decision in entry.unresolved}
        for batch_id in since.keys() - unresolved:
            began = since.pop(batch_id)
            if began.kind == "decide" and began.incarnation == entry.incarnation:
                spans.append(timestamp(entry.written_at) - timestamp(began.written_at))
        for batch_id in unresolved - since.keys():
            since[batch_id] = entry
    return spans


def timestamp(written_at: str) -> float:
    """Return an entry's time in seconds since the epoch. Raises CorruptLog: the time can't be parsed."""
    try:
        return datetime.fromisoformat(written_at).timestamp()
    except ValueError:
        raise CorruptLog(f"an entry of the log has {written_at!r} as its time") from None


# Sinks. ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinkReading:
    """One reading of a sink's open transactions."""

    at_s: float  # when the reading began, in seconds since the epoch
    owner: str
    open: OpenTransactions
    # The longest time for which committed readers have been held back at one position; 0 if they are not, None if the
    # sink can't find out.
    held_back_s: float | None


class WatchedSink(Watched):
    """A sink of the query of ``log`` and its newest successful ``reading``, which is None before the first and while
    there is no log. ``sink`` is its name in the query, and ``target`` is not bound to a log. ``waits``: whether the
    sink was not read because the log does not exist or has not been read yet."""

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
        history = self.log.reading.history if self.log.reading else None
        self.waits = history is None
        if history is None:
            self.reading = None
            return
        at_s = self._clock()
        found = self._bind(history.tail).open_transactions()
        held_back_s = None if found.held_back is None else self._held_back_s(found.held_back, self._clock())
        self.reading = SinkReading(at_s, history.tail.owner, found, held_back_s)

    def _bind(self, query: Entry) -> TwoPhaseCommitSink[Any]:
        """Return the sink bound to the log, and bind it again if another log has taken its place. Raises
        ConfigurationError: the log does not list the sink, or records another prefix for the sink."""
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

    def samples(self) -> Iterator[Sample]:
        if not self.waits:
            yield "twopc_sink_up", [self.log.name, self.sink], self.is_up
        if (reading := self.reading) is None:
            return
        yield "twopc_sink_read_timestamp_seconds", [self.log.name, self.sink], reading.at_s
        of_sink = [self.log.name, reading.owner, self.sink]
        yield "twopc_open_transactions", of_sink, reading.open.count
        for name, seconds in (
            ("twopc_oldest_transaction_seconds", reading.open.oldest_s),
            ("twopc_transaction_timeout_seconds", reading.open.timeout_s),
            ("twopc_held_back_seconds", reading.held_back_s),
        ):
            if seconds is not None:
                yield name, of_sink, seconds
