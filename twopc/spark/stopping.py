"""How a query ends: ``stop``, which comes between two batches, and Spark's own ``stop()``, which interrupts a batch.

Measured on Spark 4.2.0: ``StreamingQuery.stop()`` cancels the query's jobs, interrupts the Java thread that runs its
batches, and waits until that thread has ended. The thread waits for our Python code, which only its own calls into Java
interrupt: they run in that same thread, and raise. So a batch is rolled back while its tasks write, and finished after
that.
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
"""How long a batch that is to end may have waited for a target system."""

_POLL_INTERVAL_S = 0.02
_INTERRUPT = "java.lang.InterruptedException"
_INTERRUPTED_READING = ("java.io.InterruptedIOException", "java.nio.channels.ClosedByInterruptException")
_CANCELLED = "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED]"


def stop(query: StreamingQuery, *, drain: bool = False) -> None:
    """Stop a query between two batches: finish the current batch, wait until Spark has recorded it, and close the log.

    With ``drain``, first wait until the query has processed what its sources have now; see docs/spark.md.

    Then the next start has nothing to recover and repeats no batch. Spark's own ``query.stop()`` interrupts a batch:
    nothing is lost or doubled, but the next start recovers. A query without ``foreach_batch``, or before its first
    batch, is stopped by Spark alone.

    A batch that has waited ``STOP_PATIENCE_S`` for a target system is interrupted by Spark's ``query.stop()``, and the
    next start continues with it.

    ``stop`` does not raise the error of a current batch that fails: see ``query.exception()``.

    Raises:
        ConfigurationError: it was called from within a batch.
        StreamingQueryException: the query has failed before it was drained.
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
    """The lock between a query's batches and the thread that stops the query. ``waits_in_vain``: whether the current
    batch has waited too long for a target system. ``close`` closes the query's log."""

    def __init__(self, waits_in_vain: Callable[[], bool], close: Callable[[], None]) -> None:
        self.close = close
        self._waits_in_vain = waits_in_vain
        self._lock = threading.Lock()
        self._thread: int | None = None  # in which Spark runs the batches
        self._batch_waits = False

    @contextlib.contextmanager
    def hold(self, context: SparkContext) -> Iterator[None]:
        """Wait for the lock and hold it. Called in the thread in which Spark runs the query's batches."""
        try:
            while not self._lock.acquire(blocking=False):
                self._batch_waits = True
                # Sleep in Java, where Spark's interrupt arrives. Spark's stop() would wait forever for Python's lock.
                java.jvm(context).java.lang.Thread.sleep(int(_POLL_INTERVAL_S * 1000))
        finally:
            self._batch_waits = False
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._lock.release()

    def refuse_within_batch(self, query: StreamingQuery) -> None:
        """Raise ConfigurationError in the thread of a batch, also when the batch is written: it would wait for itself.
        When the query has ended, another thread may have its number."""
        if self._thread == threading.get_ident() and (self._lock.locked() or query.isActive):
            raise ConfigurationError(
                "stop(query) was called from within a batch and would wait for that batch: call it elsewhere"
            )

    @contextlib.contextmanager
    def between_batches(self, query: StreamingQuery) -> Iterator[None]:
        """Wait until the current batch has ended and Spark has recorded it, and let no other begin. A batch that waits
        in vain is interrupted."""
        is_interrupted = False
        while not self._lock.acquire(timeout=_POLL_INTERVAL_S):
            if not is_interrupted and self._waits_in_vain():
                is_interrupted = True
                with contextlib.suppress(Py4JJavaError):  # after Spark's 'stopTimeout': the batch ends all the same
                    query.stop()
        try:
            while query.isActive and query.status["isTriggerActive"] and not self._batch_waits:
                time.sleep(_POLL_INTERVAL_S)
            yield
        finally:
            self._lock.release()


turns: WeakValueDictionary[str, Turn] = WeakValueDictionary()
"""The turn of a query's batches, by the query's id. The query keeps its writer alive, which has the turn."""


