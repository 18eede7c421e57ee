"""Broker properties that several tests use, and version requirements of tests."""

import pytest

from twopc_kafka_broker.jars import KAFKA_VERSION

WITHOUT_TIMEOUT = {"transaction.two.phase.commit.enable": True, "unstable.api.versions.enable": True}
"""Grant transactions without a timeout to clients that ask for them (KIP-939)."""


def is_older(*than: int) -> bool:
    """Return whether the development broker is older than this version of Kafka."""
    return tuple(map(int, KAFKA_VERSION.split("."))) < than


def needs_kafka(*least: int) -> pytest.MarkDecorator:
    """Skip a test of a feature of this version of Kafka if the broker is older."""
    return pytest.mark.skipif(is_older(*least), reason=f"needs Kafka {'.'.join(map(str, least))}")
