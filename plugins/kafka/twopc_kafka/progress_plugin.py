"""The entry point of the backend ``kafka-progress``."""

from twopc.hookspecs import hookimpl
from twopc_kafka.progress import KafkaProgressSink


@hookimpl
def twopc_sink() -> type[KafkaProgressSink]:
    """A consumer group's offsets, by Kafka's transactions."""
    return KafkaProgressSink
