"""The options of the SQL sink, with their checks and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from twopc.datasets import Dataset, of_table
from twopc.options import UPSERT_BY, Kind, Option, parse, qualified_name, refuse_unknown, seconds
from twopc_sql.dialects import DIALECTS, Dialect

OWNER = "the sql sink"

_SCHEMES = [dialect.scheme for dialect in DIALECTS.values()]


def _url(given: Any) -> sa.URL:
    try:
        url = sa.make_url(given)
        scheme = f"{url.get_backend_name()}+{url.get_driver_name()}"
    except (ArgumentError, ImportError):  # the error's text may repeat a password
        raise ValueError from None
    # Tasks can't reach a database in the driver's memory.
    is_in_memory = not url.host and (
        not url.database or "memory" in url.query.get("mode", "") or ":memory:" in url.database
    )
    if scheme not in _SCHEMES or is_in_memory:
        raise ValueError
    return url


OPTIONS = (
    Option(
        "url",
        Kind(
            "URL",
            f"SQLAlchemy's URL of a server or a file, with one of the schemes {', '.join(_SCHEMES)}, whose driver is"
            " installed, such as postgresql+psycopg://writer@db.example/sales. It is proven on no others",
            _url,
        ),
        "[SQLAlchemy's URL](https://docs.sqlalchemy.org/en/20/core/engines.html#database-urls) of the database, such as"
        " `mysql+pymysql://writer@db.example/sales` or `sqlite:////data/sales.db`",
        needed=True,
    ),
    Option(
        "table",
        qualified_name("a name such as orders or sales.orders, spelled as in the database"),
        "`name` or `schema.name`, spelled as in the database. The sink does not create the table",
        needed=True,
    ),
    UPSERT_BY,
    Option(
        "lock_timeout_s",
        seconds(least=1, most=86_400),
        "how long a task waits for a lock, or for a database that is away, before it fails and its batch is run again",
        default=60.0,
    ),
)


@dataclass(frozen=True, slots=True)
class SqlOptions:
    """The checked options. The repr hides the URL, which may contain a password.

    Attributes:
        url: SQLAlchemy's URL.
        schema: the schema of the table, and of the sink's own tables; None for the database's default.
        table: the table that the sink writes to.
        upsert_by: the columns by which a record replaces a row; empty if records are only added.
        lock_timeout_s: how long a task waits for a lock.
    """

    url: sa.URL = field(repr=False)
    schema: str | None
    table: str
    upsert_by: tuple[str, ...]
    lock_timeout_s: float

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> SqlOptions:
        """Parse the options of one sink. Any value may be given as text.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong. The message repeats no value.
        """
        refuse_unknown(OWNER, options, OPTIONS)
        values = parse(OWNER, OPTIONS, options)
        schema, table = values["table"]
        return cls(values["url"], schema, table, values.get("upsert_by", ()), values["lock_timeout_s"])

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.url.get_backend_name()]

    @property
    def qualified(self) -> str:
        return ".".join(filter(None, (self.schema, self.table)))

    @property
    def dataset(self) -> Dataset | None:
        """The table, identified by its server and its database. If the URL lists several servers, the first one counts.
        In PostgreSQL, the default schema counts as ``public``. None if a service file or an option file names the
        server."""
        url, backend = self.url, self.url.get_backend_name()
        database = url.database or url.username or ""
        if not url.host and {"service", "read_default_file"} & url.query.keys():
            return None
        match backend:
            case "postgresql":
                host, port = self._server
                return of_table("postgres", host, port or 5432, database, self.schema or "public", self.table)
            case "mysql":
                host = url.host or "localhost"
                return of_table("mysql", host, url.port or 3306, self.schema or database, self.table)
            case _:  # a file
                return Dataset(f"{backend}:{Path(database.removeprefix('file:')).absolute()}", self.qualified)

    @property
    def _server(self) -> tuple[str, int | str | None]:
        """The first host and port of a PostgreSQL URL. Both may be given as parameters: ``?host=one:5433&host=two``."""
        if self.url.host:
            return self.url.host, self.url.port
        given = self.url.normalized_query
        host, _, port = next(iter(given.get("host", ())), "").partition(":")
        return host if host and not host.startswith("/") else "localhost", port or next(
            iter(given.get("port", ())), None
        )

    def __str__(self) -> str:
        """Return the table and its database, for messages."""
        server = f" at {self.url.host}" if self.url.host else ""
        return f"table {self.qualified} of {self.url.get_backend_name()} database {self.url.database!r}{server}"
