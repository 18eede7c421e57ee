"""The entry point of the backend ``kafka``."""

from twopc.hookspecs import hookimpl
from twopc_kafka.sink import KafkaSink


@hookimpl
def twopc_sink() -> type[KafkaSink]:
    """Return the sink class for ``twopc.create_sink("kafka", ...)``."""
    return KafkaSink
