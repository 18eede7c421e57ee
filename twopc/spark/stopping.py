"""How a query ends: by ``stop``, between two batches, or by Spark's own ``stop()``, which interrupts a batch.

Measured on Spark 4.2.0: ``StreamingQuery.stop()`` cancels the query's jobs, interrupts the Java thread that runs its
batches, and waits for that thread to end. The thread waits for our Python code, which notices the interrupt only in its
own calls into Java. Those calls run in the Java thread, and raise. So a batch is rolled back if its tasks are still
writing, and finished otherwise.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from twopc.errors import DESCRIBED_BY, ConfigurationError, Retriable, RoundAborted, TwoPhaseCommitError
from twopc.failures import PASSING
from twopc.spark import java

logger = logging.getLogger(__name__)

STOP_PATIENCE_S = 5.0
"""How long a batch may have waited for a target system before ``stop`` interrupts it."""

_POLL_INTERVAL_S = 0.02
_INTERRUPT = "java.lang.InterruptedException"
_INTERRUPTED_READING = ("java.io.InterruptedIOException", "java.nio.channels.ClosedByInterruptException")
_CANCELLED = "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED]"


def stop(query: StreamingQuery, *, drain: bool = False) -> None:
    """Stop a query between two batches: finish the current batch, wait until Spark has recorded it, and close the log.

    With ``drain``, first wait until the query has processed everything that its sources have now; see docs/spark.md.

    After ``stop``, the next start has nothing to recover and repeats no batch. Spark's own ``query.stop()`` interrupts
    a batch: nothing is lost or doubled, but the next start recovers. A query without ``foreach_batch``, or before its
    first batch, is only stopped by Spark.

    If a batch has waited ``STOP_PATIENCE_S`` for a target system, Spark's ``query.stop()`` interrupts it, and the next
    start continues with it.

    If the current batch fails, ``stop`` does not raise its error: see ``query.exception()``.

    Raises:
        ConfigurationError: ``stop`` was called from within a batch.
        StreamingQueryException: the query failed before it was drained.
        TwoPhaseCommitError: like ``Coordinator.close``. The query is stopped, and the next start recovers.
    """
    turn = turns.get(query.id)
    if turn:
        turn.refuse_within_batch(query)
    if drain:
        wait_until_drained(query)
    with turn.between_batches(query) if turn else contextlib.nullcontext():
        query.stop()
    if turn := turns.get(query.id):
        turn.close()


class Turn:
    """The lock between a query's batches and the thread that stops the query. ``waits_in_vain`` returns whether the
    current batch has waited too long for a target system. ``close`` closes the query's log."""

    def __init__(self, waits_in_vain: Callable[[], bool], close: Callable[[], None]) -> None:
        self.close = close
        self._waits_in_vain = waits_in_vain
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # that wrote the newest batch
        self._batch_waits = False

    @contextlib.contextmanager
    def hold(self, context: SparkContext) -> Iterator[None]:
        """Acquire the lock and hold it. Called in the thread in which Spark runs the query's batches."""
        try:
            while not self._lock.acquire(blocking=False):
                self._batch_waits = True
                # Sleep in Java, where Spark's interrupt arrives: Spark's stop() would wait for a Python lock forever.
                java.jvm(context).java.lang.Thread.sleep(int(_POLL_INTERVAL_S * 1000))
        finally:
            self._batch_waits = False
        self._thread = threading.current_thread()
        try:
            yield
        finally:
            self._lock.release()

    def refuse_within_batch(self, query: StreamingQuery) -> None:
        """Raise ConfigurationError in the thread of a batch, even after the batch is written: the thread would wait for
        itself. Threads are not compared by their ids: if a batch was written in a thread that has ended, any other
        thread may have the same id."""
        if self._thread is threading.current_thread() and (self._lock.locked() or query.isActive):
            raise ConfigurationError(
                "stop(query) was called from within a batch and would wait for that batch: call it elsewhere"
            )

    @contextlib.contextmanager
    def between_batches(self, query: StreamingQuery) -> Iterator[None]:
        """Wait until the current batch has ended and Spark has recorded it, and hold back the next one. A batch that
        waits in vain is interrupted."""
        is_interrupted = False
        while not self._lock.acquire(timeout=_POLL_INTERVAL_S):
            if not is_interrupted and self._waits_in_vain():
                is_interrupted = True
                with contextlib.suppress(Py4JJavaError):  # Spark's 'stopTimeout' has passed; the batch still ends
                    query.stop()
        try:
            while query.isActive and query.status["isTriggerActive"] and not self._batch_waits:
                time.sleep(_POLL_INTERVAL_S)
            yield
        finally:
            self._lock.release()


turns: WeakValueDictionary[str, Turn] = WeakValueDictionary()
"""Query id → the turn of its batches. The query keeps its writer alive, which holds the turn."""


