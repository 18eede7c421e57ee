"""The options of the PostgreSQL sink: named, checked and given their defaults here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from twopc.options import Kind, Option, columns, parse, refuse_unknown, seconds

OWNER = "the postgres sink"

CONNECTION_DEFAULTS: Mapping[str, str] = {
    "application_name": "twopc",
    # Bounds how long one address may leave us without an answer; libpq itself waits for as long as TCP does.
    "connect_timeout": "10",
    # The same for what is under way; in milliseconds. A dead host would else hold a commit for fifteen minutes.
    "tcp_user_timeout": "30000",
    # So that it also bounds the wait for an answer, in which nothing is sent; in seconds.
    "keepalives_idle": "10",
    "keepalives_interval": "10",
    # Where 'conninfo' names several servers, the one that can be written to: after a failover it is another.
    "target_session_attrs": "read-write",
}


def _conninfo(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    try:
        parts = {name: str(part) for name, part in conninfo_to_dict(given).items()}
    except psycopg.ProgrammingError:
        raise ValueError from None  # it quotes pieces of the string, and one may be a secret
    ports = [port for port in parts.get("port", "").split(",") if port]
    # So libpq reads a URL whose password has an '@' or a '/', which it would then repeat in its errors.
    if any("@" in parts.get(name, "") for name in ("host", "dbname")) or not all(map(str.isdecimal, ports)):
        raise ValueError
    return make_conninfo("", **{**CONNECTION_DEFAULTS, **parts})


def _qualified(given: Any) -> tuple[str, str]:
    schema, dot, table = str(given).strip().rpartition(".")
    if not table or "." in schema or (dot and not schema):
        raise ValueError
    return schema or "public", table


OPTIONS = (
    Option(
        "conninfo",
        Kind(
            "text",
            "a connection string of libpq's, such as postgresql://writer@db.example/sales. In a URL, special characters"
            " of a password are written as percent and two digits, such as %40 for '@'",
            _conninfo,
        ),
        "[libpq's connection string](https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING),"
        " as a URL or as `host=… dbname=…`. With several hosts, the sink uses the one that accepts writes",
        needed=True,
    ),
    Option(
        "table",
        Kind("text", "a name such as orders or sales.orders, as it is in the catalog", _qualified),
        "`name` or `schema.name`, as it is in the catalog; without a schema, `public`. It must exist: the sink creates"
        " none",
        needed=True,
    ),
    Option(
        "upsert_by",
        columns(),
        "those by which a record replaces a row, as `id,day`; without it, records are only added",
    ),
    Option(
        "lock_timeout_s",
        seconds(least=0.001, most=86_400),
        "how long a task waits for a lock. Then it fails, and its batch is run again. Longer than other writers hold a"
        " row, and shorter than an operator waits for a query that stands still",
        default=60.0,
    ),
)


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """The options, checked. The repr does not show the connection string, which may have a password.

    Attributes:
        conninfo: libpq's connection string, with the defaults above.
        schema: where the table is, and the table of markers.
        table: the table that the sink writes to.
        upsert_by: the columns by which a record replaces a row; none where records are only added.
        lock_timeout_s: how long a task waits for a lock.
    """

    conninfo: str = field(repr=False)
    schema: str
    table: str
    upsert_by: tuple[str, ...]
    lock_timeout_s: float

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> PostgresOptions:
        """Parse the options of one sink; any value may be text.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong. No value is repeated.
        """
        refuse_unknown(OWNER, options, OPTIONS)
        values = parse(OWNER, OPTIONS, options)
        schema, table = values["table"]
        return cls(values["conninfo"], schema, table, values.get("upsert_by", ()), values["lock_timeout_s"])

    def __str__(self) -> str:
        """Return the table and its server, for messages."""
        given = conninfo_to_dict(self.conninfo)
        server = given.get("host") or given.get("hostaddr") or given.get("service") or "the default server"
        return f"table {self.schema}.{self.table} of database {given.get('dbname', 'by default')!r} at {server}"
