"""The entry point of the backend ``sql``."""

from __future__ import annotations

from twopc.hookspecs import hookimpl
from twopc_sql.sink import SqlSink


@hookimpl
def twopc_sink() -> type[SqlSink]:
    """Return the sink class for ``twopc.create_sink("sql", ...)``."""
    return SqlSink