@contextlib.contextmanager
def shorten_interrupts(batch_id: int, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Shorten the error of a batch that Spark's ``stop()`` has interrupted, in a call into Java or while it waited for
    a target system.

    Spark recognizes the interrupt by a regular expression over the error's text (SPARK-39218). If the text contains
    Java's stack trace, the search overflows the stack of the query's thread.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while isinstance(cause, RoundAborted) or (isinstance(cause, Retriable) and is_interrupt(cause.__cause__)):
            cause = cause.__cause__
        if not is_interrupt(cause) and not (isinstance(cause, Retriable) and is_stopped()):
            raise
        kind = RoundAborted if isinstance(error, RoundAborted) else Retriable  # with Retriable, it may be decided
        raise kind(
            f"batch {batch_id} was interrupted: its query was stopped, or its job cancelled. The query's next start"
            f" continues with it. (py4j.protocol.Py4JJavaError: An error occurred while calling Spark: {_INTERRUPT})"
        ) from None


def is_interrupt(error: BaseException | None) -> bool:
    """Whether Spark's ``stop()`` has interrupted a call into Java or cancelled its job. Spark wraps the error of a job
    that it runs in another thread."""
    thrown = error.java_exception if isinstance(error, Py4JJavaError) else None
    while thrown is not None:
        if str(thrown.toString()).startswith((_INTERRUPT, *_INTERRUPTED_READING, _CANCELLED)):
            return True
        thrown = thrown.getCause()
    return False


# Failures of a job that are known to pass. ---------------------------------------------------------------------------
# PySpark passes on only the text of a job's error, so the text is searched. If an outage itself failed the job, the
# batch is retried without limit. If it caused another error, or came during cleanup, it is counted like the loss of a
# process, as it may never pass.

_OUTAGES = re.compile(
    rf"{re.escape(DESCRIBED_BY)}Retriable\b|"  # ends the text of twopc's own error in a task
    r"java\.net\.(?:Connect|NoRouteToHost|Socket|SocketTimeout|UnknownHost)Exception\b|"
    r"org\.apache\.kafka\.common\.errors\.(?:Disconnect|Network|NotLeaderOrFollower|Timeout|CoordinatorNotAvailable)"
    r"Exception\b|"
    r"java\.nio\.channels\.ClosedChannelException\b|"
    r"^[ |+]*(?:\w+\.)*(?:ConnectionError|ConnectionAbortedError|ConnectionRefusedError|ConnectionResetError"
    r"|BrokenPipeError|TimeoutError|gaierror|RemoteDisconnected): ",
    re.MULTILINE,
)
"""Matches errors of systems that did not answer."""

_LOST = re.compile(
    r"ExecutorLostFailure|FetchFailed|Python worker exited unexpectedly|"
    r"\AAn error occurred while calling \S+\Z|"  # py4j's text if the JVM ended during a call
    r"cancelled because SparkContext was shut down|Cannot call methods on a stopped SparkContext|"
    r"java\.util\.concurrent\.TimeoutException\b"  # also raised if the records to fetch are gone
)
"""Matches errors after Spark has lost a process, stopped the session or reached a timeout. Such a failure may recur at
every start."""

_ASKED_AGAIN = f"{DESCRIBED_BY}{Retriable.__name__}"
_ABORTED = f"{DESCRIBED_BY}{RoundAborted.__name__}"  # in the text of a task whose round was aborted

_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*((?s:.*?))(?=\n\tat |\nTraceback \(|\Z)")
"""Finds the error at the end of each traceback. In a chain, the last one is the error that was raised."""

_HANDLING = "During handling of the above exception"  # between errors in a traceback: the first did not cause the next

_ERRNO = re.compile(
    r"^[ |+]*[\w.]*Error: (?:<urlopen error )?\[Errno (\d+)\]", re.MULTILINE
)  # the prefix is an exception group's


@contextlib.contextmanager
def passing_failures(is_stopped: Callable[[], bool]) -> Iterator[None]:
    """On the driver: convert a failure that may pass by itself to an error of twopc. ``is_stopped`` returns whether
    this process has stopped its session: PySpark's cleanup then hides how the job ended.

    Raises:
        Retriable: for an interrupt or an outage.
        RoundAborted: for the loss of a process, for any other error in a stopped session, or for an error that came
            with an outage. The failure is counted, as it may recur at every start: see ``RepeatedFailure``.
    """
    try:
        yield
    except TwoPhaseCommitError:
        raise
    except Exception as error:
        kind = Retriable if is_interrupt(error) else passing(str(error)) or (RoundAborted if is_stopped() else None)
        if kind is None:
            raise
        raise kind(f"{type(error).__name__}: {error}") from error


def passing(text: str) -> type[Retriable | RoundAborted] | None:
    """Return the error class for the text of a job's failure; None if the failure is not known to pass."""
    if _LOST.search(text):
        return RoundAborted
    in_python: list[str] = _RAISED.findall(text)  # empty for exception groups, whose lines are indented
    is_aborted = _ABORTED in ((in_python and in_python[-1].strip()) or text)
    # Python's chain ends with the raised error, and Java's with the root cause. An aborted round counts as its
    # cause. A Python error also brings a Java error, such as that the worker took no more input; that one is ignored.
    in_java = text.rpartition("\nCaused by: ")[2].partition("\n\tat ")[0]
    decisive = next((each for each in reversed(in_python) if _ABORTED not in each), "") if in_python else in_java
    is_cleanup = any(_HANDLING in each and not _has_outage(each) for each in in_python) and _ASKED_AGAIN not in decisive
    if _has_outage(decisive) and not is_cleanup:
        return Retriable
    return RoundAborted if is_aborted or _has_outage(text) else None


def _has_outage(text: str) -> bool:
    return bool(_OUTAGES.search(text)) or not PASSING.isdisjoint(int(number) for number in _ERRNO.findall(text))


# Draining: before the stop, the query processes what its sources have. ----------------------------------------------

_DRAIN_INTERVAL_S = 0.05
_LOG_INTERVAL_S = 60.0


def wait_until_drained(query: StreamingQuery) -> None:
    """Wait until a query has processed and committed everything that its sources have now, and has emitted the
    event-time windows that these records close.

    Spark's ``processAllAvailable`` returns when a trigger finds nothing new. For a source that does not pause, it never
    returns. For such a source, wait until the query has reached the offsets that the source had at the call. Spark's
    progress report after each batch contains these offsets, for sources that report their latest offset, as Kafka does.
    Raises StreamingQueryException: the query failed before that.
    """
    goal = _Goal(query.lastProgress)
    paused = threading.Thread(target=_wait_for_a_pause, args=(query,), daemon=True)  # ends with the query at the latest
    paused.start()
    told_s = time.monotonic()
    while query.isActive and paused.is_alive() and not goal.is_reached(query.lastProgress):
        if time.monotonic() - told_s >= _LOG_INTERVAL_S:
            told_s = time.monotonic()
            logger.warning("query %s is not drained yet: %s", query.id, goal)
        time.sleep(_DRAIN_INTERVAL_S)
    if (error := query.exception()) is not None:
        raise error


def _wait_for_a_pause(query: StreamingQuery) -> None:
    try:
        query.processAllAvailable()
    except (PySparkException, Py4JJavaError) as error:
        logger.debug("the query %s has failed while it was drained: %s", query.id, error)


class _Goal:
    """The offsets that the sources had at the call, taken from the first batch that was certainly planned after the
    call. That batch is found by its number and the progress ``at_call``, because Spark's clock may differ from the
    caller's."""

    def __init__(self, at_call: Mapping[str, Any] | None) -> None:
        # The batch after the newest one may be running.
        self._planned_before: int | None = None if at_call is None else at_call["batchId"] + 1
        self._newest: int | None = None
        self._offsets: list[Any] | None = None
        self._reached_by: int | None = None

    def __str__(self) -> str:
        goal = "are not known before a later batch ends" if self._offsets is None else f"are {self._offsets}"
        return f"the newest batch that has ended is {self._newest}, and the offsets to reach {goal}"

    def is_reached(self, progress: Mapping[str, Any] | None) -> bool:
        """Whether the query has reached the offsets, by a progress report."""
        if progress is None:
            return False
        self._newest = progress["batchId"]
        if self._planned_before is None:
            self._planned_before = progress["batchId"]
        if progress["batchId"] <= self._planned_before:
            return False
        sources = progress["sources"]
        self._offsets = self._offsets or [_offset(source["latestOffset"]) for source in sources]
        ends = [_offset(source["endOffset"]) for source in sources]
        if self._reached_by is None and all(map(_has_reached, ends, self._offsets)):
            self._reached_by = progress["batchId"]
        if self._reached_by is None:
            return False
        # The watermark of a batch closes windows in the next one.
        return progress["batchId"] > self._reached_by or not progress["stateOperators"]


def _offset(given: Any) -> Any:
    """Return an offset, parsed if it is JSON. Spark's progress reports contain an offset as JSON in a string, or as
    plain text."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given


def _has_reached(end: Any, goal: Any) -> bool:
    """Whether an offset is at or beyond the goal. False if the source does not report its latest offset."""
    match end, goal:
        case dict(), dict():
            return all(_has_reached(end.get(name), goal[name]) for name in goal)
        case int(), int():
            return end >= goal
        case _:
            return goal is not None and bool(end == goal)
