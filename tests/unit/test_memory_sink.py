"""The sinks in memory keep the contract."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.support.typed_records import typed
from twopc.testing import KeyedSinkContract, MemorySink, MemoryTableSink, MemoryTarget, SinkContract


class TestMemorySink(SinkContract):
    picklable = False  # the target is this process's memory

    @pytest.fixture(autouse=True)
    def _target(self) -> None:
        self.target = MemoryTarget()

    def make_sink(self) -> MemorySink:
        return MemorySink(self.target)

    def visible(self) -> list[str]:
        return [record["value"] for record in self.target.visible]

    def sample(self) -> pa.RecordBatch:
        return typed()

    def visible_records(self) -> list[dict[str, Any]]:
        return self.target.visible


class TestMemoryTableSink(TestMemorySink):
    def make_sink(self) -> MemorySink:
        return MemoryTableSink(self.target)


class TestKeyedMemorySink(KeyedSinkContract):
    picklable = False
    kind = MemorySink

    @pytest.fixture(autouse=True)
    def _target(self) -> None:
        self.target = MemoryTarget()

    def make_sink(self) -> MemorySink:
        return self.kind(self.target, key=["id"])

    def rows(self) -> list[tuple[str, str | None]]:
        return [(record["id"], record.get("value")) for record in self.target.visible]


class TestKeyedMemoryTableSink(TestKeyedMemorySink):
    kind = MemoryTableSink
