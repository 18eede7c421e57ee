"""What a module of tests has started and not ended: threads, processes and open files."""

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
"""How long a thread or a process may take to end, on a busy machine, after it was told to."""

OURS = ("twopc", "kafka-broker")
"""How the names of the project's own threads begin. Those of clients, such as fsspec's event loop, live on."""

OF_THE_CONTRACT = "from twopc.testing.kills import"
"""In the command of the process from which the contract forks those that it kills. It lives as long as this one."""


class OfTheRun:
    """A plugin that knows what the fixtures of a whole run have started, which outlives a module.

    It is no hook of a conftest.py: pytest does not call such a one for these fixtures.
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
    """Return the threads of this project, the processes that this one has started, and its open files."""
    threads = {f"thread {each.name} {each.ident}" for each in threading.enumerate() if each.name.startswith(OURS)}
    commands = map(_command, psutil.Process().children())  # without their ids: a test may start a server again
    processes = {f"process {command}" for command in commands if OF_THE_CONTRACT not in command}
    return threads | processes | {f"file {path}" for path in _open_files()}


def left(expected: set[str]) -> set[str]:
    """Return what still runs beside ``expected`` when it has had time to end."""
    if running() <= expected:
        return set()
    gc.collect()  # a writer that an error has kept ends its threads when it goes
    deadline = time.monotonic() + ENDS_WITHIN_S
    while (found := running() - expected) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())[:200]
    return "ended"


def _open_files() -> set[str]:
    """Return the paths of open files below the folder of temporary files. Libraries may keep others.

    A lease of a transactional id is no leftover: it ends with the object that holds it, and the log record of an error
    may keep that object.
    """
    below = tempfile.gettempdir()
    leases = str(Path(below) / f"twopc-{os.getuid()}")
    descriptors = Path("/proc/self/fd")
    found: set[str] = set()
    for descriptor in descriptors.iterdir() if descriptors.is_dir() else ():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(str(descriptor.readlink()))
    return {path for path in found if path.startswith(below) and not path.startswith(leases)}
