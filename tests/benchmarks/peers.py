"""Flink, which copies from Kafka to Kafka, compiled below ``build/bench``."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from twopc_kafka_broker import SPARK_MODULES, find_java
from twopc_kafka_broker.jars import maven_jars

HERE = Path(__file__).parent
BUILD = Path("build/bench")
FLINK_VERSION, FLINK_CONNECTOR_VERSION = "2.2.1", "5.0.0-2.2"

# List all parts, because they refer to each other by version ranges.
_FLINK_PARTS = (
    "annotations", "clients", "connector-base", "connector-datagen", "core", "core-api", "datastream", "datastream-api",
    "file-sink-common", "hadoop-fs", "metrics-core", "queryable-state-client-java", "rpc-akka-loader", "rpc-core",
    "runtime", "streaming-java",
)  # fmt: skip


class PeerMissing(Exception):
    """A peer can't be set up here. The message has the reason."""


@dataclass(frozen=True, slots=True)
class Flink:
    """Flink's KafkaSink, exactly once, in a mini cluster of one process."""

    command: Sequence[str]

    @classmethod
    def set_up(cls, program: Path = HERE / "FlinkCopy.java") -> Flink:
        """Download, and compile a program. Raises PeerMissing if the Java that runs Spark has no compiler."""
        parts = [f"org.apache.flink:flink-{part}:{FLINK_VERSION}" for part in _FLINK_PARTS]
        connector = f"org.apache.flink:flink-connector-kafka:{FLINK_CONNECTOR_VERSION}"
        jars = maven_jars(f"flink-{FLINK_VERSION}", *parts, connector)
        java, classes = find_java(SPARK_MODULES), (BUILD / "flink").resolve()
        compiler = java.executable.with_name("javac")
        if not compiler.exists():
            raise PeerMissing(f"{compiler} does not exist: install a JDK to compare with Flink")
        path = ":".join(str(jar) for jar in jars)
        subprocess.run([compiler, "-cp", path, "-d", classes, program], check=True)
        return cls((str(java.executable), "-Xmx1g", "-cp", f"{path}:{classes}", program.stem))

    def job(
        self, servers: str, source: str, target: str, interval_ms: int, parallelism: int, reads: Mapping[str, str]
    ) -> list[str]:
        """Return the command of a job that copies until it is killed, with a checkpoint every ``interval_ms``.

        ``reads``: options of its source.
        """
        return [*self.command, servers, source, target, str(interval_ms), str(parallelism), *chain(*reads.items())]

    @contextlib.contextmanager
    def running(self, servers: str, interval_ms: int, source: str, target: str) -> Iterator[None]:
        """Run the job while the context is open."""
        job = self.job(servers, source, target, interval_ms, parallelism=2, reads={})
        with subprocess.Popen(job, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.kill()
