"""What the tests of the PostgreSQL sink share: a real server, and for each test a table and names of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.sinks.prepared_contract import PreparedPlace
from tests.support.postgres_server import PostgresServer
from twopc import Committable
from twopc_postgres import PostgresSink, sessions


@dataclass(frozen=True)
class Place(PreparedPlace[PostgresSink]):
    """A schema of one test."""

    backend = "postgres"
    server: PostgresServer
    schema: str
    prefix: str

    @property
    def sink_class(self) -> type[PostgresSink]:
        return PostgresSink

    @property
    def table(self) -> str:
        return f"{self.schema}.orders"

    def reach(self, user: str = "", password: str = "", **others: Any) -> str:
        given = {"user": user, "password": password}
        changed = {name: value for name, value in given.items() if value}
        return make_conninfo(self.server.conninfo, **changed, **others)

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def create(self, columns: str) -> None:
        self.ask(f"DROP TABLE IF EXISTS {{}}; CREATE TABLE {{}} ({columns})")

    def prepared(self) -> list[str]:
        found = self.ask("SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, %s) ORDER BY gid", self.prefix + ".")
        return [gid for (gid,) in found]

    def by_hand(self, verb: str, committable: Committable) -> None:
        self.ask(sql.SQL(f"{verb} PREPARED {{}}").format(committable.transaction_id).as_string())

    def other(self) -> AbstractContextManager[Place]:
        return new_place(self.server)

    @contextmanager
    def user(self, *, makes_tables: bool = False) -> Iterator[tuple[str, Callable[[str], object]]]:
        role, password = f"{self.schema}_role", uuid.uuid4().hex
        self.ask(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
        self.ask(f"GRANT USAGE{', CREATE' if makes_tables else ''} ON SCHEMA {self.schema} TO {role}")
        location = self.reach(role, password)
        try:
            yield location, lambda right: self.ask(f"GRANT {right} TO {role}")
        finally:
            self.unbound(conninfo=location).close()
            self.ask(f"DROP OWNED BY {role}; DROP ROLE {role}")

    def end_session(self, connection: Any) -> None:
        self.ask("SELECT pg_terminate_backend(%s)", connection.info.backend_pid)

    def idle(self, sink: PostgresSink) -> Sequence[Any]:
        return sessions._idle.to(sink._options.conninfo)

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
