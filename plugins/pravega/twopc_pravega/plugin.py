"""The entry point of the backend ``pravega``."""

from __future__ import annotations

from twopc.hookspecs import hookimpl
from twopc_pravega.sink import PravegaSink


@hookimpl
def twopc_sink() -> type[PravegaSink]:
    """Return the sink class for ``twopc.create_sink("pravega", ...)``."""
    return PravegaSink
