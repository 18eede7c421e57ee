"""The sink in memory keeps the contract."""

from __future__ import annotations

import pytest

from twopc.testing import MemorySink, MemoryTarget, SinkContract


class TestMemorySink(SinkContract):
    picklable = False

    @pytest.fixture(autouse=True)
    def _target(self) -> None:
        self.target = MemoryTarget()

    def make_sink(self) -> MemorySink:
        return MemorySink(self.target)

    def visible(self) -> list[str]:
        return [record["value"] for record in self.target.visible]
