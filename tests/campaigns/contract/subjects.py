"""The sinks that receive defects, and the contract of each. Runs without pytest, one process per mutant."""

import importlib
import json
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.pages import DOCS, ROOT, write_files
from tests.support.typed_records import in_halves, plain, typed
from twopc.keyed import KeyedSink
from twopc.sink import TwoPhaseCommitSink
from twopc.testing import KeyedSinkContract, SinkContract


class InFolder:
    """A contract without pytest.

    Args:
        folder: an empty folder for the target system's data.
        servers: Kafka's bootstrap servers.
    """

    patience_s = 1.0  # a defective sink may never answer

    def __init__(self, folder: Path, servers: str) -> None:
        self.folder, self.servers = folder, servers


class Bench(InFolder, SinkContract):
    """The contract of a sink whose module is a copy in its own folder."""


class Sqlite(Bench):
    def make_sink(self) -> TwoPhaseCommitSink[Any]:
        sink: TwoPhaseCommitSink[Any] = _module("twopc_sqlite").SqliteSink({"path": str(self.folder / "records.db")})
        return sink

    def visible(self) -> list[str]:
        return [record["value"] for record in self.visible_records()]

    def leftovers(self) -> list[str]:
        with closing(sqlite3.connect(self.folder / "records.db")) as connection:
            return [document for (document,) in connection.execute("SELECT document FROM staged")]

    @contextmanager
    def silent_sink(self) -> Iterator[TwoPhaseCommitSink[Any]]:
        yield _module("twopc_sqlite").SqliteSink({"path": str(self.folder)})  # a folder is no database

    def sample(self) -> pa.RecordBatch:
        return plain()

    def visible_records(self) -> list[dict[str, Any]]:
        if not (self.folder / "records.db").exists():
            return []
        with closing(sqlite3.connect(self.folder / "records.db")) as connection:
            return [json.loads(document) for (document,) in connection.execute("SELECT document FROM records")]


class Memory(Bench):
    picklable = False  # the target system is this process's memory

    def __init__(self, folder: Path, servers: str) -> None:
        super().__init__(folder, servers)
        self.target = _module("memory").MemoryTarget()

    def make_sink(self) -> TwoPhaseCommitSink[Any]:
        sink: TwoPhaseCommitSink[Any] = _module("memory").MemorySink(self.target)
        return sink

    def visible(self) -> list[str]:
        return [record["value"] for record in self.target.visible]

    def leftovers(self) -> list[str]:
        return list(self.target.open)

    def sample(self) -> pa.RecordBatch:
        return typed()

    def visible_records(self) -> list[dict[str, Any]]:
        return list(self.target.visible)


class Files(Bench):
    shows_whole_transactions = False  # one file after the other

    def make_sink(self) -> TwoPhaseCommitSink[Any]:
        options = {"path": str(self.folder / "orders"), "format": "json", "partition_by": "half"}
        sink: TwoPhaseCommitSink[Any] = _module("twopc_files.sink").FileSink(options)
        return sink

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        return in_halves(values)

    def visible(self) -> list[str]:
        files = (self.folder / "orders").rglob("part-*")
        lines = (line for file in files for line in file.read_text(encoding="utf-8").split("\n")[:-1])
        return [json.loads(line)["value"] for line in lines]

    def leftovers(self) -> list[str]:
        return [file.name for file in (self.folder / "orders").rglob("*.staged")]


