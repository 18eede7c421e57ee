"""What the workers of a run ask the process that started it for, such as a server that they share."""

import os
from multiprocessing.connection import Client
from typing import Any, NamedTuple

import pytest

ADDRESS = "TWOPC_TESTS_SHARED"
"""The environment variable with the socket of the process that started the run."""


class Outcome(NamedTuple):
    """What became of something that is tried once per run.

    Attributes:
        value: what it has given, such as the address of a server.
        skipped: what to install, where it is impossible on this machine.
        failed: the traceback of an attempt that failed.
    """

    value: Any = None
    skipped: str = ""
    failed: str = ""


def once_per_run(name: str) -> Any:
    """Return what ``shared_servers.STARTS`` has under this name. Skip the test where that is impossible."""
    with Client(os.environ[ADDRESS]) as connection:
        connection.send(name)
        outcome: Outcome = connection.recv()
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    if outcome.failed:
        pytest.fail(f"{name} did not start:\n{outcome.failed}", pytrace=False)
    return outcome.value
