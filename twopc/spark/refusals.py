"""What a task refuses, raised on the driver as what it is.

PySpark passes on only the text of a task's traceback. So the task ends it with a line that the driver can read.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator

from twopc import errors

_RAISED = re.compile(r"^twopc\.spark\.refusals\.TaskRefused: (.+)$", re.MULTILINE)

_LACKS_TWOPC = re.compile(r"^ModuleNotFoundError: (.* has no package 'twopc'.*)$", re.MULTILINE)
"""What ``shipped.body`` raises."""

_UNFIT_PYTHON = re.compile(
    r"^(?:[\w.]+\.)?(?:ImportError|ModuleNotFoundError|PySparkImportError|PySparkRuntimeError): "
    r"(.*(?:\b(?:PyArrow|Pandas) >= |No module named '(?:pyarrow|pandas)[.']|PYTHON_VERSION_MISMATCH).*)$",
    re.MULTILINE,
)
"""What Spark's own worker raises before it calls ``shipped.body``. On 4.0 to 4.2 a missing pyarrow is a
``ModuleNotFoundError``; ``PySparkImportError`` is what PySpark raises elsewhere for pyarrow and pandas."""

_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor")


class TaskRefused(Exception):
    """A ``Refused`` on its way from a task to the driver, as one line of JSON."""


@contextlib.contextmanager
def in_task() -> Iterator[None]:
    """Have the driver's ``of_tasks`` find what is refused inside.

    Raises:
        TaskRefused: instead of ``Refused``, which is its cause.
    """
    try:
        yield
    except errors.Refused as refused:
        # A sink of the user's may raise an error of its own: the driver may not have it.
        kind = next(base.__name__ for base in type(refused).__mro__ if base.__module__ == errors.__name__)
        attributes = {name: value for name, value in vars(refused).items() if not name.startswith("__")}
        raise TaskRefused(json.dumps([kind, str(next(iter(refused.args), "")), attributes], default=str)) from refused


@contextlib.contextmanager
def of_tasks() -> Iterator[None]:
    """Raise what a task of the job inside was refused with. A round that is rolled back for an unknown reason would be
    one to run again.

    Raises:
        Refused: a task raised it, in these words and with these attributes.
        ConfigurationError: the Python of an executor lacks what the task needs.
    """
    try:
        yield
    except Exception as error:
        for line in _RAISED.findall(str(error))[-1:]:  # the one that ended the task comes last
            kind, reason, attributes = json.loads(line)
            refused: errors.Refused = getattr(errors, kind)(reason)
            vars(refused).update(attributes)
            raise refused from error
        for reason in _LACKS_TWOPC.findall(str(error))[-1:]:
            raise errors.ConfigurationError(reason) from None
        for reason in _UNFIT_PYTHON.findall(str(error))[-1:]:
            hosts = _LOST_TASK.findall(str(error))[-1:]
            raise errors.ConfigurationError(_unfit(reason, *hosts)) from None
        raise


def _unfit(reason: str, host: str | None = None) -> str:
    where = f"the executor at {host}" if host else "an executor"
    advice = (
        "Give the executors the driver's version of Python, and"
        if "PYTHON_VERSION_MISMATCH" in reason
        else "Executors run the Python that PYSPARK_PYTHON or spark.pyspark.python names:"
    )
    log = "" if host else " Spark's log names the host of the executor in a line that begins with 'Lost task'."
    return (
        f"the Python of {where} can't run the batch's tasks: {reason.rstrip('.')}. {advice} install twopc-core[spark]"
        f" and the distributions of the sinks into that Python on every executor, as on the driver.{log}"
    )
