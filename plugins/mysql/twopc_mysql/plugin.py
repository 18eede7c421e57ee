"""The entry point of the backend ``mysql``."""

from __future__ import annotations

from twopc.hookspecs import hookimpl
from twopc_mysql.sink import MysqlSink


@hookimpl
def twopc_sink() -> type[MysqlSink]:
    """Return the sink class for ``twopc.create_sink("mysql", ...)``."""
    return MysqlSink
