"""Failures of a Spark job that pass by themselves, and so never count as repeated: see ``RepeatedFailure``.

PySpark passes on only the text of what has failed a job, so it is searched for what is known to pass.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from twopc.errors import DESCRIBED_BY, RoundAborted, TwoPhaseCommitError
from twopc.failures import PASSING
from twopc.spark.stopping import is_interrupt

_ANSWERS = rf"{re.escape(DESCRIBED_BY)}(?:Retriable|RoundAborted)\b"
"""A task has failed with an answer of twopc, which ends with this."""

_OF_SPARK = r"ExecutorLostFailure|FetchFailed|Python worker exited unexpectedly|Answer from Java side is empty"
"""A process of Spark was lost."""

_OF_JAVA = (
    r"java\.net\.(?:Connect|NoRouteToHost|Socket|SocketTimeout|UnknownHost)Exception\b|"
    r"java\.util\.concurrent\.TimeoutException\b|"
    r"org\.apache\.kafka\.common\.errors\.(?:Disconnect|Network|NotLeaderOrFollower|Timeout|CoordinatorNotAvailable)"
    r"Exception\b"
)
"""A system that Spark reads from did not answer."""

_OF_PYTHON = (
    r"^(?:ConnectionError|ConnectionAbortedError|ConnectionRefusedError|ConnectionResetError|BrokenPipeError"
    r"|TimeoutError): "
)

_PASSES = re.compile(f"{_ANSWERS}|{_OF_SPARK}|{_OF_JAVA}|{_OF_PYTHON}", re.MULTILINE)

_ERRNO = re.compile(r"^\w*Error: \[Errno (\d+)\]", re.MULTILINE)


@contextlib.contextmanager
def passing_failures() -> Iterator[None]:
    """On the driver: have what passes by itself fail the round as an answer of twopc does.

    Raises:
        RoundAborted: instead of an interrupt, of the loss of a process, or of an outage.
    """
    try:
        yield
    except TwoPhaseCommitError:
        raise
    except Exception as error:
        if is_interrupt(error) or passes(str(error)):
            raise RoundAborted(f"{type(error).__name__}: {error}") from error
        raise


def passes(text: str) -> bool:
    """Whether what has failed a job, by its text, is known to pass."""
    numbers = {int(number) for number in _ERRNO.findall(text)}
    return bool(_PASSES.search(text) or not numbers.isdisjoint(PASSING))
