"""The entry points of the backend ``postgres`` and of commit logs at ``postgresql://``."""

from __future__ import annotations

from twopc.hookspecs import hookimpl
from twopc_postgres.log.store import PostgresLogStore
from twopc_postgres.sink import PostgresSink


@hookimpl
def twopc_sink() -> type[PostgresSink]:
    """Return the sink class for ``twopc.create_sink("postgres", ...)``."""
    return PostgresSink


@hookimpl
def twopc_log_store() -> type[PostgresLogStore]:
    """Return the log store class for ``log="postgresql://..."``."""
    return PostgresLogStore
