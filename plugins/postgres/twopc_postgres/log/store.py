"""PostgreSQL as the store of a commit log: an entry is a row, and ``INSERT … ON CONFLICT DO NOTHING`` creates it.

The unique index decides between two writers: an insert waits for a concurrent insert of the same entry, and then either
takes its place or finds its row.

A row counts once the synchronous standbys have it. Its writer waits for them. A session that finds another session's
row can't know whether that session has waited, so it commits an empty transaction and waits for that.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Any

import psycopg

from twopc.checks import CheckResult
from twopc.errors import ConfigurationError
from twopc.failures import mapped
from twopc_postgres import server
from twopc_postgres.log.outcomes import log_request_failed
from twopc_postgres.log.table import NOTICE, TRIAL, LogTable
from twopc_postgres.log.url import LogPlace
from twopc_postgres.sessions import Connection, session


class PostgresLogStore:
    """The log in a database that a URL names.

    Args:
        url: ``postgresql://user@host:port/database/log`` or ``…/database/schema.log``, with libpq's parameters after
            ``?``. The default schema is ``public``.
        parameters: more parameters of libpq, which replace those of the URL, except ``dbname``. A password may be among
            them.

    Raises:
        ConfigurationError: the URL has another form or holds a secret, or libpq does not know a parameter.
    """

    def __init__(self, url: str, **parameters: Any) -> None:
        self._place = LogPlace.parse(url, parameters)
        self._table = LogTable(self._place.schema, self._place.log)
        self._is_checked = False
        self.url = self._place.url

    def __repr__(self) -> str:
        return f"PostgresLogStore({self.url!r})"

    def slots(self) -> list[int]:
        with self._asked() as connection:
            slots = self._table.slots(connection)
            if server.synchronous_standbys(connection):
                # A server that a standby has replaced may still list old entries, but can no longer commit.
                server.prove_current(connection)
        return slots

    def read(self, slot: int) -> bytes:
        with self._asked() as connection:
            data = self._table.read(connection, slot)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "no such entry", f"{self.url}/{slot}")
        return data

    def put_if_absent(self, slot: int, data: bytes) -> None:
        with self._asked() as connection:
            self._require_table(connection)
            is_new = self._table.insert(connection, slot, data)
            if not is_new:
                server.prove_current(connection)
        if not is_new:
            raise FileExistsError(errno.EEXIST, "exists", f"{self.url}/{slot}")

    def delete(self, slot: int) -> None:
        with self._asked() as connection:
            self._table.delete(connection, slot)

    def post(self, data: bytes) -> None:
        with self._asked() as connection:
            self._table.replace(connection, NOTICE, data)

    def posted(self) -> bytes:
        with self._asked() as connection:
            return self._table.read(connection, NOTICE) or b""

    def check(self) -> Iterator[CheckResult]:
        """Yield checks of the server and of the privileges on the table. Raises like the other methods."""
        with self._asked() as connection:
            with connection.transaction(force_rollback=True):
                self._try(connection)
            yield CheckResult.passed("put-if-absent", "tried in a transaction that was rolled back")
            yield server.durability(connection)
            yield _replication(connection)
            server.prove_current(connection)

    def _try(self, connection: Connection) -> None:
        """Use every privilege that a log needs, on a row that is not an entry."""
        self._require_table(connection)
        self._is_checked = False  # the rollback also undoes the creation of the table
        table = self._table
        if [table.insert(connection, TRIAL, data) for data in (b"first", b"second")] != [True, False]:
            raise ConfigurationError(f"a commit log can't be kept at {self.url}: {table} does not take a row just once")
        table.replace(connection, TRIAL, b"third")
        if table.read(connection, TRIAL) != b"third":
            raise ConfigurationError(
                f"a commit log can't be kept at {self.url}: {table} does not keep what it is given"
            )
        table.delete(connection, TRIAL)

    def _require_table(self, connection: Connection) -> None:
        """Create the table if it is missing, before this process's first entry.

        Raises:
            ConfigurationError: a crash would empty the table, or its triggers, rules or row security may change or hide
                rows.
        """
        if self._is_checked:
            return
        if self._table.kind(connection) is None:
            self._table.create(connection)
        is_ordinary, does_more = self._table.kind(connection) or (False, False)
        if not is_ordinary:
            raise ConfigurationError(
                f"a commit log can't be kept at {self.url}: {self._table} must be an ordinary table that is not"
                " UNLOGGED, because PostgreSQL empties an UNLOGGED table after a crash. No entry was written. Run ALTER"
                f" TABLE {self._table} SET LOGGED, or use another schema"
            )
        if does_more:
            raise ConfigurationError(
                f"a commit log can't be kept at {self.url}: {self._table} has, or once had, triggers, rules, foreign"
                " keys that refer to it, or row security, which may change or hide entries. No entry was written. Drop"
                f" them and run VACUUM {self._table}, or use another schema"
            )
        self._is_checked = True

    @contextlib.contextmanager
    def _asked(self) -> Iterator[Connection]:
        """Lend a connection, and map psycopg's errors."""
        with mapped(psycopg.Error, log_request_failed, self.url), session(self._place.conninfo) as connection:
            yield connection


def _replication(connection: Connection) -> CheckResult:
    check = "synchronous replication"
    synchronous, standbys = server.synchronous_standbys(connection), server.standbys(connection)
    if standbys and not synchronous:
        return CheckResult.warning(
            check,
            f"none, and {standbys} standbys: a failover can take back a decision, so that records are lost or written"
            " twice",
            "set synchronous_standby_names",
        )
    if server.may_spare_a_standby(synchronous):
        return CheckResult.warning(
            check,
            f"{synchronous!r} names more standbys than must acknowledge a commit: after a failover, another standby can"
            " acknowledge to the old server, and a driver that still asks that server could roll back what a newer"
            " driver has decided",
            "fence the old server at each failover, or let all named standbys acknowledge",
        )
    return CheckResult.passed(check, synchronous or "none, and no standby")
