"""Finds threads, processes and open files that a test module has left behind."""

import contextlib
import gc
import os
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

ENDS_WITHIN_S = 10.0
"""How long a thread or a process may take to end on a busy machine."""

OURS = ("twopc", "kafka-broker")
"""Prefixes of the names of the project's own threads. Threads of clients, such as fsspec's event loop, live on."""

OF_THE_CONTRACT = "from twopc.testing.kills import"
"""A text in the command of the process from which the contract forks the processes that it kills. It lives as long as
this process."""


class OfTheRun:
    """A plugin that records what session fixtures have started, which outlives a module.

    Not a hook in conftest.py, which pytest would not call for these fixtures.
    """

    def __init__(self) -> None:
        self.started: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope != "session":
            return (yield)
        before = running()
        result = yield
        self.started |= running() - before
        return result


def of_the_run(config: pytest.Config) -> OfTheRun:
    plugin = config.pluginmanager.get_plugin(OfTheRun.__name__)
    assert isinstance(plugin, OfTheRun)
    return plugin


def running() -> set[str]:
    """Return the project's threads, this process's children, and its open files."""
    threads = {f"thread {each.name} {each.ident}" for each in threading.enumerate() if each.name.startswith(OURS)}
    commands = map(_command, psutil.Process().children())  # without ids, since a test may restart a server
    processes = {f"process {command}" for command in commands if OF_THE_CONTRACT not in command}
    return threads | processes | {f"file {path}" for path in _open_files()}


def left(expected: set[str]) -> set[str]:
    """Return what is still running besides ``expected`` after it has had time to end."""
    if running() <= expected:
        return set()
    gc.collect()  # a writer that an error's traceback has kept alive ends its threads when collected
    deadline = time.monotonic() + ENDS_WITHIN_S
    while (found := running() - expected) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())[:200]
    return "ended"


def _open_files() -> set[str]:
    """Return the paths of open temporary files. Libraries may keep other files open.

    Leases of transactional ids do not count: a lease ends with the object that holds it, which the log record of an
    error may keep alive.
    """
    below = tempfile.gettempdir()
    leases = str(Path(below) / f"twopc-{os.getuid()}")
    descriptors = Path("/proc/self/fd")
    found: set[str] = set()
    for descriptor in descriptors.iterdir() if descriptors.is_dir() else ():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(str(descriptor.readlink()))
    return {path for path in found if path.startswith(below) and not path.startswith(leases)}
