"""Where Spark ends an Arrow record batch on its way to Python: at its limit of rows, or at that of bytes.

For the second Spark adds up the whole record batch before every row (BatchedPythonArrowInput.writeSizedBatch). That
took three quarters of the JVM's time where records were small, and there the limit of rows is by far the nearer one:
see docs/performance.md.
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
    """Inside, jobs of ``session`` have the limit of rows alone, where that is as good as both.

    ``record_bytes``: the largest mean size of the records of one record batch so far, in bytes of Arrow; 0 where there
    was none, and then both limits stay.
    """
    settings = session._jsparkSession.sessionState().conf()  # noqa: SLF001  # as numbers, whatever their spelling
    rows, limit = settings.arrowMaxRecordsPerBatch(), settings.arrowMaxBytesPerBatch()
    # Where Spark is to have no limit of rows, that is 0 or below.
    if not 0 < rows * record_bytes * _MARGIN <= limit:
        yield
        return
    session.conf.set(_BYTES, _NO_LIMIT)
    try:
        yield
    finally:
        session.conf.set(_BYTES, limit)