@contextlib.contextmanager
def shorten_interrupts(batch_id: int, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Shorten the error by which Spark recognizes that its ``stop()`` interrupted the batch, during a call into Java or
    a wait for a target system.

    Spark searches the error's text with a regular expression (SPARK-39218). With Java's stack trace in the text, the
    search overflows the stack of the query's thread.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while isinstance(cause, RoundAborted) or (isinstance(cause, Retriable) and is_interrupt(cause.__cause__)):
            cause = cause.__cause__
        if not is_interrupt(cause) and not (isinstance(cause, Retriable) and is_stopped()):
            raise
        kind = RoundAborted if isinstance(error, RoundAborted) else Retriable  # then it may be decided
        raise kind(
            f"batch {batch_id} was interrupted: its query was stopped, or its job cancelled. The query's next start"
            f" continues with it. (py4j.protocol.Py4JJavaError: An error occurred while calling Spark: {_INTERRUPT})"
        ) from None


def is_interrupt(error: BaseException | None) -> bool:
    """Whether Spark's ``stop()`` has interrupted a call into Java, or cancelled its job. Spark wraps the error of a job
    that it runs in another thread."""
    thrown = error.java_exception if isinstance(error, Py4JJavaError) else None
    while thrown is not None:
        if str(thrown.toString()).startswith((_INTERRUPT, *_INTERRUPTED_READING, _CANCELLED)):
            return True
        thrown = thrown.getCause()
    return False


# Failures of a job that are known to pass. ---------------------------------------------------------------------------
# PySpark passes on only the text of what has failed a job, so it is searched for what is known to pass. An outage lasts
# without limit only where it decides. One that another failure was raised for, or that came as one was cleaned up, is
# counted like the loss of a process: it may pass.

_OUTAGES = re.compile(
    rf"{re.escape(DESCRIBED_BY)}Retriable\b|"  # a task has failed with an answer of twopc, which ends with this
    r"java\.net\.(?:Connect|NoRouteToHost|Socket|SocketTimeout|UnknownHost)Exception\b|"
    r"org\.apache\.kafka\.common\.errors\.(?:Disconnect|Network|NotLeaderOrFollower|Timeout|CoordinatorNotAvailable)"
    r"Exception\b|"
    r"java\.nio\.channels\.ClosedChannelException\b|"
    r"^[ |+]*(?:\w+\.)*(?:ConnectionError|ConnectionAbortedError|ConnectionRefusedError|ConnectionResetError"
    r"|BrokenPipeError|TimeoutError|gaierror|RemoteDisconnected): ",
    re.MULTILINE,
)
"""A system did not answer."""

_LOST = re.compile(
    r"ExecutorLostFailure|FetchFailed|Python worker exited unexpectedly|"
    r"\AAn error occurred while calling \S+\Z|"  # py4j's, where the JVM has ended amid a call
    r"cancelled because SparkContext was shut down|Cannot call methods on a stopped SparkContext|"
    r"java\.util\.concurrent\.TimeoutException\b"  # records that are gone end a fetch so, too
)
"""A process of Spark was lost, or the session was stopped, or a wait of Spark has ended. That may come to the same end
each time."""

_ASKED_AGAIN = f"{DESCRIBED_BY}{Retriable.__name__}"
_ABORTED = f"{DESCRIBED_BY}{RoundAborted.__name__}"  # in the text of a task that has failed with an aborted round

_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*((?s:.*?))(?=\n\tat |\nTraceback \(|\Z)")
"""The error at the end of a traceback. In a chain, the last one is what was raised."""

_HANDLING = "During handling of the above exception"  # follows an error in a traceback that the next was not raised for

_ERRNO = re.compile(
    r"^[ |+]*[\w.]*Error: (?:<urlopen error )?\[Errno (\d+)\]", re.MULTILINE
)  # the lines of a group begin so


@contextlib.contextmanager
def passing_failures(is_stopped: Callable[[], bool]) -> Iterator[None]:
    """On the driver: have what passes by itself fail the round as an answer of twopc does. ``is_stopped``: whether this
    process has stopped its session. Then PySpark's own clean-up hides how a job has ended.

    Raises:
        Retriable: instead of an interrupt, or of an outage.
        RoundAborted: instead of the loss of a process, of any other error in a stopped session, or of one beside which
            an outage came. That is counted, as it may never pass: see ``RepeatedFailure``.
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
    """Return what the failure of a job counts as, by its text; None if it is not known to pass."""
    if _LOST.search(text):
        return RoundAborted
    in_python: list[str] = _RAISED.findall(text)  # empty for a group of errors, whose lines are all indented
    is_aborted = _ABORTED in ((in_python and in_python[-1].strip()) or text)
    # Python's chain ends with what was raised, and an aborted round is what its cause is. Java's ends with the cause.
    # Beside an error of Python's, Java has its own, such as that the worker took no more input.
    in_java = text.rpartition("\nCaused by: ")[2].partition("\n\tat ")[0]
    decisive = next((each for each in reversed(in_python) if _ABORTED not in each), "") if in_python else in_java
    is_cleanup = any(_HANDLING in each and not _has_outage(each) for each in in_python) and _ASKED_AGAIN not in decisive
    if _has_outage(decisive) and not is_cleanup:
        return Retriable
    return RoundAborted if is_aborted or _has_outage(text) else None


def _has_outage(text: str) -> bool:
    return bool(_OUTAGES.search(text)) or not PASSING.isdisjoint(int(number) for number in _ERRNO.findall(text))


# A query that is to be stopped first processes what its sources have. ------------------------------------------------

_DRAIN_INTERVAL_S = 0.05
_TOLD_INTERVAL_S = 60.0


def wait_until_drained(query: StreamingQuery) -> None:
    """Wait until a query has processed and committed what its sources have now. Then event-time windows that these
    records closed are emitted, too.

    Spark's ``processAllAvailable`` returns when a trigger finds nothing new. With a source that never pauses it never
    returns: then the offsets that the source had at the call are the goal. They are in the progress that Spark reports
    after each batch, for sources that tell how far they could be read, as Kafka does. Raises StreamingQueryException:
    the query has failed before that.
    """
    goal = _Goal(query.lastProgress)
    paused = threading.Thread(target=_wait_for_a_pause, args=(query,), daemon=True)  # ends with the query at the latest
    paused.start()
    told_s = time.monotonic()
    while query.isActive and paused.is_alive() and not goal.is_reached(query.lastProgress):
        if time.monotonic() - told_s >= _TOLD_INTERVAL_S:
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
    """The offsets of the sources at the call, from the first batch that was certainly planned after it. Which batch
    that is follows from the batches' numbers, and from the progress ``at_call``: Spark's clock may differ from the
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
        """Whether nothing is left to wait for, as far as a progress tells."""
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
    """Return an offset as JSON has it. Spark's progress has it as JSON within JSON, or as text."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given


def _has_reached(end: Any, goal: Any) -> bool:
    """Whether an offset is at the goal or beyond. False if the source does not tell how far it could be read."""
    match end, goal:
        case dict(), dict():
            return all(_has_reached(end.get(name), goal[name]) for name in goal)
        case int(), int():
            return end >= goal
        case _:
            return goal is not None and bool(end == goal)
