"""The entry point of the backend ``kafka-offsets``."""

from twopc.hookspecs import hookimpl
from twopc_kafka.offsets_sink import KafkaProgressSink


@hookimpl
def twopc_sink() -> type[KafkaProgressSink]:
    """Return the sink class for ``twopc.create_sink("kafka-offsets", ...)``."""
    return KafkaProgressSink
