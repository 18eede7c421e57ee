"""A real Kafka broker in one process, for development and tests."""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from twopc_kafka_broker import bound_process
from twopc_kafka_broker.errors import BrokerFailed
from twopc_kafka_broker.jars import broker_classpath
from twopc_kafka_broker.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from confluent_kafka.admin import AdminClient
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
# Below the range of local ports for outgoing connections (from 32768 on Linux). Inside that range, a client that
# keeps calling a stopped broker can get the broker's port as its own, connect to itself, and so occupy it.
_PORTS = range(15000, 32000)
_PORT_ATTEMPTS = 5

_FORMAT_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 15
_POLL_S = 0.05
_LOG_EXCERPT_CHARACTERS = 4000

_LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
    # Each start logs every setting twice: hundreds of lines that would hide the cause of a failure.
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaConfig=warn",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
)

_DEFAULT_PROPERTIES: Mapping[str, str | int | bool] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # One broker, so one replica. Few internal partitions, as each takes time to start; four still spread the ids.
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    # A test's first consumer does not wait for a second one.
    "group.initial.rebalance.delay.ms": 0,
    # A misspelled topic fails, as on most production clusters.
    "auto.create.topics.enable": False,
    # A broker that was killed can rejoin only after its previous session has expired: 9 s by default. Not much
    # less than this: on a small machine under load, a late heartbeat would fence a running broker.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    # The cleaner's buffer is 128 MiB by default: a quarter of the heap.
    "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
}


@dataclass(frozen=True)
class _Ports:
    broker: int
    controller: int


