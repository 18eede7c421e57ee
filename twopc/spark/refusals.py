"""What a task refuses, told on the driver as what it is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from twopc import errors

_RAISED = re.compile(r"^twopc\.errors\.(\w+): (.+)$", re.MULTILINE)


@contextlib.contextmanager
def of_tasks() -> Iterator[None]:
    """Raise what a task of the job inside was refused with. PySpark tells the driver no more of it than the text of its
    traceback, and a round that is rolled back for an unknown reason is one to run again.

    Raises:
        Refused: a task raised it, in these words.
    """
    try:
        yield
    except Exception as error:
        for name, message in _RAISED.findall(str(error))[-1:]:  # the one that ended the task comes last
            kind = getattr(errors, name, Exception)
            if issubclass(kind, errors.Refused):
                raise kind(message) from error
        raise
