"""What the tests of the PostgreSQL sink share: a real server, and for each test a table and names of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.support.postgres_server import PostgresServer
from tests.support.sink_place import ROUND, SinkPlace, Written, from_log
from twopc import Committable, Round
from twopc_postgres import PostgresSink


@dataclass(frozen=True)
class Place(SinkPlace[PostgresSink]):
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

    def pre_commit(self, records: Written, round: Round = ROUND, partition: int = 0, **options: Any) -> Committable:
        """What a participant that is gone has pre-committed, read back from a log."""
        return from_log(self.vote(records, round, partition, self.sink(**options)))

    def prepared(self) -> list[str]:
        """The names of all transactions of this test that are prepared."""
        found = self.ask("SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, %s) ORDER BY gid", self.prefix + ".")
        return [gid for (gid,) in found]

    def by_hand(self, verb: str, committable: Committable) -> None:
        """End a transaction, as an operator may."""
        self.ask(sql.SQL(f"{verb} PREPARED {{}}").format(committable.transaction_id).as_string())

    def leave(self) -> None:
        """Give the server back as it was, also without the connections that this test's sinks have kept."""
        self.unbound().close()
        for gid in self.prepared():
            self.ask(sql.SQL("ROLLBACK PREPARED {}").format(gid).as_string())
        self.ask(f"DROP SCHEMA {self.schema} CASCADE")


@contextmanager
def new_place(server: PostgresServer) -> Iterator[Place]:
    """A new schema with a table of one column, ``value``."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    place = Place(server, name, name)
    place.ask(f"CREATE SCHEMA {name}; CREATE TABLE {{}} (value text)")
    yield place
    place.leave()


@pytest.fixture
def place(postgres_server: PostgresServer) -> Iterator[Place]:
    with new_place(postgres_server) as place:
        yield place


@pytest.fixture(scope="module")
def server_to_kill() -> Iterator[PostgresServer]:
    """Its processes are others after each kill, so it ends with the module."""
    with PostgresServer(max_prepared_transactions=10) as server:
        yield server


@pytest.fixture
def own_place(server_to_kill: PostgresServer) -> Iterator[Place]:
    """On a server that no other test uses meanwhile."""
    with new_place(server_to_kill) as place:
        yield place
