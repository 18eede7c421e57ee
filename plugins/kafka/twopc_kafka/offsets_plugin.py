"""The entry point of the backend ``kafka-offsets``."""

from twopc.hookspecs import hookimpl
from twopc_kafka.offsets_sink import KafkaProgressSink


@hookimpl
def twopc_sink() -> type[KafkaProgressSink]:
    """A consumer group's offsets, in Kafka transactions."""
    return KafkaProgressSink
