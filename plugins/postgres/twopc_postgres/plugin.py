"""The entry point of the backend ``postgres``."""

from __future__ import annotations

from twopc.hookspecs import hookimpl
from twopc_postgres.sink import PostgresSink


@hookimpl
def twopc_sink() -> type[PostgresSink]:
    """Return the sink class for ``twopc.create_sink("postgres", ...)``."""
    return PostgresSink
