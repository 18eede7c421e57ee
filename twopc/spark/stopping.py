"""How a query ends: ``stop``, which comes between two batches, and Spark's own ``stop()``, which interrupts a batch.

Measured on Spark 4.2.0: ``StreamingQuery.stop()`` cancels the query's jobs, interrupts the Java thread that runs its
batches, and waits until that thread has ended. The thread waits for our Python code, which only its own calls into Java
interrupt: they run in that same thread, and raise. So a batch is rolled back while its tasks write, and finished after
that.
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
from twopc.spark.draining import until_drained

if TYPE_CHECKING:
    from twopc.spark.foreach_batch import ForeachBatch

writers: WeakValueDictionary[str, ForeachBatch] = WeakValueDictionary()
"""The writer of a query's batches, by the query's id. A query keeps its writer alive."""

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
    writer = writers.get(query.id)
    if writer:
        writer._refuse_within_batch()  # noqa: SLF001  # not for users
    if drain:
        until_drained(query)
    with writer._between_batches(query) if writer else contextlib.nullcontext():  # noqa: SLF001  # not for users
        query.stop()
    if writer := writers.get(query.id):
        writer.close()


class Turn:
    """The lock between a query's batches and the thread that stops the query."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_batch: int | None = None
        self._batch_waits = False

    @contextlib.contextmanager
    def of_batch(self, context: SparkContext) -> Iterator[None]:
        """Wait for the lock and hold it. Called in the thread in which Spark runs the query's batches."""
        try:
            while not self._lock.acquire(blocking=False):
                self._batch_waits = True
                # Sleep in Java, where Spark's interrupt arrives. Spark's stop() would wait forever for Python's lock.
                context._jvm.java.lang.Thread.sleep(int(_POLL_INTERVAL_S * 1000))  # type: ignore[union-attr]  # noqa: SLF001
        finally:
            self._batch_waits = False
        self._in_batch = threading.get_ident()
        try:
            yield
        finally:
            self._in_batch = None
            self._lock.release()

    def refuse_within_batch(self) -> None:
        """Raise ConfigurationError in the thread of a batch, which would wait for itself."""
        if self._in_batch == threading.get_ident():
            raise ConfigurationError(
                "stop(query) was called from within a batch and would wait for that batch: call it elsewhere"
            )

    @contextlib.contextmanager
    def between_batches(self, query: StreamingQuery, waits_in_vain: Callable[[], bool]) -> Iterator[None]:
        """Wait until the current batch has ended and Spark has recorded it, and let no other begin. A batch that waits
        in vain is interrupted."""
        is_interrupted = False
        while not self._lock.acquire(timeout=_POLL_INTERVAL_S):
            if not is_interrupted and waits_in_vain():
                is_interrupted = True
                with contextlib.suppress(Py4JJavaError):  # after Spark's 'stopTimeout': the batch ends all the same
                    query.stop()
        try:
            while query.isActive and query.status["isTriggerActive"] and not self._batch_waits:
                time.sleep(_POLL_INTERVAL_S)
            yield
        finally:
            self._lock.release()


@contextlib.contextmanager
def interrupts_in_few_words(batch_id: int, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Shorten the error by which Spark recognizes that its ``stop()`` interrupted the batch, during a call into Java or
    a wait for a target system.

    Spark searches the error's text with a regular expression (SPARK-39218). With Java's stack trace in the text, the
    search overflows the stack of the query's thread.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while isinstance(cause, RoundAborted):
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
