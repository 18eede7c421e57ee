"""How a driver ends: with an exit code by which a supervisor restarts it, or leaves it stopped for an operator.

PySpark passes on only the text of an error that ended a query, with the tracebacks of the Python processes in it. Every
error of twopc ends its own text with a link to its class's section of the catalog, and is recognized by that. So an
error of a backend's own class is known as the class of the core that it inherits from.
"""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
from collections.abc import Iterator

from pyspark.sql.streaming.query import StreamingQuery

from twopc import errors
from twopc.exit_codes import ExitCode, code_of
from twopc.spark.stopping import stop

_POLL_INTERVAL_S = 0.5

_LINK = re.compile(rf"\b{re.escape(errors.CATALOG)}#([a-z]+)")

_KINDS = {
    kind.__name__.lower(): kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.TwoPhaseCommitError)
}


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for a driver that ends with ``error``: one of twopc, or what Spark raised for it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, errors.TwoPhaseCommitError):
            return code_of(type(seen))
        # The traceback of an error ends with the error itself, after those that caused it.
        for kind in _LINK.findall(str(seen))[-1:]:
            return code_of(_KINDS.get(kind, type(seen)))
        seen = seen.__cause__
    return code_of(type(error))


@contextlib.contextmanager
def exiting() -> Iterator[None]:
    """End the process with the exit code of an error that leaves the block, after its traceback.

    Put the whole driver into the block: also wrong options, and errors before the query starts, have their codes. See
    docs/cli.md for the table.

    Raises:
        SystemExit: instead of any other error.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error)
        sys.excepthook(type(error), error, error.__traceback__)
        advice = "an operator must act before the next start" if code.stays_stopped else "may be started again"
        print(f"twopc: exit code {int(code)}: {advice}", file=sys.stderr, flush=True)
        raise SystemExit(int(code)) from error


def until_stopped(query: StreamingQuery) -> None:
    """Wait until the query ends. On SIGTERM, stop it between two batches, like ``stop``.

    Call it in the driver's main thread, as Python handles signals there.

    Raises:
        StreamingQueryException: the query has failed.
        TwoPhaseCommitError: like ``stop``.
    """
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        # Not in the handler: it may interrupt a call into Java, whose connection serves one call at a time.
        while not query.awaitTermination(_POLL_INTERVAL_S):
            if asked.is_set():
                stop(query)
                return
    finally:
        signal.signal(signal.SIGTERM, before)
