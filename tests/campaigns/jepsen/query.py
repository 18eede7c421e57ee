"""One query: the processes of its driver, its workers and its readers, each started again when it is gone."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import psycopg
from psycopg import sql

from tests.campaigns.jepsen.brokers import SERVERS
from tests.campaigns.jepsen.driver import wish
from tests.campaigns.jepsen.network import DRIVERS, READERS, WORKERS, Network
from tests.campaigns.jepsen.reader import READERS as LIBRARIES
from tests.campaigns.jepsen.reader import UNTIL
from tests.campaigns.jepsen.workload import PROGRESS, SCHEMA, LoopCheckpoint, Settings
from tests.campaigns.storm.query import DAEMON
from tests.support.full_disks import Disk
from tests.support.kills import PAUSE, Process, all_of, arguments, kill_all_of, kill_each
from tests.support.spark_checkpoint import Checkpoint, Loss

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
"""Between two starts of a driver. The pause doubles until a batch is acknowledged."""


class Query:
    """A query and the supervisor of its processes."""

    program = "tests.campaigns.jepsen.driver"
    worker_hosts: Sequence[str] = WORKERS
    """Where its tasks run, if not below its driver."""

    losses: Sequence[Loss] = (Loss.ONE_BATCH, Loss.TWO_BATCHES)
    """What its checkpoint can lose."""

    is_loop = True
    """Whether its driver is a loop on a ``Coordinator``."""

    is_ours = True
    """Whether it is tested, and not there for comparison. A driver of ours may start while the one before it runs."""

    def __init__(self, name: str, kind: Kind, folder: Path, network: Network, **settings: Any) -> None:
        self.name, self.kind = name, kind
        self._network = network
        self.folder = folder / name
        self.folder.mkdir()
        self.settings = Settings(
            folder=str(self.folder),
            topic=name,
            kafka={"bootstrap.servers": SERVERS, "transactional.id.prefix": name, **kind.kafka},
            makes_copies=kind.makes_copies,
            has_progress=self.is_loop,
            **settings,
        )
        self._history = self.settings.history()
        self.checkpoint = self._checkpoint()
        self.disks: list[Disk] = []
        """The disks of the log, of the files and of the replay copies, if these have their own."""

        self._drivers: list[Process] = []
        self._beside: dict[str, Process] = {}
        """The workers, by their hosts, and the readers, by their names."""

        self._start_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self.batches = 0
        self.starts = 0
        self.ends = Counter[str]()
        self.is_closed = False
        """Whether a driver has ended without an error."""

        self.away_s = 0.0
        """How long the next driver waits before it starts."""

    def _checkpoint(self) -> LoopCheckpoint | Checkpoint:
        return self.settings.checkpoint()

    def mount_disks(self) -> None:
        """Have disks for the log, the files and the replay copies, if there are any. Call it before ``start``."""
        names = ("log", "files", "copies") if self.settings.makes_copies else ("log", "files")
        self.disks += [Disk(self.folder / name) for name in names]

    def create_tables(self) -> None:
        with psycopg.connect(self.settings.conninfo, autocommit=True) as connection:
            table = sql.Identifier(self.settings.table)
            connection.execute(sql.SQL("CREATE TABLE {} (key text, value text)").format(table))
            connection.execute(sql.SQL("CREATE INDEX ON {} (split_part(value, ':', 1))").format(table))
        for lake_table in self.settings.lake().values():
            lake_table.create(SCHEMA)

    # Its processes. -----------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The host of the newest driver. Each driver runs on another one than its predecessor."""
        return DRIVERS[self.starts % len(DRIVERS)]

    @property
    def driver(self) -> Process | None:
        """The newest driver, if it runs."""
        newest = self._drivers[-1] if self._drivers else None
        return newest if newest and newest.poll() is None else None

    def succeed(self) -> None:
        """Start a driver, whatever the one before it does."""
        self.starts += 1
        log = self.folder / "driver.log"
        self._drivers.append(self._network.start_python(self.host, log, self.program, self._json))

    def die(self, moment: str) -> None:
        """Have the newest driver kill itself at a moment."""
        if self.driver:
            wish(self.settings, self.driver.pid).write_text(moment, encoding="utf-8")

    def pause(self, moment: str) -> None:
        """Have the newest driver pause itself at a moment, once."""
        self.die(f"{PAUSE}{moment}")

    def withdraw(self, driver: Process) -> bool:
        """Take a wish back. Return whether the driver had not come to its moment."""
        try:
            wish(self.settings, driver.pid).unlink()
        except FileNotFoundError:
            return False
        return True

    def kill_driver(self) -> None:
        if self.driver:
            self.driver.kill()

    def kill_drivers(self) -> None:
        """Kill every driver, and all processes below it. Return when they are gone."""
        for driver in self._drivers:
            kill_all_of(driver)

    def tasks(self) -> list[psutil.Process]:
        """Return the processes that run tasks."""
        found: list[psutil.Process] = []
        for worker in (self._beside[host] for host in self.worker_hosts):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += psutil.Process(worker.pid).children() if worker.poll() is None else []
        return found

    def kill_worker(self, host: str) -> None:
        if self._beside[host].poll() is None:
            kill_each(all_of(self._beside[host]))

    def start(self) -> None:
        """Start workers and readers. ``supervise`` starts the driver."""
        names = (*self.worker_hosts, *LIBRARIES, *([PROGRESS] if self.is_loop else []))
        self._beside = {name: self._start_beside(name) for name in names}

    def _start_beside(self, name: str) -> Process:
        """Start a worker or a reader."""
        command: Sequence[str]
        if name in LIBRARIES:
            host, command = READERS, ("reader", name, self.settings.topic, str(self.seen_by(name)))
        elif name == PROGRESS:
            host, command = READERS, ("progress", self._json, str(self.progress))
        else:
            host, command = name, ("worker", self._json, name)
        module, *arguments = command
        log = self.folder / f"{name}.log"
        return self._network.start_python(host, log, f"tests.campaigns.jepsen.{module}", *arguments)

    @property
    def progress(self) -> Path:
        """The file of what the reader of the consumer group saw."""
        return self.folder / "progress.txt"

    @property
    def _json(self) -> str:
        return json.dumps(asdict(self.settings))

    def seen_by(self, library: str) -> Path:
        """Return the file of what a reader saw."""
        return self.folder / f"{library}.txt"

    @property
    def visible(self) -> int:
        """Return a number that changes when a committed reader sees another record."""
        seen = self.seen_by("librdkafka")
        return seen.stat().st_size if seen.exists() else 0

    # The supervisor. ----------------------------------------------------------------------------------------------

    def supervise(self) -> None:
        """Count the batches, and start what is gone again: a driver after a pause, as an orchestrator does."""
        if (batches := self.acknowledged()) > self.batches:
            self.batches, self._pause_s = batches, FIRST_PAUSE_S
        for driver in [each for each in self._drivers if each.poll() is not None]:
            self._ended(driver)
        if not self.is_closed and not self.driver and time.monotonic() >= self._start_at:
            self.succeed()
        for name, process in self._beside.items():
            if process.poll():  # a reader that came to the end returns 0
                self._beside[name] = self._start_beside(name)

    def acknowledged(self) -> int:
        """Return the number of acknowledged batches."""
        return self._history.next_batch()

    def _ended(self, driver: Process) -> None:
        self.ends[_how(driver.returncode)] += 1
        self.is_closed |= driver.returncode == 0
        if self.checkpoint.is_damaged and driver.returncode > 0:
            self.checkpoint.repair()
        if driver is self._drivers[-1] and driver.returncode:
            self._start_at = time.monotonic() + max(self._pause_s, self.away_s)
            self._pause_s, self.away_s = min(2 * self._pause_s, LONGEST_PAUSE_S), 0.0
        self._drivers.remove(driver)

    def stop(self) -> None:
        """Tell the driver to end after its batch."""
        self.settings.stop.touch()

    def recover(self) -> None:
        """Kill the tasks, which may outlive their driver, and have a last driver roll back what they had open."""
        for host in WORKERS:
            self.kill_worker(host)
        for host in self.worker_hosts:
            del self._beside[host]
        self.worker_hosts = ()
        self.is_closed = False

    def read_until(self, ends: Mapping[int, int]) -> None:
        """Tell the readers where to end."""
        aside = self.folder / "until"
        aside.write_text(json.dumps(ends), encoding="utf-8")
        aside.rename(self.folder / UNTIL)

    def readers_that_read_on(self) -> list[str]:
        return [library for library in LIBRARIES if self._beside[library].poll() is None]

    def write_stacks(self) -> None:
        """Have drivers and tasks write what they do into their logs, to show why they are stuck."""
        for driver in self._drivers:
            driver.send_signal(signal.SIGUSR1)
        for task in self.tasks():
            with contextlib.suppress(psutil.NoSuchProcess):
                task.send_signal(signal.SIGUSR1)

    def close(self) -> None:
        for process in (*self._drivers, *self._beside.values()):
            if process.poll() is None:
                kill_each(all_of(process))
                process.wait()


