"""What the tests of the MySQL sink share: a real server, and for each test a database and names of its own."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest

from tests.sinks.prepared_contract import PreparedPlace
from tests.support.mariadb_server import MariaDbServer
from twopc import Committable
from twopc_mysql import MysqlSink, sessions
from twopc_mysql.tables import xid

END_TIMEOUT_S = 30
"""How long a session may take to leave the transaction that it has prepared."""


_NOT_LEFT = """
    SELECT id FROM information_schema.innodb_trx
    LEFT JOIN information_schema.processlist ON id = trx_mysql_thread_id
    WHERE trx_mysql_thread_id <> 0 AND (id IS NULL OR db = %s)
"""
"""The sessions of a database that are still in a transaction, and null for one that has ended, of whichever database. 0
stands for a transaction that its session has left."""

LEAVES_WITHIN_S = 3
"""How long an ended session may take to leave its transaction. A test beside this one may keep such a session."""


@dataclass(frozen=True)
class Place(PreparedPlace[MysqlSink]):
    """A database of one test."""

    backend = "mysql"
    server: MariaDbServer
    database: str
    prefix: str

    @property
    def sink_class(self) -> type[MysqlSink]:
        return MysqlSink

    @property
    def table(self) -> str:
        return f"{self.database}.orders"

    def reach(self, user: str = "root", password: str = "", **others: Any) -> str:
        if others:
            return f"mysql://{user}@{others['host']}:{others['port']}/{self.database}"
        return self.server.url(self.database, user, password or None)

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def create(self, columns: str) -> None:
        self.ask("DROP TABLE IF EXISTS {}")
        self.ask(f"CREATE TABLE {{}} ({columns}) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin ENGINE=InnoDB")

    def prepared(self) -> list[str]:
        names = [name.decode() for _, _, _, name in self.ask("XA RECOVER")]
        return sorted(name for name in names if name.startswith(f"{self.prefix}."))

    def by_hand(self, verb: str, committable: Committable) -> None:
        self.end(verb, xid(committable.transaction_id))

    def end(self, verb: str, *names: str) -> None:
        """End transactions as soon as sessions have left them. Their names are free earlier, and would end alone."""
        start = time.monotonic()
        while found := self.ask(_NOT_LEFT, self.database):
            waited_s = time.monotonic() - start
            if waited_s > LEAVES_WITHIN_S and {id for [id] in found} == {None}:
                break
            assert waited_s < END_TIMEOUT_S
            time.sleep(0.11)  # the server renews what it shows after 0.1 s
        for name in names:
            self.ask(f"XA {verb} {name}")

    def other(self) -> contextlib.AbstractContextManager[Place]:
        return contextlib.contextmanager(places)(self.server)

    @contextlib.contextmanager
    def user(self, *, makes_tables: bool = False) -> Iterator[tuple[str, Callable[[str], object]]]:
        user, password = self.database, uuid.uuid4().hex
        self.ask(f"CREATE USER {user}@localhost IDENTIFIED BY '{password}'")
        location = self.reach(user, password)
        try:
            yield location, lambda right: self.ask(f"GRANT {right} TO {user}@localhost")
        finally:
            self.unbound(url=location).close()
            self.ask(f"DROP USER {user}@localhost")

    def end_session(self, connection: Any) -> None:
        self.ask(f"KILL {connection.thread_id()}")

    def idle(self, sink: MysqlSink) -> Sequence[Any]:
        return sessions._idle.to(sink._options.connection)

    def leave(self) -> None:
        """Give the server back as it was, also without the connections that this test's sinks have kept.

        A test that fails may leave a session with a transaction, for whose locks DROP DATABASE would wait."""
        self.unbound().close()
        for (left,) in self.ask("SELECT id FROM information_schema.processlist WHERE db = %s", self.database):
            with contextlib.suppress(pymysql.MySQLError):  # it has ended by itself
                self.ask(f"KILL {left}")
        if prepared := self.prepared():
            self.end("ROLLBACK", *map(xid, prepared))
        bounds = f"lock_wait_timeout = {END_TIMEOUT_S}, innodb_lock_wait_timeout = {END_TIMEOUT_S}"
        self.ask(f"SET STATEMENT {bounds} FOR DROP DATABASE {self.database}")


def new_place(server: MariaDbServer) -> Place:
    """A new database with a table of one column, ``value``."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    place = Place(server, name, name)
    place.ask(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin")  # exact, as keys must be
    place.create("value VARCHAR(255)")
    return place


def places(server: MariaDbServer) -> Iterator[Place]:
    """One that leaves the server as it was."""
    place = new_place(server)
    yield place
    place.leave()


@pytest.fixture
def place(mariadb_server: MariaDbServer) -> Iterator[Place]:
    yield from places(mariadb_server)


@pytest.fixture(scope="module")
def server_to_kill() -> Iterator[MariaDbServer]:
    """Its processes are others after each kill, so it ends with the module."""
    with MariaDbServer() as server:
        yield server


@pytest.fixture
def own_place(server_to_kill: MariaDbServer) -> Iterator[Place]:
    """On a server that no other test uses meanwhile."""
    yield from places(server_to_kill)
