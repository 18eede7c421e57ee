"""The options of the PostgreSQL sink, with their checks and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from twopc.datasets import Dataset, of_table
from twopc.options import UPSERT_BY, Kind, Option, parse, qualified_name, refuse_unknown, seconds
from twopc_postgres.sessions import completed_conninfo

OWNER = "the postgres sink"

OPTIONS = (
    Option(
        "conninfo",
        Kind(
            "text",
            "a libpq connection string, such as postgresql://writer@db.example/sales. In a URL, percent-encode special"
            " characters of a password, such as %40 for '@'",
            completed_conninfo,
        ),
        "[libpq's connection string](https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING),"
        " as a URL or as `host=… dbname=…`. With several hosts, the sink uses the one that accepts writes",
        needed=True,
    ),
    Option(
        "table",
        qualified_name("a name such as orders or sales.orders, spelled as in the catalog"),
        "`name` or `schema.name`, spelled as in the catalog; the default schema is `public`. The sink does not create"
        " the table",
        needed=True,
    ),
    UPSERT_BY,
    Option(
        "lock_timeout_s",
        seconds(least=0.001, most=86_400),
        "how long a task waits for a lock before it fails and its batch is run again. Set it longer than other writers"
        " hold a row, and shorter than a stalled query is acceptable",
        default=60.0,
    ),
)


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """The checked options. The repr hides the connection string, which may contain a password.

    Attributes:
        conninfo: libpq's connection string, completed with the defaults above.
        schema: the schema of the table and of the marker table.
        table: the table that the sink writes to.
        upsert_by: the columns by which a record replaces a row; empty if records are only added.
        lock_timeout_s: how long a task waits for a lock.
    """

    conninfo: str = field(repr=False)
    schema: str
    table: str
    upsert_by: tuple[str, ...]
    lock_timeout_s: float

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> PostgresOptions:
        """Parse the options of one sink. Any value may be given as text.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong. The message repeats no value.
        """
        refuse_unknown(OWNER, options, OPTIONS)
        values = parse(OWNER, OPTIONS, options)
        schema, table = values["table"]
        return cls(values["conninfo"], schema or "public", table, values.get("upsert_by", ()), values["lock_timeout_s"])

    @property
    def dataset(self) -> Dataset | None:
        """The table on the first server of the connection string. None if a service file names the server."""
        defaults = {each.keyword.decode(): each.val.decode() for each in pq.Conninfo.get_defaults() if each.val}
        given = {**defaults, **{name: str(part) for name, part in conninfo_to_dict(self.conninfo).items()}}
        if "service" in given:
            return None
        host, port = ((given.get(name) or "").partition(",")[0] for name in ("host", "port"))
        if not host or host.startswith("/"):  # the folder of a Unix socket
            host = (given.get("hostaddr") or "").partition(",")[0] or "localhost"
        database = given.get("dbname") or given["user"]
        return of_table("postgres", host, port or 5432, database, self.schema, self.table)

    def __str__(self) -> str:
        """Return the table and its server, for messages."""
        given = conninfo_to_dict(self.conninfo)
        server = given.get("host") or given.get("hostaddr") or given.get("service") or "the default server"
        return f"table {self.schema}.{self.table} of database {given.get('dbname', 'by default')!r} at {server}"
