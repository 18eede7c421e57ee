"""A log that is read on a thread of its own, so that a store that answers slowly holds up nobody."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from twopc.cli.output import kind_of
from twopc.errors import CorruptLog
from twopc.log.entries import Entry
from twopc.log.history import FollowedLog, History, NoLog


@dataclass(frozen=True, slots=True)
class QueryState:
    """What a log holds about its query.

    Attributes:
        log_id: the log's name in transactional ids.
        prefixes: sink → the prefix of its transactional ids.
        batch_id: the newest decided batch; None before the first.
        entries: how many the log keeps.
        bytes: the size of these entries.
        last_entry_s: when the newest was written, by the writer's clock, in seconds since the epoch.
        is_clean: whether the newest coordinator has stopped cleanly.
        unanswered_s: how long a call has had no answer, once it is a minute; else 0.
        oldest_in_doubt_s: how long the oldest batch in doubt has been so; 0 if none is.
        usual_in_doubt_s: how long the query's batches usually are in doubt in the log.
        in_doubt: sink → decided transactions that are not known to be committed, for every sink of the query.
        abandoned: sink → decided transactions that operators gave up.
    """

    owner: str
    log_id: str
    prefixes: Mapping[str, str]
    batch_id: int | None
    incarnation: int
    entries: int
    bytes: int
    last_entry_s: float
    is_clean: bool
    unanswered_s: float
    oldest_in_doubt_s: float
    usual_in_doubt_s: float
    in_doubt: Mapping[str, int]
    abandoned: Mapping[str, int]

    @classmethod
    def of(cls, history: History, oldest_in_doubt_s: float) -> QueryState:
        """Return what a log has at one moment. Raises CorruptLog if the time of an entry is none."""
        tail = history.tail
        decided = [decision.committables for decision in tail.unresolved]
        given_up = [abandonment.given_up.committables for abandonment in tail.abandoned]
        sinks = sorted({*tail.prefixes, *(name for each in (*decided, *given_up) for name in each)})
        return cls(
            owner=tail.owner,
            log_id=tail.log_id,
            prefixes=tail.prefixes,
            batch_id=tail.decided,
            incarnation=tail.incarnation,
            entries=len(history.entries),
            bytes=history.bytes,
            last_entry_s=timestamp(tail.written_at),
            is_clean=history.is_clean,
            unanswered_s=history.notice.waited_s if history.notice else 0.0,
            oldest_in_doubt_s=oldest_in_doubt_s,
            usual_in_doubt_s=usual_in_doubt_s(history.entries),
            in_doubt={sink: sum(len(each.get(sink, ())) for each in decided) for sink in sinks},
            abandoned={sink: sum(len(each.get(sink, ())) for each in given_up) for sink in sinks},
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """A log as it was read.

    Attributes:
        at_s: when the reading began, in seconds since the epoch.
        query: what the log holds; None if no query has begun one yet.
    """

    at_s: float
    query: QueryState | None


class Watched(ABC):
    """What is read again and again, on a thread of its own.

    Attributes:
        name: what it is, in what operators read. It holds no secret.
        is_up: whether the newest reading has succeeded.
        problem: why it has failed; None if it has not.
    """

    name: str
    is_up = False
    problem: str | None = None

    @abstractmethod
    def _read(self) -> None:
        """Read once."""

    @abstractmethod
    def _found(self) -> str:
        """Return what the newest reading has found, in a few words."""

    def read(self) -> None:
        """Read once. An error is kept as ``problem``, beside the reading before."""
        try:
            self._read()
            self.is_up, self.problem = True, None
        except Exception as error:  # noqa: BLE001  # whatever it is, it may be readable soon
            self.is_up, self.problem = False, f"{kind_of(error)}: {error}"

    def follow(self, interval_s: float, say: Callable[[str], None], after_s: float = 0.0) -> Callable[[], None]:
        """Read again and again, on a daemon thread, first after ``after_s``. Return a function that ends it.

        Args:
            interval_s: the pause between two readings.
            say: is given a line when something becomes readable, or no longer is.
            after_s: the pause before the first one.
        """
        ends = threading.Event()

        def run() -> None:
            said: str | None = None
            wait_s = after_s
            while not ends.wait(wait_s):
                wait_s = interval_s
                self.read()
                found = self._found() if self.problem is None else f"can't be read: {self.problem}"
                if (line := f"{self.name}: {found}") != said:
                    with contextlib.suppress(OSError):  # such as a full disk: the readings go on
                        say(line)
                    said = line

        threading.Thread(target=run, name=f"twopc-reads-{self.name}", daemon=True).start()
        return ends.set


class WatchedLog(Watched):
    """A log, and its newest reading.

    Args:
        url: the log.
        clock: seconds since the epoch.

    Attributes:
        reading: the newest successful reading; None before the first.

    Raises:
        ConfigurationError: like ``twopc.log.store.open_store``.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self._followed = FollowedLog(url)
        self._clock = clock
        self._doubt = _Doubt()
        self.name = self._followed.store.url
        self.reading: Reading | None = None

    def _read(self) -> None:
        at_s = self._clock()
        try:
            history = self._followed.read()
        except NoLog:
            self._doubt.note(None, at_s)
            self.reading = Reading(at_s, None)
        else:
            self.reading = Reading(at_s, QueryState.of(history, self._doubt.note(history, at_s)))

    def _found(self) -> str:
        query = self.reading.query if self.reading else None
        return f"the log of query {query.owner}" if query else "no log is there yet"


class _Doubt:
    """For how long the oldest batch in doubt has been so.

    The log's times are by the writer's clock, which may differ from the reader's. So the age is never less than the
    time for which the reader has seen the batch in doubt, and never more than the time since it last saw it was not.
    """

    def __init__(self) -> None:
        self._batch: tuple[str, int, int] | None = None
        self._seen_s = 0.0
        self._not_before_s = float("-inf")
        self._last_s = float("-inf")

    def note(self, history: History | None, at_s: float) -> float:
        """Return the age in a log that was read at ``at_s``."""
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
    """Return how long a batch of these entries usually is in doubt: the median, over the batches whose commit the
    incarnation that decided them has recorded. 0 if there is none.

    A batch is in doubt in the log until the next decision, although it was committed long before.
    """
    return statistics.median(_settled_s(entries) or [0.0])


def _settled_s(entries: Sequence[Entry]) -> list[float]:
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
    """Return an entry's time in seconds since the epoch. Raises CorruptLog if it is none."""
    try:
        return datetime.fromisoformat(written_at).timestamp()
    except ValueError:
        raise CorruptLog(f"an entry of the log has {written_at!r} as its time") from None
