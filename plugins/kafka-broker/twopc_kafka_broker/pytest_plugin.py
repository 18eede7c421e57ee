"""Pytest fixtures with a real broker. Pytest loads them wherever the distribution is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc_kafka_broker.broker import KafkaBroker


@pytest.fixture(scope="session")
def kafka_broker_properties() -> dict[str, str | int | bool]:
    """Return the configuration of the session's broker. Override this fixture in conftest.py to change it."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_properties: dict[str, str | int | bool]) -> Iterator[KafkaBroker]:
    """Provide a running `KafkaBroker` for the whole session. A test that stops it must start it again."""
    # Imported here, as every pytest run loads this module if the distribution is installed.
    from twopc_kafka_broker.broker import KafkaBroker

    with KafkaBroker(properties=kafka_broker_properties) as broker:
        yield broker
