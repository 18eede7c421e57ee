"""The options of the MySQL sink, with their checks and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from twopc.datasets import Dataset, of_table
from twopc.errors import ConfigurationError
from twopc.options import (
    UPSERT_BY,
    Kind,
    Option,
    flag,
    parse,
    qualified_name,
    refuse_unknown,
    seconds,
    text,
    whole_number,
)

OWNER = "the mysql sink"

PARAMETERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("unix_socket", "read_default_file", "read_default_group"), text().read),
    **dict.fromkeys(("ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password"), text().read),
    **dict.fromkeys(("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled"), flag().read),
    "connect_timeout": whole_number(least=1, most=600).read,
}
"""The parameters of PyMySQL that a URL may contain."""


def _connection(given: Any) -> dict[str, Any]:
    """Return PyMySQL's arguments for a URL. Raises a ValueError without text, since the parser's errors could quote a
    password."""
    parts = urlsplit(text().read(given))
    query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    database = parts.path.removeprefix("/")
    # An unencoded '@', '/', '?' or '#' in a password would end up in another part of the URL.
    if parts.netloc.count("@") > 1 or parts.fragment or "/" in database or "@" in parts.path:
        raise ValueError
    if parts.scheme.removesuffix("+pymysql") not in ("mysql", "mariadb"):
        raise ValueError
    arguments = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username and unquote(parts.username),
        "password": parts.password and unquote(parts.password).encode(),  # PyMySQL encodes text as Latin-1
        "database": unquote(database),
    }
    arguments = {name: value for name, value in arguments.items() if value}
    for name, value in query.items():
        if name not in PARAMETERS:
            raise ValueError
        arguments[name] = PARAMETERS[name](value)
    if "unix_socket" in arguments and not any(name.startswith("ssl_") for name in arguments):
        arguments["ssl_disabled"] = True  # encryption would take most of the time to connect
    if "ssl_ca" in arguments:
        arguments.setdefault("ssl_verify_cert", True)  # otherwise PyMySQL would trust every server
    return arguments


OPTIONS = (
    Option(
        "url",
        Kind(
            "URL",
            "a URL such as mysql://writer:secret@db.example:3306/sales, with percent-encoded special characters, such"
            f" as %40 for '@' in a password. Its parameters: {', '.join(PARAMETERS)}",
            _connection,
        ),
        "`mysql://user:password@host:port/database`, with parameters of PyMySQL such as `?ssl_ca=/etc/ssl/db.pem`",
        needed=True,
    ),
    Option(
        "table",
        qualified_name(),
        "`name` or `database.name`; the default database is that of `url`. The sink does not create the table",
        needed=True,
    ),
    UPSERT_BY,
    Option(
        "lock_timeout_s",
        seconds(least=1, most=86_400),
        "how long a task waits for a lock before it fails and its batch is run again, rounded up to whole seconds. Set"
        " it longer than other writers hold a row, and shorter than a stalled query is acceptable",
        default=60.0,
    ),
)


@dataclass(frozen=True, slots=True)
class MysqlOptions:
    """The checked options. The repr hides the connection's arguments, which may contain a password.

    Attributes:
        connection: PyMySQL's arguments.
        database: the database of the table and of the marker table.
        table: the table that the sink writes to.
        upsert_by: the columns by which a record replaces a row; empty if records are only added.
        lock_timeout_s: how long a task waits for a lock.
    """

    connection: Mapping[str, Any] = field(repr=False)
    database: str
    table: str
    upsert_by: tuple[str, ...]
    lock_timeout_s: float

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> MysqlOptions:
        """Parse the options of one sink. Any value may be given as text.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong. The message repeats no value.
        """
        refuse_unknown(OWNER, options, OPTIONS)
        values = parse(OWNER, OPTIONS, options)
        database, table = values["table"]
        if not (database := database or values["url"].get("database", "")):
            raise ConfigurationError(f"{OWNER} needs a database: name it in 'url' or in 'table'.", option="table")
        return cls(values["url"], database, table, values.get("upsert_by", ()), values["lock_timeout_s"])

    @property
    def dataset(self) -> Dataset | None:
        """The table on its server. None if an option file may name the server."""
        given = self.connection
        if "host" not in given and {"read_default_file", "read_default_group"} & given.keys():
            return None
        return of_table("mysql", given.get("host", "localhost"), given.get("port", 3306), self.database, self.table)

    def __str__(self) -> str:
        """Return the table and its server, for messages."""
        given = self.connection
        server = given.get("unix_socket") or f"{given.get('host', 'localhost')}:{given.get('port', 3306)}"
        return f"table {self.database}.{self.table} at {server}"
