"""The storm: real processes, killed and paused at random, and nothing lost or doubled.

``make storm SECONDS=300 SEED=1``. A broker, a driver with two executors and speculation, their Python workers: a chaos
loop kills them with SIGKILL, or stops them for longer than it takes to give them up and then lets them go on as
zombies. A producer feeds the source all the while. In the end a last driver runs to the end of the source, and the
contents of both targets are compared with what was sent, by clients that did not write. A seed repeats what is struck
and when, not what the machine makes of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import confluent_kafka
import duckdb
import psutil
import pyspark
from kafka import KafkaConsumer, TopicPartition
from rich.console import Console

from tests.storm.query import Settings
from twopc.commit_log import read_tail
from twopc.errors import Retriable
from twopc.log_store import open_store
from twopc_kafka.control import connect
from twopc_kafka.development import KafkaBroker, spark_kafka_jars

PARTITIONS = 3
RECORDS_A_SECOND = 1500
TRANSACTION_TIMEOUT_MS = 30_000
LAST_RUN_S = 240

console = Console()


class Driver:
    """The driver under a supervisor: started again whenever it is gone, whoever killed it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._log = (Path(settings.folder) / "driver.log").open("ab")
        self.starts = 0
        self.down_until = 0.0
        self.process = self._start(settings)

    def _start(self, settings: Settings) -> subprocess.Popen[bytes]:
        self.starts += 1
        spark_home = str(Path(pyspark.__file__ or "").parent)
        return subprocess.Popen(
            [sys.executable, "-m", "tests.storm.query", json.dumps(asdict(settings))],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": spark_home,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            start_new_session=True,
        )

    def supervise(self) -> None:
        """Start it again if it is gone."""
        if self.process.poll() is not None and time.monotonic() >= self.down_until:
            self.kill()
            self.process = self._start(self._settings)

    def kill(self) -> None:
        """The driver and all that it started: processes that leave the group are found by their parent."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def run_to_the_end(self) -> bool:
        """Whether a last driver came to the end of the source in time; started again if it fails on the way."""
        self.kill()
        deadline = time.monotonic() + LAST_RUN_S
        while time.monotonic() < deadline:
            self.process = self._start(replace(self._settings, to_the_end=True))
            with contextlib.suppress(subprocess.TimeoutExpired):
                if self.process.wait(max(1.0, deadline - time.monotonic())) == 0:
                    return True
            self.kill()
        return False

    def descendants(self, word: str) -> list[psutil.Process]:
        """The processes below the driver whose command line has ``word``."""
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.process.pid).children(recursive=True)
            return [process for process in below if word in _command(process)]
        return []


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return " ".join(process.cmdline())
    return ""


class Producer:
    """Feeds the source with numbers, each once, and knows how many it has sent."""

    def __init__(self, settings: Settings) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": settings.servers, "enable.idempotence": True, "log_level": 0}
        )
        self._topic = settings.source
        self.sent = 0

    def feed(self, stop: threading.Event) -> None:
        """Send until told to stop; what a broker that is down does not take is sent when it is back."""
        while not stop.wait(0.1):
            for _ in range(RECORDS_A_SECOND // 10):
                self._producer.produce(self._topic, str(self.sent))
                self.sent += 1
            self._producer.poll(0)
        if self._producer.flush(120):
            raise SystemExit("the producer could not deliver what it had sent: the storm proves nothing")


class Chaos:
    """What can happen, by name; each returns whether there was somebody to hit."""

    def __init__(self, driver: Driver, broker: KafkaBroker, availability: Availability, chance: random.Random) -> None:
        self._driver, self._broker, self._availability, self._chance = driver, broker, availability, chance
        self._decided_at_last_kill: int | None = None
        self.kills: Counter[str] = Counter()
        self._deeds: dict[str, tuple[int, Callable[[], bool]]] = {
            "driver": (3, self._kill_driver),
            "driver, down for long": (1, lambda: self._kill_driver(TRANSACTION_TIMEOUT_MS / 1000 + 5)),
            "executor": (4, lambda: self._kill("CoarseGrainedExecutorBackend")),
            "python worker": (8, lambda: self._kill("pyspark.daemon")),
            "broker": (1, self._kill_broker),
            "paused executor": (2, lambda: self._pause("CoarseGrainedExecutorBackend", 25)),
            "paused python worker": (3, lambda: self._pause("pyspark.daemon", 20)),
            "paused driver": (1, lambda: self._pause_pid(self._driver.process.pid, 5)),
        }

    def strike(self) -> str | None:
        """Do one of the deeds; its name, or None if nobody was there."""
        names = list(self._deeds)
        [name] = self._chance.choices(names, [self._deeds[name][0] for name in names])
        if not self._deeds[name][1]():
            return None
        self.kills[name] += 1
        return name

    def _kill_driver(self, down_s: float = 0) -> bool:
        """Not before it has decided a batch since the last time: else nothing but starting would be tested."""
        if self._driver.process.poll() is not None or self._availability.decided == self._decided_at_last_kill:
            return False
        self._decided_at_last_kill = self._availability.decided
        self._driver.down_until = time.monotonic() + down_s
        self._driver.kill()
        return True

    def _kill(self, word: str) -> bool:
        victims = self._driver.descendants(word)
        if victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._chance.choice(victims).kill()
        return bool(victims)

    def _kill_broker(self) -> bool:
        self._broker.kill()
        time.sleep(self._chance.uniform(0, 3))
        self._broker.start()
        return True

    def _pause(self, word: str, longest_s: float) -> bool:
        victims = self._driver.descendants(word)
        return bool(victims) and self._pause_pid(self._chance.choice(victims).pid, longest_s)

    def _pause_pid(self, pid: int, longest_s: float) -> bool:
        """Stop a process now, and let it go on later, when others may have taken its place."""
        try:
            process = psutil.Process(pid)
            process.suspend()
        except psutil.NoSuchProcess:
            return False

        def resume() -> None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

        threading.Timer(self._chance.uniform(1, longest_s), resume).start()
        return True


def storm(settings: Settings, broker: KafkaBroker, seconds: float, chance: random.Random) -> dict[str, object]:
    """Feed, strike, watch; then settle and compare."""
    driver, producer = Driver(settings), Producer(settings)
    availability, stop = Availability(settings), threading.Event()
    chaos = Chaos(driver, broker, availability, chance)
    feeder = threading.Thread(target=producer.feed, args=(stop,), daemon=True)
    feeder.start()
    started = time.monotonic()
    try:
        wait_for_first_batch(availability, driver)
        while time.monotonic() - started < seconds:
            driver.supervise()
            struck = chaos.strike()
            availability.look()
            console.print(
                f"{time.monotonic() - started:4.0f} s  {struck or '-':22} batches decided: {availability.decided}",
                highlight=False,
            )
            time.sleep(chance.uniform(0.1, 1.9))
        stop.set()
        feeder.join()
        console.print(f"the storm is over; running to the end of {producer.sent} records")
        settled = driver.run_to_the_end()
    finally:
        stop.set()
        driver.kill()
    return {
        "seconds": round(time.monotonic() - started),
        "kills": dict(chaos.kills),
        "kills_in_all": chaos.kills.total(),
        "driver_starts": driver.starts,
        "batches": availability.decided,
        "replayed": count(settings, "TransactionReplayed"),
        "settled": settled,
        "longest_unavailable_s": round(availability.longest_s, 1),
        **compare(settings, producer.sent),
    }


class Availability:
    """How long at most no batch was decided."""

    def __init__(self, settings: Settings) -> None:
        self._store = open_store(f"{settings.folder}/log")
        self._since = time.monotonic()
        self.decided: int | None = None
        self.longest_s = 0.0

    def look(self) -> None:
        """Read the log."""
        tail = read_tail(self._store)
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._since)
        if tail and tail[1].decided != self.decided:
            self.decided, self._since = tail[1].decided, now


def wait_for_first_batch(availability: Availability, driver: Driver) -> None:
    """The storm begins when there is something to hit."""
    deadline = time.monotonic() + 120
    while availability.decided is None:
        availability.look()
        driver.supervise()
        if time.monotonic() > deadline:
            raise SystemExit("the driver did not decide a first batch; see driver.log")
        time.sleep(0.2)


def compare(settings: Settings, sent: int) -> dict[str, object]:
    """What is in both targets against what was sent, and what was left behind."""
    kafka, parquet = Counter(in_kafka(settings)), Counter(in_parquet(settings))
    wanted = Counter(range(sent))
    folder = Path(settings.folder)
    return {
        "records": sent,
        "lost": {"kafka": (wanted - kafka).total(), "parquet": (wanted - parquet).total()},
        "duplicates": {"kafka": (kafka - wanted).total(), "parquet": (parquet - wanted).total()},
        "dangling": len(dangling(settings)),
        "staged_files_left": len(list((folder / "parquet" / "_twopc").glob("*")))
        + len(list((folder / "stage").glob("*"))),
    }


def in_kafka(settings: Settings) -> Iterator[int]:
    """The target topic, read to its end by a committed reader."""
    with KafkaConsumer(bootstrap_servers=settings.servers, isolation_level="read_committed") as consumer:
        partitions = [TopicPartition(settings.target, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for records in consumer.poll(timeout_ms=500).values():
                yield from (int(record.value) for record in records)


def in_parquet(settings: Settings) -> Iterator[int]:
    """The folder, read by DuckDB."""
    rows = duckdb.connect().execute("SELECT value FROM read_parquet(?)", [f"{settings.folder}/parquet/*.parquet"])
    while some := rows.fetchmany(10_000):
        yield from (int(value) for (value,) in some)


def dangling(settings: Settings) -> list[str]:
    """Transactions that are still open in the broker."""
    while True:
        try:
            return connect({"bootstrap_servers": [settings.servers]}).list_ongoing("twopc.")
        except Retriable:
            time.sleep(0.5)


def count(settings: Settings, kind: str) -> int:
    """How often the drivers noted an event."""
    path = Path(settings.folder) / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return sum(f'"event": "{kind}"' in line for line in lines)


def main() -> int:
    """The exit code: 1 on any loss, duplicate, or leftover."""
    parser = argparse.ArgumentParser(description="kill everything at random; lose nothing")
    parser.add_argument("--seconds", type=float, default=300, help="how long to strike (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="which storm (default: 1)")
    parser.add_argument("--folder", default="build/storm", help="where to work; emptied first")
    arguments = parser.parse_args()
    folder = Path(arguments.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "parquet").mkdir(parents=True)
    timeouts = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000}
    with KafkaBroker(folder / "broker", properties=timeouts) as broker:
        for topic in ("source", "target"):
            broker.create_topic(topic, partitions=PARTITIONS)
        settings = Settings(
            servers=broker.bootstrap_servers,
            jars=",".join(str(jar) for jar in spark_kafka_jars("4.2.0")),
            folder=str(folder),
            source="source",
            target="target",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        report = {"seed": arguments.seed, **storm(settings, broker, arguments.seconds, random.Random(arguments.seed))}  # noqa: S311
    (folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    console.print_json(data=report)
    spotless = report["settled"] and not any(
        [*report["lost"].values(), *report["duplicates"].values(), report["dangling"], report["staged_files_left"]]
    )
    return 0 if spotless else 1


if __name__ == "__main__":
    sys.exit(main())
