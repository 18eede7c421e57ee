"""The URL of a commit log in PostgreSQL. This module sends no request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from twopc.errors import ConfigurationError
from twopc.options import qualified_name
from twopc_postgres.options import completed_conninfo

SERVES_CURRENT_READS = ("read-write", "primary")
"""The values of ``target_session_attrs`` that select no standby, whose rows may be old."""

_SECRET_KEYS = ("scram_client_key", "scram_server_key")
"""Secrets that libpq does not mark as passwords."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A log in a database.

    Attributes:
        conninfo: libpq's connection string, which may hold a password.
        schema: the schema of the table.
        log: the log's name in the table.
        url: the URL without libpq's parameters, for messages.
    """

    conninfo: str = field(repr=False)
    schema: str
    log: str
    url: str

    @classmethod
    def parse(cls, url: str, parameters: Mapping[str, Any]) -> LogPlace:
        """Parse a URL such as ``postgresql://writer@db.example/sales/etl.orders?sslmode=verify-full``.

        Raises:
            ConfigurationError: see ``PostgresLogStore``. The message repeats nothing that may be a secret.
        """
        place, _, query = url.partition("?")
        server, *path = place.partition("://")[2].rstrip("/").split("/")
        if len(path) != 2 or not all(path):
            raise ConfigurationError(
                "the URL of a commit log in PostgreSQL must have the form postgresql://user@host/database/log or"
                " postgresql://user@host/database/schema.log, such as postgresql://writer@db.example/sales/orders"
            )
        database, log = path
        try:
            schema, name = qualified_name().read(unquote(log))
        except ValueError:
            raise ConfigurationError(f"the commit log {log!r} must be named log or schema.log") from None
        in_url = _parsed(f"postgresql://{server}/{database}?{query}")
        if secrets := _secrets(in_url):
            raise ConfigurationError(
                f"the URL of the commit log holds a secret, {', '.join(secrets)}: use PGPASSWORD, a password file or a"
                " service file, or give it to twopc.open_store as an option"
            )
        given = {**conninfo_to_dict(in_url), **parameters}
        if given["target_session_attrs"] not in SERVES_CURRENT_READS:
            raise ConfigurationError(
                f"target_session_attrs={given['target_session_attrs']} may read the commit log from a standby, which"
                f" may lack its newest entries: leave it out, or use one of {', '.join(SERVES_CURRENT_READS)}"
            )
        return cls(_with(in_url, parameters), schema or "public", name, f"postgresql://{server}/{database}/{log}")


def _parsed(url: str) -> str:
    try:
        return completed_conninfo(url)
    except ValueError:
        raise ConfigurationError(
            "the URL of the commit log is not one that libpq takes, or holds a password: see the parameters at"
            " https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS, and percent-encode"
            " special characters"
        ) from None


def _secrets(conninfo: str) -> list[str]:
    """Return the names of the parameters that hold a secret. libpq marks passwords by an asterisk."""
    given = [option for option in psycopg.pq.Conninfo.parse(conninfo.encode()) if option.val]
    return [
        option.keyword.decode()
        for option in given
        if option.dispchar == b"*" or option.keyword.decode() in _SECRET_KEYS
    ]


def _with(conninfo: str, parameters: Mapping[str, Any]) -> str:
    try:
        return make_conninfo(conninfo, **parameters)
    except psycopg.ProgrammingError:
        raise ConfigurationError(
            f"libpq does not know all of these options of the commit log: {', '.join(parameters)}"
        ) from None
