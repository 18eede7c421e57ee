"""Three Kafka brokers. Each is a controller too, and on a host of its own."""

import base64
import contextlib
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.campaigns.jepsen.network import BROKERS, READERS, Network, address
from tests.support.broker_properties import WITHOUT_TIMEOUT
from tests.support.full_disks import Disk
from tests.support.kills import Process, kill_all_of
from twopc_kafka_broker.jars import broker_classpath
from twopc_kafka_broker.java import find_java

SERVERS = ",".join(f"{address(name)}:9092" for name in BROKERS)
TRANSACTIONS = "__transaction_state"
PARTITIONS = 6
START_TIMEOUT_S = 120

_PROPERTIES: Mapping[str, str | int | bool] = {
    "process.roles": "broker,controller",
    "controller.quorum.voters": ",".join(f"{n}@{address(name)}:9093" for n, name in enumerate(BROKERS, 1)),
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": PARTITIONS,
    "auto.create.topics.enable": False,
    # Shorter than the defaults of 9 s and 30 s: a broker that is cut off loses its partitions within a fault.
    "broker.session.timeout.ms": 6000,
    "broker.heartbeat.interval.ms": 1000,
    "replica.lag.time.max.ms": 10_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
    **WITHOUT_TIMEOUT,
}
_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaConfig=warn",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
)


class Broker:
    """One broker. Its data and its address survive restarts."""

    def __init__(self, name: str, folder: Path, network: Network) -> None:
        self.name = name
        self._folder, self._network = folder, network
        self._configuration, self._log = folder / "server.properties", folder / "broker.log"
        self._java = str(find_java().executable)
        self._classpath = os.pathsep.join(map(str, broker_classpath()))
        self._process: Process | None = None
        self.disk: Disk | None = None
        """The disk of its data, if it is one of its own."""

    def mount_disk(self) -> None:
        """Have a disk for the data. Call it before ``format``."""
        self.disk = Disk(self._folder / "data")

    def format(self, cluster_id: str) -> None:
        """Create the data folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        own = {
            "node.id": BROKERS.index(self.name) + 1,
            "listeners": f"PLAINTEXT://{address(self.name)}:9092,CONTROLLER://{address(self.name)}:9093",
            "log.dirs": self._folder / "data",
        }
        text = "".join(f"{name}={value}\n" for name, value in {**_PROPERTIES, **own}.items())
        self._configuration.write_text(text, encoding="utf-8")
        tool = [self._java, "-Xmx128m", *_JAVA, "-cp", self._classpath, "kafka.tools.StorageTool", "format"]
        tool += [f"--cluster-id={cluster_id}", "-c", str(self._configuration)]
        with self._log.open("ab") as log:
            subprocess.run(tool, stdout=log, stderr=log, check=True)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the broker. It answers some seconds later, if a majority is there."""
        if not self.is_running:
            command = [self._java, "-Xmx320m", *_JAVA, *_LOGGING, "-cp", self._classpath, "kafka.Kafka"]
            self._process = self._network.start(self.name, self._log, *command, str(self._configuration))

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the broker runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def voted_for(self) -> tuple[int, int]:
        """Return the newest term of the controllers that this broker knows, and the controller in it; zeros if it
        knows none."""
        with contextlib.suppress(OSError, ValueError):
            path = self._folder / "data" / "__cluster_metadata-0" / "quorum-state"
            state = json.loads(path.read_text(encoding="utf-8"))
            if state["leaderId"] > 0:
                return state["leaderEpoch"], state["leaderId"]
        return 0, 0


class Cluster:
    """The three brokers."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.brokers = {name: Broker(name, folder / name, network) for name in BROKERS}
        self._network, self._log = network, folder / "transaction-version.log"
        self._setting: Process | None = None
        self._admin = AdminClient({"bootstrap.servers": SERVERS, "log_level": 0, "socket.timeout.ms": 5000})

    def mount_disks(self) -> None:
        """Have a disk for the data of each broker. Call it before ``start``."""
        for broker in self.brokers.values():
            broker.mount_disk()

    def start(self) -> None:
        """Create the cluster, and wait until all brokers are in it."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for broker in self.brokers.values():
            broker.format(cluster_id)
            broker.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._are_all_there():
            if time.monotonic() > deadline:
                raise SystemExit(f"the brokers did not answer within {START_TIMEOUT_S} s; see their broker.log")
            time.sleep(0.2)

    def _are_all_there(self) -> bool:
        try:
            return len(self._admin.list_topics(timeout=2).brokers) == len(BROKERS)
        except KafkaException:
            return False

    def create_topic(self, name: str) -> None:
        topic = NewTopic(name, num_partitions=PARTITIONS, replication_factor=len(BROKERS))
        self._admin.create_topics([topic], request_timeout=20)[name].result(timeout=30)

    def leader(self, topic: str, partition: int) -> str | None:
        """Return the leader of a partition, or None if no broker answers at once."""
        try:
            known = self._admin.list_topics(topic, timeout=1).topics[topic].partitions
        except KafkaException:
            return None
        number = known[partition].leader if partition in known else -1
        return BROKERS[number - 1] if number > 0 else None

    def controller(self) -> str | None:
        """Return the active controller, by the brokers' files."""
        _, number = max(broker.voted_for() for broker in self.brokers.values())
        return BROKERS[number - 1] if number else None

    def set_transaction_version(self, version: int) -> None:
        """Have a process change the version. It ends when the cluster has it, which may take until a fault is over."""
        self._end_setting()
        arguments = ("tests.campaigns.jepsen.transaction_version", SERVERS, str(version))
        self._setting = self._network.start_python(READERS, self._log, *arguments)

    def _end_setting(self) -> None:
        if self._setting is not None:
            kill_all_of(self._setting)

    def close(self) -> None:
        self._end_setting()
        for broker in self.brokers.values():
            broker.kill()
