"""The kill kit: start a process, kill it at a moment of a batch or from outside, and end all that it has started.

A process that writes batches kills itself with ``KillAt``, so the kill falls on one instruction of the coordinator. A
test starts it with ``run_killed`` and starts it again with ``run_to_the_end``. Processes are killed by their ids.
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
    """End as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


MOMENTS = (*(phase.value for phase in Phase if phase is not Phase.CLOSED), TransactionCommitted.__name__)
"""The moments of every batch and every start: each phase as it is entered, and each commit."""

PAUSE = "pause at "


def moment_of(event: Event) -> str:
    """Return the name of the moment of an event: the phase that is entered, or the kind of event."""
    return event.phase.value if isinstance(event, PhaseEntered) else type(event).__name__


class DiesIfWished:
    """An observer that kills this process at the moment that the file ``wish`` contains, and removes the file before.

    With ``PAUSE`` in front of the moment, it suspends the process instead.
    """

    def __init__(self, wish: Path) -> None:
        self._wish = wish

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        with contextlib.suppress(FileNotFoundError):  # there is no wish, or it was withdrawn
            wished = self._wish.read_text(encoding="utf-8")
            if wished.removeprefix(PAUSE) == moment_of(event):
                self._wish.unlink()
                os.kill(os.getpid(), signal.SIGSTOP if wished.startswith(PAUSE) else signal.SIGKILL)


class KillAt:
    """An observer that ends the process at one moment of one batch.

    Args:
        moment: a phase, as it is entered, such as ``deciding``; ``commit 2``, after the second commit of the batch;
            ``commit of orders``, after the first in that sink; or one that the process itself reports by ``reached``.
        die: how it ends.
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
    """Run a Python module or program that kills itself. Return what it has printed."""
    return _run(command, -signal.SIGKILL)


def run_to_the_end(*command: str) -> str:
    """Run a Python module or program that ends without an error. Return what it has printed."""
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
    """The command, to be ended by the system when this process is gone, or the thread that starts it (on Linux)."""
    return [sys.executable, "-I", "-S", bound_process.__file__, str(os.getpid()), *command]


def all_of(process: Process) -> list[psutil.Process]:
    """Return a process that has not ended, and all below it."""
    if process.returncode is not None:
        return []
    root = psutil.Process(process.pid)
    return [root, *root.children(recursive=True)]


def stand_still(*pids: int) -> None:
    """Stop child processes. Return when each of their threads stands still, so none answers what comes after."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def go_on(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def kill_each(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL, in order, to those that have not ended by themselves meanwhile."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_all_of(driver: Process) -> None:
    """Kill a driver and all that it started. Python workers leave its group and are found by their parents."""
    if driver.returncode is not None:
        return
    kill_each(all_of(driver))
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def is_alive(driver: Process) -> bool:
    """Whether it runs. Its exit status is not collected: after that its id could be a stranger's when it is killed."""
    return driver.returncode is None and psutil.Process(driver.pid).status() != psutil.STATUS_ZOMBIE


def arguments(process: psutil.Process | None) -> list[str]:
    """Return a process's command line, or nothing if it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # or a zombie, which is of the former kind
        return list(process.cmdline()) if process else []
    return []
