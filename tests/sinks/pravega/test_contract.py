"""The Pravega sink keeps the contract of every sink, on a real cluster."""

import pyarrow as pa
import pytest

from tests.sinks.pravega.conftest import Place
from twopc.testing import SinkContract
from twopc_pravega import PravegaSink


class TestPravega(SinkContract):
    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = place

    def make_sink(self) -> PravegaSink:
        return self.place.unbound()

    def visible(self) -> list[str]:
        return self.place.values()

    def with_bad_records(self) -> pa.RecordBatch:
        """Pravega has no event without a value."""
        return pa.record_batch({"value": ["a", "b", None, "d", None, None, "e"]})


class TestKeys(TestPravega):
    """Half of the records have a routing key."""

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        keys = [value if number % 2 else None for number, value in enumerate(values)]
        return pa.record_batch({"value": pa.array(values), "key": pa.array(keys, pa.string())})
