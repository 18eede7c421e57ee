"""Parses the URL of a commit log in PostgreSQL. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from twopc.errors import ConfigurationError
from twopc_postgres.sessions import completed_conninfo

SERVES_CURRENT_READS = ("read-write", "primary")
"""The values of ``target_session_attrs`` that never select a standby, whose rows may be stale."""

_SECRET_KEYS = ("scram_client_key", "scram_server_key")
"""Secrets that libpq does not mark as passwords."""

_BEFORE_QUERY = ("user", "host", "port", "dbname")
"""The parameters that a URL may hold before its ``?``."""

_ESCAPED = re.compile(r"([^%]|%[0-9A-Fa-f]{2})+")


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A log in a database.

    Attributes:
        conninfo: libpq's connection string, which may hold a password.
        schema: the schema of the table.
        log: the log's name in the table.
        url: the effective server, database and log as a URL without other parameters, for messages.
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
        if len(path) != 2 or not all(path) or any(mark in "".join(path) for mark in "#@"):
            raise ConfigurationError(
                "the URL of a commit log in PostgreSQL must have the form postgresql://user@host/database/log or"
                " postgresql://user@host/database/schema.log, such as postgresql://writer@db.example/sales/orders"
            )
        database, log = path
        schema, name = _named(log)
        server_and_database = f"postgresql://{server}/{database}"
        in_url = _parsed(f"{server_and_database}?{query}")
        if secrets := _secrets(in_url):
            raise ConfigurationError(
                f"the URL of the commit log holds a secret, {', '.join(secrets)}: use PGPASSWORD, a password file or a"
                " service file, or give it to twopc.open_store as an option"
            )
        _refuse_twice(conninfo_to_dict(_parsed(server_and_database)), query, parameters)
        conninfo = _with(in_url, parameters)
        given = {key: str(value) for key, value in conninfo_to_dict(conninfo).items()}
        if given["target_session_attrs"] not in SERVES_CURRENT_READS:
            raise ConfigurationError(
                f"target_session_attrs={given['target_session_attrs']} may read the commit log from a standby, which"
                f" may lack its newest entries: leave it out, or use one of {', '.join(SERVES_CURRENT_READS)}"
            )
        return cls(conninfo, schema, name, _shown(given, schema, name))


def _named(log: str) -> tuple[str, str]:
    """Return the schema and the log's name. A dot within one of them is written as %2E."""
    parts = [_decoded(part) for part in log.split(".")]
    if len(parts) > 2 or not all(map(_is_plain, parts)):
        raise ConfigurationError(
            "the last part of the commit log's URL must be log or schema.log, with special characters percent-encoded"
            " as UTF-8 (%2E for a dot that is part of a name). A name must not begin or end with a blank or contain a"
            " control character or one of # / @"
        )
    return ("public", *parts)[-2], parts[-1]


def _decoded(part: str) -> str:
    """Decode percent-encoded text; empty if the encoding is invalid."""
    try:
        return unquote(part, errors="strict") if _ESCAPED.fullmatch(part) else ""
    except UnicodeDecodeError:
        return ""


def _is_plain(name: str) -> bool:
    is_clean = name.isprintable() and name == name.strip()
    return bool(name) and is_clean and not any(mark in name for mark in "#/@")


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
    """Return the names of the parameters that contain a secret. libpq marks passwords with an asterisk."""
    given = [option for option in psycopg.pq.Conninfo.parse(conninfo.encode()) if option.val]
    return [
        option.keyword.decode()
        for option in given
        if option.dispchar == b"*" or option.keyword.decode() in _SECRET_KEYS
    ]


def _refuse_twice(before_query: Mapping[str, Any], query: str, parameters: Mapping[str, Any]) -> None:
    """Refuse a query parameter that would override an earlier part of the URL, and a database in the options."""
    in_query = {unquote(given.partition("=")[0]) for given in query.split("&")}
    if twice := [name for name in _BEFORE_QUERY if name in before_query and name in in_query]:
        raise ConfigurationError(
            f"the URL of the commit log gives {', '.join(twice)} before and after the question mark: remove one"
        )
    if "dbname" in parameters:
        raise ConfigurationError("the URL of the commit log names the database: remove the option dbname")


def _with(conninfo: str, parameters: Mapping[str, Any]) -> str:
    try:
        return make_conninfo(conninfo, **parameters)
    except psycopg.ProgrammingError:
        raise ConfigurationError(
            f"libpq does not know all of these options of the commit log: {', '.join(parameters)}"
        ) from None


def _shown(given: Mapping[str, str], schema: str, log: str) -> str:
    hosts = (given.get("host") or given.get("hostaddr", "")).split(",")
    ports = given.get("port", "").split(",")
    if len(ports) < len(hosts):  # libpq uses a single port for all hosts
        ports *= len(hosts)
    servers = ",".join(
        f"{f'[{host}]' if ':' in host else _encoded(host)}{port and f':{port}'}"
        for host, port in zip(hosts, ports, strict=False)
    )
    user = f"{_encoded(given['user'])}@" if "user" in given else ""
    names = ".".join(_encoded(name).replace(".", "%2E") for name in (schema, log))
    return f"postgresql://{user}{servers}/{_encoded(given['dbname'])}/{names}"


def _encoded(name: str) -> str:
    return quote(name, safe="")
