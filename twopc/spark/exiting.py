"""How a driver ends: its exit code lets a supervisor restart it, or leave it stopped for an operator.

PySpark passes on only the text of the error that ended a query, including the tracebacks of Python processes. The text
of every twopc error ends with the command that describes its class, by which the class is recognized here. The class
of a backend's own error is therefore known as the core's class that it inherits from.
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
"""Finds the error at the end of a traceback, which may be in the middle of Spark's text."""

_KINDS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.TwoPhaseCommitError)
}


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for a driver that ends with ``error``: a twopc error, or one that Spark raised for it.

    In an exception group, such as from an ``asyncio.TaskGroup``, an error that needs an operator takes precedence.
    """
    return _outcome(error)[0]


def _outcome(error: BaseException) -> tuple[ExitCode, str]:
    """Return the exit code, and the text of the error that it stands for."""
    found = [(code_of(kind), sentence) for kind, sentence in _errors_in(error)]
    text = f"{type(error).__name__}: {str(error).strip()}"
    other = code_of(type(error)), [text.partition("\n")[0], *_RAISED.findall(text)][-1]
    return next((each for each in found if each[0].stays_stopped), next(iter(found), other))


def _errors_in(error: BaseException | None) -> Iterator[tuple[type[BaseException], str]]:
    """Yield the class and the text of the latest twopc error in the traceback of ``error``; one for each member of a
    group."""
    while error is not None:
        if isinstance(error, errors.TwoPhaseCommitError):
            yield type(error), f"{error.kind}: {error}"
            return
        if members := getattr(error, "exceptions", ()):  # an ExceptionGroup, from Python 3.11
            for member in members:
                yield from _errors_in(member)
            return
        # A traceback ends with the error itself, after its causes.
        for text, name in _LINK.findall(str(error))[-1:]:
            yield _KINDS.get(name, type(error)), f"{name}: {text}"
            return
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@contextlib.contextmanager
def exiting(*, hold: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """If an error leaves the block, end the process with the error's exit code. Prints the traceback, then a line with
    the code, what to do, and the error's text.

    Put the whole driver into the block, so that wrong options and errors before the query starts have exit codes too.
    See docs/production.md for supervisors.

    Args:
        hold: for a supervisor that restarts a driver after any exit code. If the code asks for an operator, the process
            does not end: it writes the reason to this file, stops Spark, and waits to be killed. An earlier driver's
            file is removed.

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
    """Remove ``file`` and return its path. Raises ConfigurationError: the file can't be written."""
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
        file.write_text(reason, encoding="utf-8")  # before Spark is stopped, which may take long
    except OSError as error:
        sys.stderr.write(f"twopc: held back, but the reason can't be written: {error}\n")
    with contextlib.suppress(Exception):  # Spark may have ended already
        if session := SparkSession.getActiveSession():
            session.stop()  # frees its executors
    # In short steps, as Python handles a signal that arrives just before a sleep only after it.
    while True:
        time.sleep(_POLL_INTERVAL_S)


def until_stopped(query: StreamingQuery) -> None:
    """Wait until the query ends. On SIGTERM, stop it between two batches, like ``stop``, and end the process.

    Call it in the driver's main thread, as Python handles signals there.

    Raises:
        SystemExit: with code 143, on SIGTERM. With code 0, a supervisor that drains the machine would consider the
            query complete.
        StreamingQueryException: the query has failed.
        TwoPhaseCommitError: like ``stop``.
    """
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        # Not in the handler, which may interrupt a call into Java: its connection serves one call at a time.
        while not query.awaitTermination(_POLL_INTERVAL_S):
            if asked.is_set():
                stop(query)
                raise SystemExit(int(ExitCode.TERMINATED))
    finally:
        signal.signal(signal.SIGTERM, before)
