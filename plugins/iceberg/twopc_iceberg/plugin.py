"""The entry point of the backend ``iceberg``."""

from __future__ import annotations

from twopc.hookspecs import hookimpl
from twopc_iceberg.sink import IcebergSink


@hookimpl
def twopc_sink() -> type[IcebergSink]:
    """Return the sink class for ``twopc.create_sink("iceberg", ...)``."""
    return IcebergSink
