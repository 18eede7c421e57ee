"""How a driver ends: with an exit code by which a supervisor restarts it, or leaves it stopped for an operator.

PySpark passes on only the text of an error that ended a query, with the tracebacks of the Python processes in it. Every
error of twopc ends its own text with where its class is described, and is recognized by that. So an error of a
backend's own class is known as the class of the core that it inherits from.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from twopc import errors
from twopc.exit_codes import ExitCode, code_of
from twopc.spark.stopping import stop

_POLL_INTERVAL_S = 1

_LINK = re.compile(rf"^(?:[\w.]+: )?(.*{re.escape(errors.DESCRIBED_BY)}(\w+))", re.MULTILINE)

_RAISED = re.compile(r"^.*Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)
"""The error at the end of a traceback, which Spark's text may have in the middle."""

_KINDS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.TwoPhaseCommitError)
}


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for a driver that ends with ``error``: one of twopc, or what Spark raised for it.

    In a group of errors, such as of an ``asyncio.TaskGroup``, one that needs an operator takes precedence.
    """
    return _outcome(error)[0]


def _outcome(error: BaseException) -> tuple[ExitCode, str]:
    """Return the exit code, and the sentence of the error behind it."""
    found = [(code_of(kind), sentence) for kind, sentence in _errors_in(error)]
    text = f"{type(error).__name__}: {str(error).strip()}"
    other = code_of(type(error)), [text.partition("\n")[0], *_RAISED.findall(text)][-1]
    return next((each for each in found if each[0].stays_stopped), next(iter(found), other))


def _errors_in(error: BaseException | None) -> Iterator[tuple[type[BaseException], str]]:
    """Yield the class and the text of the newest error of twopc in the traceback of ``error``; one for each member of a
    group."""
    while error is not None:
        if isinstance(error, errors.TwoPhaseCommitError):
            yield type(error), f"{error.kind}: {error}"
            return
        if members := getattr(error, "exceptions", ()):  # an ExceptionGroup, from Python 3.11
            for member in members:
                yield from _errors_in(member)
            return
        # The traceback of an error ends with the error itself, after those that caused it.
        for text, name in _LINK.findall(str(error))[-1:]:
            yield _KINDS.get(name, type(error)), f"{name}: {text}"
            return
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@contextlib.contextmanager
def exiting(*, hold: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """End the process with the exit code of an error that leaves the block. Its traceback is printed, and last a line
    with the code, what to do, and the error's own sentence.

    Put the whole driver into the block, so that wrong options and errors before the query starts have their codes, too.
    See docs/production.md for supervisors.

    Args:
        hold: for a supervisor that restarts a driver after any exit code. If the code asks for an operator, the process
            does not end: it writes the reason to this file, stops Spark, and waits to be killed. A file that an earlier
            driver left is removed.

    Raises:
        SystemExit: instead of any other error.
    """
    file = None
    try:
        if hold is not None:
            file = _writable(Path(hold))
        yield
    except (Exception, KeyboardInterrupt) as error:
        code, sentence = _outcome(error)
        sys.excepthook(type(error), error, error.__traceback__)
        advice = "an operator must act before the next start" if code.stays_stopped else "it may be started again"
        sys.stderr.write(f"twopc: exit code {int(code)}: {advice}. {sentence}\n")
        if file is not None and code.stays_stopped:
            _wait_to_be_killed(file, f"twopc: held back from exit code {int(code)}: {sentence}\n")
        raise SystemExit(int(code)) from error


def _writable(file: Path) -> Path:
    """Return ``file``, which is not there, and can be written. Raises ConfigurationError."""
    try:
        file.write_text("", encoding="utf-8")
        file.unlink()
    except OSError as error:
        raise errors.ConfigurationError(
            f"'hold' must be a file that the driver can write: {error}. Name one in a folder that exists, as in /tmp"
        ) from error
    return file


def _wait_to_be_killed(file: Path, reason: str) -> None:
    try:
        file.write_text(reason, encoding="utf-8")  # first, as the end of Spark may take long
    except OSError as error:
        sys.stderr.write(f"twopc: held back, but the reason can't be written: {error}\n")
    with contextlib.suppress(Exception):  # Spark may have ended already
        if session := SparkSession.getActiveSession():
            session.stop()  # its executors have nothing to do
    # In steps: a signal that comes just before a wait begins is not seen before it ends.
    while True:
        time.sleep(_POLL_INTERVAL_S)


def until_stopped(query: StreamingQuery) -> None:
    """Wait until the query ends. On SIGTERM, stop it between two batches, like ``stop``, and end the process.

    Call it in the driver's main thread, as Python handles signals there.

    Raises:
        SystemExit: with code 143, on SIGTERM. Not 0: a supervisor would take the query for complete when its machine is
            drained.
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
                raise SystemExit(int(ExitCode.TERMINATED))
    finally:
        signal.signal(signal.SIGTERM, before)
