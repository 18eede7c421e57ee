"""What the tests of the MySQL sink share: a real server, and for each test a database and names of its own."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest

from tests.support.mariadb_server import MariaDbServer
from tests.support.sink_place import ROUND, SinkPlace, Written, from_log
from twopc import Committable, Round
from twopc_mysql import MysqlSink
from twopc_mysql.tables import xid

END_TIMEOUT_S = 30
"""How long a session may take to leave the transaction that it has prepared."""


@dataclass(frozen=True)
class Place(SinkPlace[MysqlSink]):
    """A database of one test, with the table that its sinks write to.

    Attributes:
        prefix: what the names of the test's transactions start with: tests share a server.
    """

    server: MariaDbServer
    database: str
    prefix: str

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What another session sees. ``{}`` stands for the table, ``{markers}`` for that of the markers."""
        statement = statement.replace("{}", f"{self.database}.orders")
        statement = statement.replace("{markers}", f"{self.database}.twopc_committed")
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def create(self, columns: str) -> None:
        self.ask("DROP TABLE IF EXISTS {}")
        self.ask(f"CREATE TABLE {{}} ({columns}) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin ENGINE=InnoDB")

    def values(self) -> list[str]:
        """The ``value`` of every row that a reader sees, sorted."""
        return [value for (value,) in self.ask("SELECT value FROM {} ORDER BY value")]

    def unbound(self, **options: Any) -> MysqlSink:
        """A new sink. Empty options are left out."""
        given = {name: value for name, value in options.items() if value != ""}
        sink = MysqlSink({"url": self.server.url(self.database), "table": "orders", **given})
        sink.prefix = self.prefix
        return sink

    def pre_commit(self, records: Written, round: Round = ROUND, partition: int = 0, **options: Any) -> Committable:
        """What a participant that is gone has pre-committed, read back from a log."""
        return from_log(self.vote(records, round, partition, self.sink(**options)))

    def prepared(self) -> list[str]:
        """The names of all transactions of this test that are prepared."""
        names = [name.decode() for _, _, _, name in self.ask("XA RECOVER")]
        return sorted(name for name in names if name.startswith(f"{self.prefix}."))

    def by_hand(self, verb: str, committable: Committable) -> None:
        """End a transaction, as an operator may."""
        self.end(verb, xid(committable.transaction_id))

    def end(self, verb: str, name: str) -> None:
        """End a transaction as soon as its session has left it."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while True:
            try:
                self.ask(f"XA {verb} {name}")
                return
            except pymysql.MySQLError:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def leave(self) -> None:
        """Give the server back as it was, also without the connections that this test's sinks have kept.

        A test that fails may leave a session with a transaction, for whose locks DROP DATABASE would wait."""
        self.unbound().close()
        for (left,) in self.ask("SELECT id FROM information_schema.processlist WHERE db = %s", self.database):
            with contextlib.suppress(pymysql.MySQLError):  # it has ended by itself
                self.ask(f"KILL {left}")
        for name in self.prepared():
            self.end("ROLLBACK", xid(name))
        bounds = f"lock_wait_timeout = {END_TIMEOUT_S}, innodb_lock_wait_timeout = {END_TIMEOUT_S}"
        self.ask(f"SET STATEMENT {bounds} FOR DROP DATABASE {self.database}")


def new_place(server: MariaDbServer) -> Place:
    """A new database with a table of one column, ``value``."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    place = Place(server, name, name)
    place.ask(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin")  # exact, as keys must be
    place.create("value VARCHAR(255)")
    return place


@pytest.fixture
def place(mariadb_server: MariaDbServer) -> Iterator[Place]:
    """A table of one column, ``value``."""
    place = new_place(mariadb_server)
    yield place
    place.leave()


@pytest.fixture(scope="module")
def server_to_kill() -> Iterator[MariaDbServer]:
    """Its processes are others after each kill, so it ends with the module."""
    with MariaDbServer() as server:
        yield server


@pytest.fixture
def own_place(server_to_kill: MariaDbServer) -> Iterator[Place]:
    """On a server that no other test uses meanwhile."""
    place = new_place(server_to_kill)
    yield place
    place.leave()
