"""What the tests of the command share: the command as a process, logs that killed drivers left, what readers see."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from tests.support.loop import Job
from tests.support.topic_reader import records_of
from tests.support.waiting import until
from twopc.cli.commands import cli
from twopc_kafka_broker import KafkaBroker


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def twopc(*arguments: object, answers: str = "", **environment: str) -> Done:
    """Run the command. Whatever it does, it shows no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "twopc.cli", *map(str, arguments)],
        input=answers,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def twopc_here(*arguments: object, answers: str = "", **environment: str) -> Done:
    """The same in this process, which starts no interpreter: for what only looks or refuses."""
    done = CliRunner().invoke(
        cli, [str(argument) for argument in arguments], input=answers, env=environment, prog_name="twopc"
    )
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return Done(done.exit_code, done.stdout, done.stderr)


class Clock:
    """A clock that a test sets, in seconds since the epoch."""

    def __init__(self) -> None:
        self.s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.s

    @property
    def text(self) -> str:
        return datetime.fromtimestamp(self.s, timezone.utc).isoformat(timespec="milliseconds")


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    until(holds, 30, what)


@dataclass(frozen=True)
class Shop:
    """One query's folder, log and sinks file. Its driver is killed where a test says."""

    folder: Path
    target: Path
    sinks: Path
    topic: str = ""
    servers: str = ""
    wrecks: Path | None = None
    """Where a folder for each moment of a kill is kept, of a driver that writes files only: they differ in no test."""

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def drive(self, kill_at: str = "", stage: str = "") -> None:
        """Run the driver, and kill it at a moment."""
        if self.wrecks and kill_at and not self.log.exists():
            at = self.wrecks / kill_at
            wreck = Shop(at, at / "target", at / "sinks.toml")
            if not wreck.folder.exists():
                wreck.folder.mkdir()
                wreck.sinks.write_text(files_table(wreck.target))
                wreck.drive(kill_at)
            for folder in ("log", "target"):
                shutil.copytree(at / folder, self.folder / folder)
            shutil.copy(at / "position", self.folder)
            return
        job = Job(
            str(self.folder),
            sinks_file=str(self.sinks),
            owner="shop",
            kill_in=1,
            kill_at=kill_at,
            replay_copies=stage,
            commits_at_once=1,  # so that each run leaves the same transactions
            runs_again=True,  # a broker that has just started may abort a round
        )
        job.run()

    def snapshot(self) -> dict[str, bytes]:
        """Every file of the query, byte by byte, hidden ones too."""
        return {str(path): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def files(self) -> list[str]:
        """The values that a reader of the folder sees, sorted."""
        return sorted(v for path in self.target.glob("*.parquet") for v in pq.read_table(path)["value"].to_pylist())

    def records(self, isolation_level: str = "read_committed") -> list[str]:
        """The values that a reader of the topic sees, sorted."""
        return sorted(record.value.decode() for record in records_of(self.servers, self.topic, isolation_level))

    def holds_readers_back(self) -> bool:
        """Whether a transaction is open, beyond which no committed reader sees."""
        ends = []
        for level in ("read_committed", "read_uncommitted"):
            with KafkaConsumer(bootstrap_servers=self.servers, isolation_level=level) as consumer:
                ends.append(consumer.end_offsets([TopicPartition(self.topic, 0)]))
        return bool(ends[0] != ends[1])


def files_table(target: Path) -> str:
    return f'[archive]\nbackend = "files"\npath = "{target}"\n'


@pytest.fixture
def look() -> Callable[..., Done]:
    return twopc_here


@pytest.fixture
def run() -> Callable[..., Done]:
    return twopc


@pytest.fixture
def wait() -> Callable[[str, Callable[[], bool]], None]:
    return wait_until


@pytest.fixture
def shop(tmp_path: Path, wrecks: Path) -> Shop:
    """A query that writes files."""
    sinks = tmp_path / "sinks.toml"
    sinks.write_text(files_table(tmp_path / "target"))
    return Shop(tmp_path, tmp_path / "target", sinks, wrecks=wrecks)


@pytest.fixture(scope="session")
def wrecks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wrecks")


@pytest.fixture(scope="session")
def quick_broker() -> Iterator[KafkaBroker]:
    """A broker that rolls timed-out transactions back at once."""
    with KafkaBroker(properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}) as broker:
        yield broker


@pytest.fixture
def make_kafka_shop(tmp_path: Path) -> Callable[..., Shop]:
    """A query that writes to a topic, and to files as well unless told otherwise."""

    def make(broker: KafkaBroker, options: str = "", with_files: bool = True) -> Shop:
        topic = f"shop-{uuid.uuid4().hex[:8]}"
        broker.create_topic(topic)
        archive = files_table(tmp_path / "target") if with_files else ""
        orders = f'"bootstrap.servers" = "{broker.bootstrap_servers}"\n"topic" = "{topic}"\n{options}'
        sinks = tmp_path / "sinks.toml"
        sinks.write_text(f'{archive}[orders]\nbackend = "kafka"\n{orders}\n')
        return Shop(tmp_path, tmp_path / "target", sinks, topic, broker.bootstrap_servers)

    return make


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
