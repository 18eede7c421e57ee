"""The Delta sink keeps the contract of every sink, on a table of its own, partitioned and not."""

from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.delta.conftest import Place
from tests.support.typed_records import typed
from twopc.testing import SinkContract
from twopc_delta import DeltaSink


class TestAppend(SinkContract):
    finds_lost_batches = True
    partition_by: tuple[str, ...] = ()

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path_factory: pytest.TempPathFactory, place: Place) -> None:
        self.place = type(place)(str(tmp_path_factory.mktemp("table")))
        self.place.create(typed().schema, self.partition_by)

    def make_sink(self) -> DeltaSink:
        return self.place.unbound()

    def visible(self) -> list[str]:
        return self.place.values()

    def sample(self) -> pa.RecordBatch:
        return typed()

    def visible_records(self) -> list[dict[str, Any]]:
        return self.place.rows()


@pytest.mark.long  # partitions have tests of their own
class TestPartitioned(TestAppend):
    partition_by = ("value", "day")
    large = 100  # each record has a file of its own

    def with_bad_records(self) -> pa.RecordBatch:
        return self.record_batch(["a", "", "b", "__HIVE_DEFAULT_PARTITION__", "c"])

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        days = pa.nulls(len(values), pa.date32())
        return pa.record_batch({"value": pa.array(values), "whole": pa.array(range(len(values))), "day": days})
