"""Queries to a server for the sink and the log store: prepared transactions, durability, and whether the server is
current."""

from __future__ import annotations

import contextlib
import re

import psycopg
from psycopg import sql

from twopc.checks import CheckResult
from twopc_postgres.sessions import SYNCHRONOUS, Connection

_CANCEL_TIMEOUT_S = 5.0


def prepared(connection: Connection, scope: str, *, by_others: bool = False) -> dict[str, float]:
    """Return the age in seconds, by name, of the transactions prepared in this database whose names start with
    ``scope``. With ``by_others``, include transactions that this role may not end."""
    ours = (
        " WHERE database = current_database() AND starts_with(gid, {scope}) AND ({by_others} OR owner = current_user"
        " OR (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user))"
    )
    found = connection.ask(_PREPARED + ours, scope=scope, by_others=by_others)
    return {name: float(age_s) for name, age_s in found}


def all_prepared(connection: Connection) -> dict[str, float]:
    """Return the age in seconds of every transaction prepared on the server, by name."""
    return {name: float(age_s) for name, age_s in connection.ask(_PREPARED)}


_PREPARED = "SELECT gid, extract(epoch FROM clock_timestamp() - prepared) FROM pg_catalog.pg_prepared_xacts"


def room_for_prepared(connection: Connection) -> int:
    """Return how many transactions may be prepared at the same time."""
    [(setting,)] = connection.execute("SELECT current_setting('max_prepared_transactions')::int")
    return int(setting)


def durability(connection: Connection) -> CheckResult:
    """Check that acknowledged commits survive a power failure."""
    check = "durability of acknowledged commits"
    ask = "SELECT {0}('fsync')::bool AND {0}('full_page_writes')::bool".format("pg_catalog.current_setting")
    [(is_durable,)] = connection.execute(ask)
    if is_durable:
        return CheckResult.passed(check)
    return CheckResult.warning(
        check, "fsync or full_page_writes is off: a power failure can lose acknowledged commits", "set both on"
    )


def synchronous_standbys(connection: Connection) -> str:
    """Return the setting ``synchronous_standby_names``; empty if commits wait for no standby."""
    [(names,)] = connection.execute("SELECT pg_catalog.current_setting('synchronous_standby_names')")
    return str(names)


def may_spare_a_standby(synchronous: str) -> bool:
    """Return whether commits wait for fewer standbys than ``synchronous_standby_names`` lists. If one of the listed
    standbys is promoted, the others can still acknowledge what the old server commits."""
    found = _STANDBY_NAMES.fullmatch(synchronous)
    acknowledging, names = (int(found["number"]), found["names"]) if found else (1, synchronous)
    listed = re.findall(r'"(?:[^"]|"")*"|[^\s,]+', names)
    return "*" in listed or len(listed) > acknowledging


_STANDBY_NAMES = re.compile(r"\s*((FIRST|ANY)\s+)?(?P<number>\d+)\s*\((?P<names>.*)\)\s*", re.IGNORECASE | re.DOTALL)
"""``FIRST 2 (one, two)``, ``ANY 2 (one, two)`` and ``2 (one, two)``. A list alone is ``FIRST 1``, and ``*`` is any."""


def standbys(connection: Connection) -> int:
    """Return the number of connected standbys and other physical receivers of the server's WAL."""
    [(count,)] = connection.execute(
        "SELECT count(*) FROM pg_catalog.pg_stat_replication r WHERE r.state IS DISTINCT FROM 'backup' AND NOT EXISTS"
        " (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')"
    )
    return int(count)


def prove_current(connection: Connection) -> None:
    """Commit an empty transaction, and wait until the synchronous standbys have it on disk.

    The standbys then also have everything that was committed earlier, so no failover to one of them can undo that.

    The commit also proves that no standby has replaced this server, which would still answer queries about the past.
    This proof requires that the old server is fenced at a failover, or keeps too few standbys to commit. With ``FIRST 1
    (one, two)``, the second standby may still acknowledge when the first one is promoted.

    A wait that times out is canceled. Otherwise the server would not notice, and repeated waits would use up its
    sessions.
    """
    try:
        commit = sql.SQL("SELECT pg_catalog.pg_logical_emit_message(true, 'twopc', '') FROM {}")
        connection.execute(commit.format(SYNCHRONOUS))
    except psycopg.OperationalError:
        if psycopg.capabilities.has_cancel_safe():  # otherwise the cancel request may wait without limit
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
        raise
