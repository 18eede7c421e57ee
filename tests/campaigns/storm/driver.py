"""The driver process and its supervisor."""

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from tests.campaigns.storm.availability import Availability
from tests.campaigns.storm.query import DAEMON, Settings
from tests.support.kills import EXECUTOR, Process, all_of, arguments, is_alive, kill_all_of
from tests.support.spark_checkpoint import Checkpoint
from tests.support.spark_home import spark_home

NO_DECISION_S = 240
"""After so long without a decision, the last driver counts as stuck."""

REHEARSAL_S = 120


class Driver:
    """A driver that is restarted whenever it is gone, whatever ended it."""

    def __init__(self, settings: Settings, checkpoint: Checkpoint) -> None:
        self._settings = settings
        self._checkpoint = checkpoint
        self._log = (Path(settings.folder) / "driver.log").open("ab")
        self._spark_home = spark_home(Path(settings.folder) / "spark")
        self.starts = 0
        self.down_until = 0.0
        if not Path(settings.classes).exists():
            self._rehearse()
        self.process = self._start(settings)

    def _start(self, settings: Settings) -> Process:
        self.starts += 1
        return subprocess.Popen(
            [sys.executable, "-m", "tests.campaigns.storm.query", json.dumps(asdict(settings))],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(Path.cwd()),
                "SPARK_HOME": str(self._spark_home),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            start_new_session=True,
        )

    def _rehearse(self) -> None:
        """Write a few records elsewhere to create the archive of classes, with which drivers start faster."""
        folder = Path(self._settings.folder) / "rehearsal"
        (folder / "parquet").mkdir(parents=True)
        elsewhere = replace(
            self._settings, folder=str(folder), source="rehearsal", target="rehearsed", catalog="", markers=""
        )
        process = self._start(replace(elsewhere, to_the_end=True, is_rehearsal=True))
        deadline = time.monotonic() + REHEARSAL_S
        while is_alive(process) and time.monotonic() < deadline:
            time.sleep(0.05)
        kill_all_of(process)
        self.starts = 0

    @property
    def is_alive(self) -> bool:
        return is_alive(self.process)

    def supervise(self) -> None:
        """Start the driver again if it is gone."""
        if not self.is_alive and time.monotonic() >= self.down_until:
            self._start_again()

    def _start_again(self) -> None:
        """Start the driver again. If it ended because the checkpoint has lost files, repair the checkpoint first."""
        self.kill()
        if self._checkpoint.is_damaged and self.process.returncode > 0:
            self._checkpoint.repair()
        self.process = self._start(self._settings)

    def kill(self) -> None:
        """Kill the driver and all processes that it started."""
        kill_all_of(self.process)

    def fall_asleep(self) -> Process:
        """Suspend the driver and all processes that it started, and start a replacement.

        Returns:
            The suspended driver, for ``wake``.
        """
        sleeper = self.process
        for process in all_of(sleeper):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        self.process = self._start(self._settings)
        return sleeper

    def run_to_the_end(self, availability: Availability) -> bool:
        """Start a last driver, and restart it if it fails. Return whether it reached the end of the source; False, too,
        when no batch is decided for a long time."""
        self._settings = replace(self._settings, to_the_end=True)
        self.kill()
        self.process = self._start(self._settings)
        decided, deadline = availability.decided, time.monotonic() + NO_DECISION_S
        while time.monotonic() < deadline:
            if not self.is_alive:
                self.kill()
                if self.process.returncode == 0:
                    return True
                self._start_again()
            availability.look()
            if availability.decided != decided:
                decided, deadline = availability.decided, time.monotonic() + NO_DECISION_S
            time.sleep(0.05)
        return False

    def executors(self) -> list[psutil.Process]:
        """Return the JVMs of the executors."""
        return self._running(EXECUTOR)

    def python_daemons(self) -> list[psutil.Process]:
        """Return the Python daemons, one per executor."""
        return [process for process in self._running(DAEMON) if DAEMON not in arguments(_parent(process))]

    def python_workers(self) -> list[psutil.Process]:
        """Return the Python workers that the daemons have forked."""
        return [process for process in self._running(DAEMON) if DAEMON in arguments(_parent(process))]

    def _running(self, program: str) -> list[psutil.Process]:
        """Return the processes below the driver that run a given Java class or Python module."""
        return [process for process in all_of(self.process) if program in arguments(process)]


def wake(sleeper: Process) -> None:
    """Resume a suspended driver and all processes that it started."""
    for process in all_of(sleeper):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def _parent(process: psutil.Process) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.parent()
    return None
