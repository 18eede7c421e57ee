"""Where Spark ends an Arrow record batch on its way to Python: at its limit of rows, or at that of bytes.

For the second Spark adds up the whole record batch before every row (BatchedPythonArrowInput.writeSizedBatch). That
took three quarters of the JVM's time where records were small, and there the limit of rows is by far the nearer one:
see docs/performance.md.

Each evaluation of Python in a job reads both limits in its task, from the job's local properties (seen on 4.0 to 4.2).
There is no limit for one of them alone. So the limit is lifted only in jobs in which nothing else runs Python: rows of
another size may go to the user's functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import SparkSession

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"

_NO_LIMIT = 2**31 - 1
"""The limit of bytes with which Spark adds nothing up."""

_MARGIN = 4
"""How many times larger than all before records may be, and a record batch still keeps to both limits."""


@contextlib.contextmanager
def limited_by_rows(session: SparkSession, record_bytes: float) -> Iterator[None]:
    """Inside, jobs of this thread have the limit of rows alone, where that is as good as both.

    A limit of bytes that the user has set stays. ``record_bytes``: the largest mean size of the records of one record
    batch so far, in bytes of Arrow; 0 where that is not known, and then both limits stay.
    """
    context = session.sparkContext
    # Spark copies what was set in a session into the properties of its jobs, over what stands there.
    if not record_bytes or context.getLocalProperty(_BYTES) is not None or not _rows_are_nearer(session, record_bytes):
        yield
        return
    context.setLocalProperty(_BYTES, str(_NO_LIMIT))
    try:
        yield
    finally:
        context.setLocalProperty(_BYTES, None)  # type: ignore[arg-type]  # None clears it


def _rows_are_nearer(session: SparkSession, record_bytes: float) -> bool:
    settings = session._jsparkSession.sessionState().conf()  # noqa: SLF001  # as numbers, whatever their spelling
    rows, limit = settings.arrowMaxRecordsPerBatch(), settings.arrowMaxBytesPerBatch()
    # Where Spark is to have no limit of rows, that is 0 or below.
    return bool(0 < rows * record_bytes * _MARGIN <= limit)