class SparkQuery(Query):
    """A query of Spark, whose tasks run below its driver."""

    program = "tests.campaigns.jepsen.spark_driver"
    worker_hosts = ()
    losses = tuple(Loss)
    is_loop = False

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder / "checkpoint", self.folder / "log")

    def tasks(self) -> list[psutil.Process]:
        """Return Spark's Python workers and their daemons."""
        running = [process for driver in self._drivers if driver.poll() is None for process in all_of(driver)]
        return [process for process in running if DAEMON in arguments(process)]

    def kill_worker(self, host: str) -> None:
        """Kill the JVM of the newest driver, and its Python workers."""
        if self.driver:
            kill_each(all_of(self.driver)[1:])


def _how(returncode: int) -> str:
    return {0: "without an error", -signal.SIGKILL: "killed"}.get(returncode, "with an error")


class Kind(NamedTuple):
    """How a query writes to Kafka, whether it keeps replay copies, and what runs it.

    Attributes:
        longest_step_s: the largest step of a clock that rolls back no decided transaction for good.
    """

    kafka: Mapping[str, Any]
    makes_copies: bool
    run_by: type[Query] = Query
    longest_step_s: float = math.inf


# Short, so that a driver that stays away outlasts it.
_SHORT = {"transaction.timeout.ms": 15_000, "commit.margin.ms": 3000}
_WITHOUT_TIMEOUT = {"writer": "arrow", "two.phase.commit": "require"}

KINDS = {
    "arrow": Kind(_WITHOUT_TIMEOUT, makes_copies=False),
    "arrow-copies": Kind({"writer": "arrow", "two.phase.commit": "off", **_SHORT}, makes_copies=True),
    "librdkafka": Kind({"writer": "librdkafka"}, makes_copies=False, longest_step_s=60),
    "librdkafka-copies": Kind({"writer": "librdkafka", **_SHORT}, makes_copies=True),
    "spark": Kind(_WITHOUT_TIMEOUT, makes_copies=False, run_by=SparkQuery),
    "spark-copies": Kind({"writer": "librdkafka", **_SHORT}, makes_copies=True, run_by=SparkQuery),
}
