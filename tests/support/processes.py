"""Processes that a campaign has started, and all that those have started, ended by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable

import psutil

from twopc_kafka_broker import bound_process

Process = subprocess.Popen[bytes]

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def bound(*command: str) -> list[str]:
    """The command, to be ended by the system when this process is gone, or the thread that starts it (on Linux)."""
    return [sys.executable, "-I", "-S", bound_process.__file__, str(os.getpid()), *command]


def all_of(process: Process) -> list[psutil.Process]:
    """A process that has not ended, and all below it."""
    if process.returncode is not None:
        return []
    root = psutil.Process(process.pid)
    return [root, *root.children(recursive=True)]


def kill_each(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL, in order, to those that have not ended by themselves meanwhile."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_all_of(driver: Process) -> None:
    """A driver and all that it started: Python workers leave its group and are found by their parents."""
    if driver.returncode is not None:
        return
    kill_each(all_of(driver))
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def is_alive(driver: Process) -> bool:
    """Without collecting its exit status, after which its id could be that of a stranger when it is killed."""
    return driver.returncode is None and psutil.Process(driver.pid).status() != psutil.STATUS_ZOMBIE


def arguments(process: psutil.Process | None) -> list[str]:
    """A process's command line; nothing of one that is gone."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # or a zombie, which is of the former kind
        return list(process.cmdline()) if process else []
    return []
