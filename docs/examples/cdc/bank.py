"""The source: a PostgreSQL server with accounts and transfers, and the writers that change them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.postgres_server import PostgresServer
from tests.support.s3_server import free_port

TABLES = {
    "accounts": "id BIGINT, owner STRING, balance DECIMAL(12,2), branch STRING, statement STRING, seen TIMESTAMP",
    "transfers": "id BIGINT, sender BIGINT, receiver BIGINT, amount DECIMAL(12,2), at TIMESTAMP",
}
"""Table → its columns in Spark."""

CREATE = """
CREATE TABLE accounts (
    id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(12, 2), branch text DEFAULT 'main',
    statement text, seen timestamptz
);
CREATE TABLE transfers (
    id bigint PRIMARY KEY, sender bigint, receiver bigint, amount numeric(12, 2) NOT NULL, at timestamptz
);
"""
"""The tables of the source, and of its copy in PostgreSQL."""

# Without REPLICA IDENTITY FULL, an update does not send the large values that it leaves unchanged.
_OF_THE_SOURCE = """
ALTER TABLE accounts REPLICA IDENTITY FULL;
ALTER TABLE accounts ALTER COLUMN statement SET STORAGE EXTERNAL;
CREATE SEQUENCE ids;
CREATE FUNCTION some_accounts(up_to int) RETURNS SETOF bigint LANGUAGE sql AS
    'SELECT id FROM accounts ORDER BY random() LIMIT up_to FOR UPDATE SKIP LOCKED';
CREATE PROCEDURE open_accounts(how_many int) LANGUAGE sql AS $$
    INSERT INTO accounts SELECT nextval('ids'), md5(random()::text), (random() * 1000)::numeric(12, 2),
        CASE WHEN random() < 0.5 THEN 'west' END, CASE WHEN random() < 0.2 THEN repeat(md5(random()::text), 100) END
    FROM generate_series(1, how_many)
$$;
"""

WORK = {
    """
    WITH moved AS (
        SELECT min(id) AS sender, max(id) AS receiver, (random() * 100)::numeric(12, 2) AS amount
        FROM some_accounts(2) AS id
    ),
    booked AS (
        UPDATE accounts SET balance = balance + CASE id WHEN sender THEN -amount ELSE amount END, seen = now()
        FROM moved WHERE id IN (sender, receiver)
    )
    INSERT INTO transfers SELECT nextval('ids'), sender, receiver, amount, clock_timestamp() FROM moved
    """: 60,
    "CALL open_accounts(2)": 10,
    "DELETE FROM accounts WHERE id = (SELECT some_accounts(1))": 10,
    "DELETE FROM transfers WHERE id = (SELECT id FROM transfers ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED)": 10,
    "UPDATE accounts SET balance = NULL, branch = NULL, statement = NULL WHERE id = (SELECT some_accounts(1))": 5,
    "UPDATE accounts SET id = nextval('ids') WHERE id = (SELECT some_accounts(1))": 5,
    "UPDATE accounts SET id = -id WHERE id = (SELECT some_accounts(1)); UPDATE accounts SET id = -id WHERE id < 0": 5,
    "DELETE FROM accounts WHERE id IN (SELECT some_accounts(9)); ROLLBACK": 5,
}
"""A writer's transaction → its relative frequency."""


class Server(PostgresServer):
    """A server that listens on a port, because Debezium connects by TCP."""

    def __init__(self) -> None:
        self.port = free_port()
        super().__init__(wal_level="logical", listen_addresses="127.0.0.1", port=self.port)

    @property
    def conninfo(self) -> str:
        return make_conninfo(super().conninfo, port=self.port)

    def rows(self, query: str, *parameters: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            return connection.execute(query.encode(), parameters).fetchall()


class Writers:
    """Writers that change the source at the same time."""

    def __init__(self, source: Server, pool: ThreadPoolExecutor, writers: int) -> None:
        self._source, self._pool, self._writers = source, pool, writers
        self._at_work: list[Future[None]] = []

    def write(self, transactions: int) -> None:
        """Start writing this many transactions, besides those in progress."""
        for _ in range(self._writers):
            self._at_work.append(self._pool.submit(self._write, transactions // self._writers))

    def _write(self, transactions: int) -> None:
        chance = random.Random()  # noqa: S311  # a mixture of work
        with psycopg.connect(self._source.conninfo, autocommit=True) as connection:
            for statement in chance.choices([*WORK], [*WORK.values()], k=transactions):
                connection.execute(statement.encode())
                time.sleep(0.002)

    def end_of_work(self) -> str:
        """Wait until all transactions are written. Return the position in the source's log after them."""
        for each in self._at_work:
            each.result()
        [(place,)] = self._source.rows("SELECT pg_current_wal_lsn()::text")
        # Write one more entry: a connector confirms only positions up to the last entry that it has captured.
        self._source.rows("SELECT pg_logical_emit_message(true, 'bank', 'end of work')")
        return str(place)


@contextmanager
def writing(source: Server, accounts: int, writers: int) -> Iterator[Writers]:
    """Create the tables, with some accounts that exist before changes are captured."""
    with psycopg.connect(source.conninfo) as connection:
        connection.execute(f"{CREATE} {_OF_THE_SOURCE} CALL open_accounts({accounts})".encode())
    with ThreadPoolExecutor(2 * writers) as pool:
        yield Writers(source, pool, writers)
