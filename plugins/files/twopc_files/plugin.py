"""The entry point of the backend ``files``."""

from __future__ import annotations

from twopc.hookspecs import hookimpl
from twopc_files.sink import FileSink


@hookimpl
def twopc_sink() -> type[FileSink]:
    """The sink of ``twopc.create_sink("files", ...)``."""
    return FileSink
