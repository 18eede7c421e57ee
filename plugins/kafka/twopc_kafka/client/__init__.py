"""Kafka's protocol, over kafka-python's connections. ``twopc_kafka.answers`` interprets the responses."""
