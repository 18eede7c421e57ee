"""Other systems that copy from Kafka to Kafka, each in its own environment below ``build/bench``."""

from __future__ import annotations

import contextlib
import json
import subprocess
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.cpu import JVM, PYTHON
from twopc_kafka_broker import SPARK_MODULES, find_java
from twopc_kafka_broker.jars import maven_jars

HERE = Path(__file__).parent
BUILD = Path("build/bench")
FLINK_VERSION, FLINK_CONNECTOR_VERSION = "2.2.1", "5.0.0-2.2"
QUIX_VERSION = "3.28.0"

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
    part = JVM

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

    def copy(self, servers: str, source: str, target: str, records: int) -> float:  # unused: the source is bounded
        """Return the seconds of the job, including its start, with a checkpoint per second."""
        return int(_told(self.command, servers, source, target, "1000")) / 1000

    @contextlib.contextmanager
    def running(self, servers: str, interval_ms: int, source: str, target: str) -> Iterator[None]:
        """Copy what comes while the context is open, with a checkpoint every ``interval_ms``."""
        job = (*self.command, servers, source, target, str(interval_ms), "unbounded")
        with subprocess.Popen(job, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.kill()


@dataclass(frozen=True, slots=True)
class Quix:
    """Quix Streams, exactly once."""

    command: Sequence[str]
    part = PYTHON

    @classmethod
    def set_up(cls) -> Quix:
        """Create an environment. Raises PeerMissing if its packages can't be installed."""
        folder = BUILD / f"quix-{QUIX_VERSION}"
        python = folder / "bin" / "python"
        if not python.exists():
            venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, f"quixstreams=={QUIX_VERSION}"], check=False).returncode:
            raise PeerMissing(f"quixstreams {QUIX_VERSION} can't be installed here")
        return cls((str(python), "-W", "ignore", str(HERE / "quix_copy.py")))

    def copy(self, servers: str, source: str, target: str, records: int) -> float:
        """Return the seconds from the first record to the last."""
        return float(_told(self.command, servers, source, target, str(records)))


def _told(command: Sequence[str], *arguments: str) -> str:
    """Run a command. Return the last word that it prints."""
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"{json.dumps([*command[-1:], *arguments])} failed:\n{done.stderr[-2000:]}")
    return done.stdout.split()[-1]
