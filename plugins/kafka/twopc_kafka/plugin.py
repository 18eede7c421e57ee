"""The entry point of the backend ``kafka``."""

from twopc.hookspecs import hookimpl
from twopc_kafka.sink import KafkaSink


@hookimpl
def twopc_sink() -> type[KafkaSink]:
    """Kafka, by its transactions."""
    return KafkaSink
