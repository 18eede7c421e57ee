"""The Kafka sink keeps the contract with either writer, on a real broker."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from twopc.testing import SinkContract
from twopc_kafka import KafkaSink

pytestmark = pytest.mark.kafka


class TestKafkaSink(SinkContract):
    writer = "librdkafka"

    @pytest.fixture(autouse=True)
    def _target(self, topic: Any, make_sink: Any, wait: Any) -> None:
        self.topic, self._make_sink, self._wait = topic, make_sink, wait

    def make_sink(self) -> KafkaSink:
        sink: KafkaSink = self._make_sink(self.topic, log_id=None, writer=self.writer)
        return sink

    def visible(self) -> list[str]:
        values: list[str] = self.topic.visible()
        return values

    def becomes_visible(self, values: list[str]) -> bool:
        """The broker answers a commit before its markers are written, so the records may come a little later."""
        self.topic.becomes(values)
        return True

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        return pa.record_batch({"key": pa.array(values), "value": pa.array(values)})


class TestKafkaSinkWithArrowWriter(TestKafkaSink):
    writer = "arrow"
