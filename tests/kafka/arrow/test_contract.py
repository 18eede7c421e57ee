"""The Kafka sink keeps the contract with the Arrow writer, on a real broker."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from twopc.testing import SinkContract
from twopc_kafka import KafkaSink

pytestmark = pytest.mark.kafka


class TestKafkaSinkWithArrowWriter(SinkContract):
    @pytest.fixture(autouse=True)
    def _target(self, topic: Any, make_sink: Any) -> None:
        self.topic, self._make_sink = topic, make_sink

    def make_sink(self) -> KafkaSink:
        sink: KafkaSink = self._make_sink(self.topic, log_id=None, writer="arrow")
        return sink

    def visible(self) -> list[str]:
        values: list[str] = self.topic.visible()
        return values

    def becomes_visible(self, values: list[str]) -> bool:
        self.topic.becomes(values)
        return True

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        return pa.record_batch({"key": pa.array(values), "value": pa.array(values)})
