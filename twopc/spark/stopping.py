"""Ends of a query: ``stop``, which comes between two batches, and what Spark's own ``stop()`` does to a batch.

Measured on Spark 4.2.0: ``StreamingQuery.stop()`` cancels the query's jobs, interrupts the Java thread that runs its
batches, and waits until that thread has ended. The thread waits for our Python, which nothing interrupts but its own
calls into Java: they run in that very thread, and raise. So a batch is rolled back where its tasks write, and finished
where it is past them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from twopc.errors import ConfigurationError, Retriable, RoundAborted

if TYPE_CHECKING:
    from twopc.spark.foreach_batch import ForeachBatch

writers: WeakValueDictionary[str, ForeachBatch] = WeakValueDictionary()
"""Who writes a query's batches, by the query's id. A query keeps its writer alive."""

STOP_PATIENCE_S = 5.0
"""How long a batch that is to end may have waited for a target system."""

_LOOK_AGAIN_S = 0.02
_INTERRUPT = "java.lang.InterruptedException"
_INTERRUPTED_READING = ("java.io.InterruptedIOException", "java.nio.channels.ClosedByInterruptException")
_CANCELLED = "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED]"


def stop(query: StreamingQuery) -> None:
    """Stop a query between two batches: the batch under way is finished, Spark has noted it, and the log is closed.

    Then the next start has nothing to recover and repeats no batch. Spark's own ``query.stop()`` breaks a batch off:
    nothing is lost or doubled by it, but the next start recovers. A query without ``foreach_batch``, or before its
    first batch, is stopped by Spark alone.

    A batch that has waited ``STOP_PATIENCE_S`` for a target system is broken off by Spark's ``query.stop()``, and the
    next start goes on with it.

    It does not raise what the batch under way failed with: ``query.exception()`` tells.

    Raises:
        ConfigurationError: it was called from within a batch.
        TwoPhaseCommitError: like ``Coordinator.close``. The query is stopped, and the next start recovers.
    """
    writer = writers.get(query.id)
    with writer.between_batches(query) if writer else contextlib.nullcontext():
        query.stop()
    if writer := writers.get(query.id):
        writer.close()


class Turn:
    """Whose turn it is with a query: a batch's, or that of who stops it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_batch: int | None = None
        self._waits = False

    @contextlib.contextmanager
    def of_batch(self, context: SparkContext) -> Iterator[None]:
        """Wait for the turn and hold it. Called in the thread in which Spark runs the query's batches."""
        try:
            while not self._lock.acquire(blocking=False):
                self._waits = True
                # In Java, where Spark's interrupt ends it: Spark's stop() would wait for Python's lock without end.
                context._jvm.java.lang.Thread.sleep(int(_LOOK_AGAIN_S * 1000))  # type: ignore[union-attr]  # noqa: SLF001
        finally:
            self._waits = False
        self._in_batch = threading.get_ident()
        try:
            yield
        finally:
            self._in_batch = None
            self._lock.release()

    @contextlib.contextmanager
    def between_batches(self, query: StreamingQuery, waits_in_vain: Callable[[], bool]) -> Iterator[None]:
        """Wait until the batch under way has ended and Spark has noted it, and let none begin. A batch that waits in
        vain is broken off."""
        if self._in_batch == threading.get_ident():
            raise ConfigurationError("stop(query) came from within a batch, which it would wait for: call it elsewhere")
        is_broken_off = False
        while not self._lock.acquire(timeout=_LOOK_AGAIN_S):
            if not is_broken_off and waits_in_vain():
                is_broken_off = True
                with contextlib.suppress(Py4JJavaError):  # its 'stopTimeout': the batch ends all the same
                    query.stop()
        try:
            while query.isActive and query.status["isTriggerActive"] and not self._waits:
                time.sleep(_LOOK_AGAIN_S)
            yield
        finally:
            self._lock.release()


@contextlib.contextmanager
def interrupts_as_spark_knows_them(batch_id: int, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Tell Spark in few words that its ``stop()`` broke the batch off, amid a call into Java or amid a wait for a
    target system.

    It knows by a regular expression (SPARK-39218), which overflows the stack of the query's thread where it finds
    Java's trace in the text.
    """
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error, RoundAborted) else error
        thrown = cause.java_exception.toString() if isinstance(cause, Py4JJavaError) else ""
        is_interrupt = thrown.startswith((_INTERRUPT, *_INTERRUPTED_READING, _CANCELLED))
        if not is_interrupt and not (isinstance(cause, Retriable) and is_stopped()):
            raise
        kind = RoundAborted if isinstance(error, RoundAborted) else Retriable  # then it may be decided
        raise kind(
            f"batch {batch_id} was broken off: its query was stopped, or its job cancelled. The query's next start goes"
            f" on with it. (py4j.protocol.Py4JJavaError: An error occurred while calling Spark: {_INTERRUPT})"
        ) from None
