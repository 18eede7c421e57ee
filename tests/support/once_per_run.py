"""Resources that the workers of a run request from the process that started it, such as a shared server."""

import os
from multiprocessing.connection import Client
from typing import Any, NamedTuple

import pytest

ADDRESS = "TWOPC_TESTS_SHARED"
"""The environment variable with the address of that process's socket."""


class Outcome(NamedTuple):
    """The outcome of an attempt that is made once per run.

    Attributes:
        value: its result, such as a server.
        skipped: what to install if it is impossible on this machine.
        failed: the traceback of a failed attempt.
    """

    value: Any = None
    skipped: str = ""
    failed: str = ""


def once_per_run(name: str) -> Any:
    """Return the result of ``shared_servers.STARTS[name]``. Skip the test if that is impossible here."""
    with Client(os.environ[ADDRESS]) as connection:
        connection.send(name)
        outcome: Outcome = connection.recv()
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    if outcome.failed:
        pytest.fail(f"{name} did not start:\n{outcome.failed}", pytrace=False)
    return outcome.value
