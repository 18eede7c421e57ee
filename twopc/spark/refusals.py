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
        raise
