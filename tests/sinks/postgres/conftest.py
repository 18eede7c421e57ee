"""What the tests of the PostgreSQL sink share: a real server, and for each test a table and names of its own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from tests.support.postgres_server import PostgresServer
from twopc import Committable, Participant, Round
from twopc_postgres import PostgresSink

ROUND = Round(1, 0)


@dataclass(frozen=True)
class Place:
    """A schema of one test, with the table that its sinks write to.

    Attributes:
        prefix: what the names of the test's transactions start with: tests share a server.
    """

    server: PostgresServer
    schema: str
    prefix: str

    @property
    def table(self) -> str:
        return f"{self.schema}.orders"

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What another session sees. ``{}`` stands for the table, ``{markers}`` for that of the markers."""
        statement = statement.replace("{}", self.table).replace("{markers}", f"{self.schema}.twopc_committed")
        with psycopg.connect(self.server.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def create(self, columns: str) -> None:
        self.ask(f"DROP TABLE IF EXISTS {{}}; CREATE TABLE {{}} ({columns})")

    def values(self) -> list[str]:
        """The ``value`` of every row that a reader sees, sorted."""
        return [value for (value,) in self.ask("SELECT value FROM {} ORDER BY value")]

    def unbound(self, **options: Any) -> PostgresSink:
        """A new sink. Empty options are left out."""
        given = {name: value for name, value in options.items() if value != ""}
        sink = PostgresSink({"conninfo": self.server.conninfo, "table": self.table, **given})
        sink.prefix = self.prefix
        return sink

    def sink(self, log_id: str = "log", **options: Any) -> PostgresSink:
        """A new sink, bound as a coordinator binds it: a process of its own, as far as it knows."""
        sink = self.unbound(**options)
        sink.bind("orders", log_id)
        sink.open()
        return sink

    def pre_commit(
        self, records: dict[str, Any] | Sequence[str], round: Round = ROUND, partition: int = 0, **options: Any
    ) -> Committable:
        """What a participant that is gone has pre-committed, read back from a log."""
        batch = pa.record_batch(records if isinstance(records, dict) else {"value": list(records)})
        with Participant({"orders": self.sink(**options)}, round, partition=partition) as participant:
            participant.write("orders", batch)
            vote = participant.pre_commit()
        return Committable.from_json(json.loads(json.dumps(vote["orders"].to_json())))

    def prepared(self) -> list[str]:
        """The names of all transactions of this test that are prepared."""
        found = self.ask("SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, %s) ORDER BY gid", self.prefix + ".")
        return [gid for (gid,) in found]

    def leave(self) -> None:
        """Give the server back as it was."""
        for gid in self.prepared():
            self.ask(sql.SQL("ROLLBACK PREPARED {}").format(gid).as_string())
        self.ask(f"DROP SCHEMA {self.schema} CASCADE")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer(max_prepared_transactions=50) as server:
        yield server


@pytest.fixture
def place(postgres_server: PostgresServer) -> Iterator[Place]:
    """A table of one column, ``value``."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    place = Place(postgres_server, name, name)
    place.ask(f"CREATE SCHEMA {name}; CREATE TABLE {{}} (value text)")
    yield place
    place.leave()
