"""Starts processes, kills them at a moment of a batch or from outside, and ends everything that they have started.

A process that writes batches kills itself with ``KillAt``, so that the kill hits an exact point in the coordinator. A
test starts it with ``run_killed``, then again with ``run_to_the_end``. Processes are killed by id.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

import twopc
from tests.support.pages import ROOT
from twopc.events import Event, PhaseEntered, TransactionCommitted
from twopc.phases import Phase
from twopc_kafka_broker import bound_process

Process = subprocess.Popen[bytes]

ENDS_AFTER_S = 60
"""How long a process that writes a few batches may take."""

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


# In the process that is killed. -------------------------------------------------------------------------------------


def kill_this_process() -> None:
    """Kill this process, as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)


MOMENTS = (*(phase.value for phase in Phase if phase is not Phase.CLOSED), TransactionCommitted.__name__)
"""The moments at which a process can be killed: the start of each phase, and each commit."""

PAUSE = "pause at "


def moment_of(event: Event) -> str:
    """Return the name of an event's moment: the entered phase, or the kind of event."""
    return event.phase.value if isinstance(event, PhaseEntered) else type(event).__name__


class DiesIfWished:
    """An observer that kills this process at the moment named in the file ``wish``, after removing the file.

    With the prefix ``PAUSE``, it suspends the process instead.
    """

    def __init__(self, wish: Path) -> None:
        self._wish = wish

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        with contextlib.suppress(FileNotFoundError):  # no wish, or it was withdrawn
            wished = self._wish.read_text(encoding="utf-8")
            if wished.removeprefix(PAUSE) == moment_of(event):
                self._wish.unlink()
                os.kill(os.getpid(), signal.SIGSTOP if wished.startswith(PAUSE) else signal.SIGKILL)


class KillAt:
    """An observer that ends the process at one moment of one batch.

    Args:
        moment: the start of a phase, such as ``deciding``; ``commit 2``, after the second commit of the batch; ``commit
            of orders``, after the first commit in that sink; or a moment that the process itself reports with
            ``reached``.
        die: ends the process.
    """

    def __init__(self, batch_id: int, moment: str, die: Callable[[], None] = kill_this_process) -> None:
        self._due = batch_id, moment
        self._die = die
        self._commits = 0

    def reached(self, batch_id: int | None, moment: str) -> None:
        if (batch_id, moment) == self._due:
            self._die()

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        match event:
            case PhaseEntered(phase, batch_id):
                self.reached(batch_id, phase.value)
            case TransactionCommitted(sink, batch_id, _, _) if batch_id == self._due[0]:
                self._commits += 1
                self.reached(batch_id, f"commit {self._commits}")
                self.reached(batch_id, f"commit of {sink}")
            case _:
                pass


# In the process that starts it. -------------------------------------------------------------------------------------


def run_killed(*command: str) -> str:
    """Run a Python module or program that kills itself. Return its output."""
    return _run(command, -signal.SIGKILL)


def run_to_the_end(*command: str) -> str:
    """Run a Python module or program that ends without an error. Return its output."""
    return _run(command, 0)


def _run(command: Iterable[str], ends_with: int) -> str:
    ended = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=ENDS_AFTER_S, check=False
    )
    assert ended.returncode == ends_with, f"ended with {ended.returncode}:\n{ended.stderr}"
    return ended.stdout


def start_logged(log: Path, *command: str) -> Process:
    """Start Python in a process group of its own, with its output appended to ``log``."""
    with log.open("a") as output:
        return subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )


def bound(*command: str) -> list[str]:
    """Return the command wrapped so that, on Linux, the kernel ends it with the thread that starts it, and so at the
    latest with this process."""
    return [sys.executable, "-I", "-S", bound_process.__file__, str(os.getpid()), *command]


def all_of(process: Process) -> list[psutil.Process]:
    """Return a process and its descendants; empty if it has ended."""
    if process.returncode is not None:
        return []
    root = psutil.Process(process.pid)
    return [root, *root.children(recursive=True)]


def stand_still(*pids: int) -> None:
    """Suspend child processes, and wait until all of their threads have stopped, so that none responds any more."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def go_on(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def kill_each(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL in order, skipping processes that have ended."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_all_of(driver: Process) -> None:
    """Kill a driver and all of its descendants, including Python workers, which leave its process group."""
    if driver.returncode is not None:
        return
    kill_each(all_of(driver))
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def is_alive(driver: Process) -> bool:
    """Return whether a driver is running. Does not reap it: afterwards its id could belong to another process when it
    is killed."""
    return driver.returncode is None and psutil.Process(driver.pid).status() != psutil.STATUS_ZOMBIE


def arguments(process: psutil.Process | None) -> list[str]:
    """Return a process's command line; empty if it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # zombies included
        return list(process.cmdline()) if process else []
    return []
