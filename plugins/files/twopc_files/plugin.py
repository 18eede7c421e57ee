"""The entry point of the backend ``files``."""

from __future__ import annotations

from twopc.hookspecs import hookimpl
from twopc_files.sink import FileSink


@hookimpl
def twopc_sink() -> type[FileSink]:
    """Return the class of the sink for ``twopc.create_sink("files", ...)``."""
    return FileSink
