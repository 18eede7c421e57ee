"""Kafka as a two-phase-commit sink."""

from twopc_kafka.client.tokens import Token, TokenProvider
from twopc_kafka.sink import KafkaSink

__all__ = ["KafkaSink", "Token", "TokenProvider"]