class KafkaBroker:
    """A single-process Kafka broker (KRaft) on 127.0.0.1, started and stopped by this process.

    As a context manager, `with KafkaBroker() as broker:` starts it, and leaves nothing behind. It serves plain
    text without authentication, and does not create topics by itself. On Linux it ends with this process, even
    if this process gets SIGKILL, which leaves a temporary folder behind. Elsewhere it must be stopped.

    It can be started again after `stop` or `kill`, with the same data and address.

    Args:
        data_folder: The folder for data, log (`broker.log`) and ports, kept across restarts and processes.
            None for a temporary folder that `close` removes.
        properties: The broker's configuration, which overrides the defaults of this class. For tests of transactions
            that time out, see `transaction.abort.timed.out.transaction.cleanup.interval.ms` and
            `transaction.max.timeout.ms`.
        joins: A started broker whose cluster this one joins; only the first broker is a controller. Each broker
            needs its own `node.id` in `properties` (the first has 1), and internal topics need more replicas.
        heap_mb: The maximum size of the heap, in MiB.
        ready_timeout_s: How long the broker may take to answer after the start, in seconds.

    Raises (from `start` and on entering the context):
        JavaNotFound: There is no Java 17 or later.
        JarsNotAvailable: The broker's jars could not be downloaded.
        BrokerFailed: The broker died or did not answer in time; the message ends with the tail of its log.
    """

    def __init__(
        self,
        data_folder: str | os.PathLike[str] | None = None,
        *,
        properties: Mapping[str, str | int | bool] | None = None,
        joins: KafkaBroker | None = None,
        heap_mb: int = 384,
        ready_timeout_s: float = 60.0,
    ) -> None:
        self._given_folder = Path(data_folder).absolute() if data_folder is not None else None
        self._folder: Path | None = self._given_folder
        self._properties = dict(properties or {})
        self._first = joins
        self._heap_mb = heap_mb
        self._ready_timeout_s = ready_timeout_s
        self._ports: _Ports | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # The position in the log where the current start begins.
        self._log_start = 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.pid is not None else "stopped"
        return f"<KafkaBroker {self.bootstrap_servers if self._ports else 'never started'}, {state}>"

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, `127.0.0.1:PORT`; the same across restarts.

        Raises:
            BrokerFailed: The broker was never started.
        """
        if self._ports is None:
            raise BrokerFailed("the broker has no address before its first start")
        return f"{_HOST}:{self._ports.broker}"

    @property
    def pid(self) -> int | None:
        """The broker's process id, or None while it is not running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def cluster_id(self) -> str:
        """The id that the cluster got at its first start.

        Raises:
            BrokerFailed: The broker was never started.
        """
        known = (self.log_file.parent / "data" / "meta.properties").read_text(encoding="utf-8")
        return next(line for line in known.splitlines() if line.startswith("cluster.id=")).partition("=")[2]

    @property
    def log_file(self) -> Path:
        """The file with the broker's output.

        Raises:
            BrokerFailed: The broker was never started.
        """
        if self._folder is None:
            raise BrokerFailed("the broker has no log before its first start")
        return self._folder / "broker.log"

    def start(self) -> None:
        """Start the broker and wait until it answers. Does nothing if it is running.

        Raises: see the class.
        """
        if self.pid is not None:
            return
        java = find_java().executable
        classpath = os.pathsep.join(map(str, broker_classpath()))
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="twopc-kafka-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = self._ports or _read_ports(self._folder)
        if kept is not None and not (_is_free(kept.broker) and _is_free(kept.controller)):
            # Clients know the address, so it must not change.
            raise BrokerFailed(
                f"the broker in {self._folder} had the ports {kept.broker} and {kept.controller} before, and "
                "another process uses one of them now: stop that process, or choose another data_folder"
            )
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._ports = kept or _free_ports()
            try:
                self._run(java, classpath, self._ports)
            except BrokerFailed as error:
                # Another process may take a free port before the broker binds it.
                if attempt == _PORT_ATTEMPTS or "Address already in use" not in str(error):
                    raise
                _log.info("a port was taken by another process: starting the broker again")
            else:
                return

    def stop(self) -> None:
        """End the broker with SIGTERM, and SIGKILL after 15 s. Its data stays. Does nothing if it is not running.

        After an orderly shutdown, the broker starts faster than after `kill`.
        """
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker with SIGKILL, like a crash. Its data stays. Does nothing if it is not running."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End the broker, and remove its data unless `data_folder` was given. Does nothing if it is closed."""
        if self._given_folder is not None:
            self.stop()
            return
        # The data is not used again, so no orderly shutdown is needed.
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            self._ports = None

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, replicas: int = 1
    ) -> None:
        """Create a topic and wait until each partition has a leader.

        Args:
            name: The topic's name.
            partitions: The number of partitions.
            config: The topic's configuration, such as `{"max.message.bytes": "2097152"}`.
            replicas: The number of replicas of each partition.

        Raises:
            BrokerFailed: The broker is not running, took too long, or refused: the topic exists, or its name is
                invalid.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        admin = _admin(self.bootstrap_servers)
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(config or {}))
        try:
            admin.create_topics([topic], request_timeout=10.0)[name].result(timeout=15.0)
            deadline = time.monotonic() + 15.0
            while not _has_leaders(admin, name, partitions):
                if time.monotonic() > deadline:
                    raise BrokerFailed(f"topic {name!r} had no leaders 15 s after it was made")
                time.sleep(_POLL_S)
        except (KafkaException, TimeoutError) as error:
            raise BrokerFailed(f"could not make topic {name!r} on {self.bootstrap_servers}: {error}") from error

    def _run(self, java: Path, classpath: str, ports: _Ports) -> None:
        assert self._folder is not None
        configuration = self._folder / "server.properties"
        joined = _joined(self._first, ports) if self._first else {}
        text = _properties_text(self._folder, ports, {**joined, **self._properties})
        configuration.write_text(text, encoding="utf-8")
        if not (self._folder / "data" / "meta.properties").exists():
            _format(java, classpath, configuration, self._first.cluster_id if self._first else None)
        (self._folder / "ports.json").write_text(json.dumps(asdict(ports)), encoding="utf-8")
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        self._process = _spawn(
            [
                str(java),
                f"-Xmx{self._heap_mb}m",
                # For a fast start on a small machine, rather than the highest throughput after minutes.
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                *_LOGGING,
                "-cp",
                classpath,
                "kafka.Kafka",
                str(configuration),
            ],
            self.log_file,
        )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._ready_timeout_s
        while not _answers(self.bootstrap_servers):
            if (code := process.poll()) is not None:
                raise BrokerFailed(f"the broker ended with code {code} while it started:\n{self._why()}")
            if time.monotonic() > deadline:
                raise BrokerFailed(f"the broker did not answer within {self._ready_timeout_s:g} s:\n{self._why()}")
            time.sleep(_POLL_S)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _why(self) -> str:
        """Return the relevant part of the log since the current start: everything from the first error on, or else the
        end of the log."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(self._log_start)
                told = log.read().decode("utf-8", "replace")
        except OSError:
            return "(it left no log)"
        # A broker that cannot start logs hundreds of lines of an orderly shutdown after the line that matters.
        first_error = told.find(" ERROR ")
        if first_error >= 0:
            told = told[told.rfind("\n", 0, first_error) + 1 :]
            return told[:_LOG_EXCERPT_CHARACTERS]
        return told[-_LOG_EXCERPT_CHARACTERS:]


