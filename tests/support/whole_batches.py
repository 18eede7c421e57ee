"""Runs the example's readers of whole batches as killable processes, and reads what they have shown."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.kills import Process, bound, is_alive, kill_all_of
from tests.support.pages import DOCS
from twopc_kafka_broker import broker_classpath, find_java

EXAMPLES = DOCS / "examples" / "markers"
PYTHON, JAVA = "python", "java"
SHOWN_S = 90


class NoCompiler(Exception):
    """There is no JDK: the Java that was found has no compiler."""


@dataclass
class Reader:
    """A supervised reader process.

    Attributes:
        command: its command, with the servers, its folder and the topics as arguments.
        folder: the folder in which it writes a file per batch.
        starts: the number of starts.
    """

    command: Sequence[str]
    folder: Path
    process: Process | None = field(default=None, init=False)
    starts: int = field(default=0, init=False)

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with Path(f"{self.folder}.log").open("ab") as log:
            self.process = subprocess.Popen(
                bound(*self.command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.starts += 1

    def supervise(self) -> None:
        """Restart the reader if it has ended."""
        if self.process is None or not is_alive(self.process):
            self.kill()
            self.start()

    def kill(self) -> None:
        if self.process is not None:
            kill_all_of(self.process)

    def has_shown(self, batches: int) -> None:
        """Wait until it has shown so many batches. Supervises it meanwhile: it ends if the broker does not respond at
        its start."""
        deadline = time.monotonic() + SHOWN_S
        while len([*self.folder.iterdir()]) < batches:
            assert time.monotonic() < deadline, f"shown after {SHOWN_S} s: {sorted(self.shown())}"
            self.supervise()
            time.sleep(0.05)

    def shown(self) -> dict[str, list[tuple[str, str]]]:
        """Return ``log.batch`` → the topic and value of each of its records, including the marker."""
        files = sorted(self.folder.iterdir())
        return {file.name: list(_rows(file)) for file in files}


def _rows(file: Path) -> Iterator[tuple[str, str]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        topic, value = line.split("\t", 1)
        yield topic, value


@contextmanager
def reading(reader: Reader) -> Iterator[Reader]:
    """Run a reader while the context is open."""
    reader.start()
    try:
        yield reader
    finally:
        reader.kill()


def reader_in(language: str, servers: str, folder: Path, markers: str, topics: Sequence[str]) -> Reader:
    """Return a reader, not yet started.

    Raises:
        NoCompiler: the Java reader can't be compiled here.
    """
    program = [sys.executable, str(EXAMPLES / "whole_batches.py")] if language == PYTHON else _java(folder.parent)
    return Reader([*program, servers, str(folder), markers, *topics], folder)


def _java(folder: Path) -> list[str]:
    """Compile the Java reader with only the Kafka clients' jar. Return its command."""
    java, classes = find_java(), folder / "classes"
    compiler = java.executable.with_name("javac")
    if not compiler.exists():
        raise NoCompiler(f"{compiler} does not exist: install a JDK")
    jars = broker_classpath()
    [clients] = [jar for jar in jars if jar.name.startswith("kafka-clients-") and "test" not in jar.name]
    source = EXAMPLES / "WholeBatches.java"
    subprocess.run([compiler, "-Xlint:all", "-Werror", "-cp", clients, "-d", classes, source], check=True)
    path = ":".join(str(each) for each in (*jars, classes))
    return [str(java.executable), "-Xmx128m", "-cp", path, source.stem]
