"""The entry point of the backend ``delta``."""

from __future__ import annotations

from twopc.hookspecs import hookimpl
from twopc_delta.sink import DeltaSink


@hookimpl
def twopc_sink() -> type[DeltaSink]:
    """Return the sink class for ``twopc.create_sink("delta", ...)``."""
    return DeltaSink