class Kafka(Bench):
    kills = 8

    def __init__(self, folder: Path, servers: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        super().__init__(folder, servers)
        self.topic = f"mutant-{uuid.uuid4().hex[:8]}"
        topic = NewTopic(self.topic, 1, 1, config={"retention.ms": "-1"})
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([topic])[self.topic].result()
        while not admin.list_topics(self.topic, timeout=10).topics[self.topic].partitions:
            """Wait until the broker lists the new topic."""

    def make_sink(self) -> TwoPhaseCommitSink[Any]:
        options = {"bootstrap.servers": self.servers, "topic": self.topic, "transactional.id.prefix": self.topic}
        sink: TwoPhaseCommitSink[Any] = _module("twopc_kafka").KafkaSink(options)
        return sink

    def visible(self) -> list[str]:
        from tests.support.topic_reader import records_of

        values = [record.value for record in records_of(self.servers, self.topic)]
        return [value if value is None else value.decode() for value in values]  # type: ignore[misc]  # the value of ``sample``


class KeyedBench(InFolder, KeyedSinkContract):
    """The contract of a sink with a key, likewise."""


class KeyedSql(KeyedBench):
    """The SQL sink on SQLite."""

    kills = 12

    def __init__(self, folder: Path, servers: str) -> None:
        super().__init__(folder, servers)
        self.path = folder / "rows.db"
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("CREATE TABLE pairs (id TEXT PRIMARY KEY, value TEXT)")

    def make_sink(self) -> KeyedSink[Any]:
        options = {"url": f"sqlite:///{self.path}", "table": "pairs", "upsert_by": "id", "lock_timeout_s": "1"}
        sink: KeyedSink[Any] = _module("twopc_sql.sink").SqlSink(options)
        return sink

    def rows(self) -> list[tuple[str, str | None]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute("SELECT id, value FROM pairs").fetchall()

    def leftovers(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            ask = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'twopc_%'"
            staging = [
                name for (name,) in connection.execute(ask) if name.startswith(("twopc_staged", "twopc_deletes"))
            ]
            return [name for name in staging if connection.execute(f"SELECT 1 FROM {name}").fetchall()]


class KeyedMemory(KeyedBench):
    picklable = False

    def __init__(self, folder: Path, servers: str) -> None:
        super().__init__(folder, servers)
        self.target = _module("memory").MemoryTarget()

    def make_sink(self) -> KeyedSink[Any]:
        sink: KeyedSink[Any] = _module("memory").MemorySink(self.target, ["id"])
        return sink

    def rows(self) -> list[tuple[str, str | None]]:
        return [(record["id"], record.get("value")) for record in self.target.visible]

    def leftovers(self) -> list[str]:
        return [*self.target.open, *self.target.deletes]


@dataclass(frozen=True, slots=True)
class Subject:
    """A sink, as source code.

    Attributes:
        contract: the contract that it must keep.
        main: the file with the sink's class.
        write: writes its source into a folder, from which it is imported.
    """

    contract: type[Bench | KeyedBench]
    main: str
    write: Callable[[Path], object]


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _package(plugin: str) -> Callable[[Path], object]:
    source = ROOT / "plugins" / plugin / f"twopc_{plugin}"
    skip = shutil.ignore_patterns("__pycache__")
    return lambda folder: shutil.copytree(source, folder / source.name, ignore=skip)


SUBJECTS = {
    "sqlite": Subject(Sqlite, "twopc_sqlite.py", lambda folder: write_files(DOCS / "write-your-own-sink.md", folder)),
    "memory": Subject(
        Memory, "memory.py", lambda folder: shutil.copy(ROOT / "twopc" / "testing" / "memory.py", folder)
    ),
    "files": Subject(Files, "twopc_files/sink.py", _package("files")),
    "kafka": Subject(Kafka, "twopc_kafka/sink.py", _package("kafka")),
    "keyed sql": Subject(KeyedSql, "twopc_sql/sink.py", _package("sql")),
    "keyed memory": Subject(
        KeyedMemory, "memory.py", lambda folder: shutil.copy(ROOT / "twopc" / "testing" / "memory.py", folder)
    ),
}


def tests_of(contract: type[Bench | KeyedBench]) -> Iterator[str]:
    """Return the names of a contract's tests, in source order."""
    whole = SinkContract if issubclass(contract, SinkContract) else KeyedSinkContract
    return (name for name in vars(whole) if name.startswith("test_"))
