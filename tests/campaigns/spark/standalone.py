"""A Spark standalone cluster: a master and workers, each in its own process."""

import os
import re
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import pyspark
from typing_extensions import Self

from tests.support.kills import Process, bound, kill_all_of

START_AT_MOST_S = 90
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


class Standalone:
    """A context manager that runs a cluster. Each worker has its own host name, because Spark starts a speculative
    attempt only on another host.

    Args:
        folder: the folder for logs and the workers' files.
        workers: the number of workers, each with one core; up to 200.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        self._running = ExitStack()
        self.master = ""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        with self._running as starting:
            log = self._start("master", _MASTER, "--host", "127.0.0.1")
            self.master = _wait_for(log, r"Starting Spark master at (\S+)")
            hosts = [f"127.0.0.{number}" for number in range(1, self._workers + 1)]
            logs = [self._start(f"worker-{host}", *self._worker(host), self.master) for host in hosts]
            for log in logs:
                _wait_for(log, r"(Successfully registered with master)")
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def _worker(self, host: str) -> list[str]:
        work = str(self._folder / f"work-{host}")
        return [_WORKER, "--host", host, "--cores", "1", "--memory", "800m", "--work-dir", work]

    def _start(self, name: str, main_class: str, *arguments: str) -> Path:
        home = Path(pyspark.__file__ or "").parent
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process: Process = subprocess.Popen(
                bound(str(home / "bin/spark-class"), main_class, "--port", "0", "--webui-port", "0", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"},
                start_new_session=True,
            )
        self._running.callback(kill_all_of, process)
        return log


def _wait_for(log: Path, line: str) -> str:
    """Wait until the pattern matches in the log. Return its first group."""
    deadline = time.monotonic() + START_AT_MOST_S
    while not (found := re.search(line, log.read_text())):
        if time.monotonic() > deadline:
            raise RuntimeError(f"no {line!r} within {START_AT_MOST_S} s in {log}")
        time.sleep(0.1)
    return found[1]
