"""A real Kafka broker for development and tests: `pip install twopc-kafka-broker`.

    from twopc_kafka_broker import KafkaBroker

    with KafkaBroker() as broker:
        broker.create_topic("orders", partitions=4)
        ...  # clients connect to broker.bootstrap_servers

In tests, the fixture `kafka_broker` provides one for the whole session. `python -m twopc_kafka_broker`
downloads the jars of the broker and of Spark's Kafka source in advance.
"""

from __future__ import annotations

from twopc_kafka_broker.broker import KafkaBroker
from twopc_kafka_broker.errors import (
    BrokerFailed,
    DevelopmentError,
    JarsNotAvailable,
    JavaNotFound,
    SourceNotPublished,
)
from twopc_kafka_broker.jars import KAFKA_VERSION, broker_classpath, spark_kafka_jars
from twopc_kafka_broker.java import SPARK_MODULES, Java, fetch_java, find_java

__all__ = [
    "KAFKA_VERSION",
    "SPARK_MODULES",
    "BrokerFailed",
    "DevelopmentError",
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