def _free_ports() -> _Ports:
    found = [*islice(filter(_is_free, random.sample(_PORTS, len(_PORTS))), 2)]
    if len(found) < 2:
        raise BrokerFailed(f"no two free ports between {_PORTS.start} and {_PORTS.stop} on {_HOST}")
    return _Ports(*found)


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        # Like Java: a port with nothing but closed connections counts as free.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_HOST, port))
        except OSError:
            return False
    return True


def _read_ports(folder: Path) -> _Ports | None:
    try:
        return _Ports(**json.loads((folder / "ports.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _properties_text(folder: Path, ports: _Ports, overrides: Mapping[str, str | int | bool]) -> str:
    listeners = f"PLAINTEXT://{_HOST}:{ports.broker}"
    merged: dict[str, str | int | bool] = {
        **_DEFAULT_PROPERTIES,
        "controller.quorum.voters": f"1@{_HOST}:{ports.controller}",
        "listeners": f"{listeners},CONTROLLER://{_HOST}:{ports.controller}",
        "advertised.listeners": listeners,
        "log.dirs": str(folder / "data"),
        **overrides,
    }
    return "".join(f"{key}={_property_value(value)}\n" for key, value in merged.items())


def _joined(first: KafkaBroker, ports: _Ports) -> dict[str, str | int | bool]:
    """Return the properties of a broker that has no controller of its own."""
    assert first._ports is not None  # noqa: SLF001  # of the same class
    return {
        "process.roles": "broker",
        "controller.quorum.voters": f"1@{_HOST}:{first._ports.controller}",  # noqa: SLF001
        "listeners": f"PLAINTEXT://{_HOST}:{ports.broker}",
    }


def _property_value(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # The escapes of java.util.Properties.
    return str(value).replace("\\", "\\\\").replace("\n", "\\n")


def _format(java: Path, classpath: str, configuration: Path, joined_id: str | None) -> None:
    cluster_id = joined_id or base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    tool = [str(java), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", classpath, "kafka.tools.StorageTool"]
    done = subprocess.run(
        # As a single argument: an id that begins with a dash would be taken for an option.
        [*tool, "format", f"--cluster-id={cluster_id}", "-c", str(configuration)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_FORMAT_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise BrokerFailed(
            f"the broker's data folder could not be formatted:\n{done.stdout[-_LOG_EXCERPT_CHARACTERS:]}"
        )


def _spawn(command: list[str], log_file: Path) -> subprocess.Popen[bytes]:
    """Start `command` so that it dies with this process, rather than with the calling thread."""
    started: Future[subprocess.Popen[bytes]] = Future()

    def run() -> None:
        try:
            with log_file.open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", bound_process.__file__, str(os.getpid()), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C at the terminal must reach only this process, which then stops the broker.
                    start_new_session=True,
                )
        except Exception as error:  # noqa: BLE001  # raised below
            started.set_exception(error)
            return
        started.set_result(process)
        process.wait()

    # The kernel ties the child to the thread that started it, not to the process. So that thread lives as long as
    # the child, and the caller's thread may end earlier.
    threading.Thread(target=run, name="kafka-broker", daemon=True).start()
    try:
        return started.result()
    except OSError as error:
        raise BrokerFailed(f"the broker could not be started: {error}") from error


def _answers(bootstrap_servers: str) -> bool:
    """Return whether the broker serves requests: metadata lists it only after it has joined the cluster."""
    host, port = bootstrap_servers.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    from confluent_kafka import KafkaException

    try:
        return bool(_admin(bootstrap_servers).list_topics(timeout=2.0).brokers)
    except KafkaException:
        return False


def _has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    known = admin.list_topics(topic, timeout=5.0).topics[topic].partitions
    return len(known) == partitions and all(partition.leader >= 0 for partition in known.values())


def _admin(bootstrap_servers: str) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    # Refused connections are expected while the broker starts, so they are not logged.
    return AdminClient(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "socket.timeout.ms": 10_000,
        }
    )
