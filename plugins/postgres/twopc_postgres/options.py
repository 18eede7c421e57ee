"""The options of the PostgreSQL sink: named, checked and given their defaults here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from twopc.errors import ConfigurationError
from twopc.options import Option, names, refuse_unknown

LOCK_TIMEOUT_S = 60.0

OPTIONS = (
    Option(
        "conninfo",
        "text",
        "needed: [libpq's connection string](https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING),"
        " as a URL or as `host=… dbname=…`. Several hosts: the one that can be written to",
    ),
    Option(
        "table",
        "text",
        "needed: `name` or `schema.name`, as it is in the catalog; without a schema, `public`. It must exist: the sink"
        " creates none",
    ),
    Option(
        "upsert_by",
        "columns",
        "those by which a record replaces a row, as `id,day`; without it records are only added",
    ),
    Option(
        "lock_timeout_s",
        "seconds",
        "how long a task waits for a lock. Then it fails, and its batch is run again. Longer than other writers hold a"
        " row, and shorter than a person waits for a query that stands still",
        f"{LOCK_TIMEOUT_S:.0f}",
    ),
)
KNOWN = names(OPTIONS)

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


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """What the user asked for, checked. Its repr shows no connection string, which may have a password.

    Attributes:
        conninfo: libpq's connection string, with the defaults above.
        schema: where the table is, and the table of markers.
        table: what is written to.
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
        """The options of one sink; any value may be text.

        Raises:
            ConfigurationError: an unknown option, a missing one, or a value that can't be. It never tells 'conninfo'.
        """
        refuse_unknown("postgres", options, KNOWN)
        schema, table = _qualified(str(options.get("table") or ""))
        return cls(
            conninfo=_conninfo(options.get("conninfo")),
            schema=schema,
            table=table,
            upsert_by=_columns(options.get("upsert_by") or ()),
            lock_timeout_s=_seconds(options.get("lock_timeout_s", LOCK_TIMEOUT_S)),
        )

    def __str__(self) -> str:
        """The table and its server, for messages."""
        given = conninfo_to_dict(self.conninfo)
        server = given.get("host") or given.get("hostaddr") or given.get("service") or "the default server"
        return f"table {self.schema}.{self.table} of database {given.get('dbname', 'by default')!r} at {server}"


def _conninfo(value: object) -> str:
    needed = "a connection string of libpq's, such as postgresql://writer@db.example/sales"
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"the postgres sink needs the option 'conninfo': {needed}")
    wrong = ConfigurationError(
        f"the option 'conninfo' is not {needed}. In a URL, special characters of a password are written as percent and"
        " two digits, such as %40 for '@'."
    )
    try:
        given = {name: str(part) for name, part in conninfo_to_dict(value).items()}
    except psycopg.ProgrammingError:
        raise wrong from None  # it quotes pieces of the string, and one may be a secret
    ports = [port for port in given.get("port", "").split(",") if port]
    if any("@" in given.get(name, "") for name in ("host", "dbname")) or not all(map(str.isdecimal, ports)):
        raise wrong  # so libpq reads a URL whose password has an '@' or a '/', and would tell it in its errors
    return make_conninfo("", **{**CONNECTION_DEFAULTS, **given})


def _qualified(name: str) -> tuple[str, str]:
    schema, dot, table = name.strip().rpartition(".")
    if not table or "." in schema or (dot and not schema):
        raise ConfigurationError(
            f"the option 'table' must be a name such as orders or sales.orders, as it is in the catalog, not {name!r}"
        )
    return schema or "public", table


def _columns(value: object) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"'upsert_by' must be names of columns such as id,day, not {value!r}")
    return tuple(dict.fromkeys(names))


def _seconds(value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 86_400:
        raise ConfigurationError(f"'lock_timeout_s' must be seconds from 0.001 to 86400, not {value!r}")
    return seconds
