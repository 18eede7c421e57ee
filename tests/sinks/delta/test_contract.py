"""The Delta sink keeps the contract of every sink, on a table of its own, partitioned and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.sinks.delta.test_readers import READERS, Reader
from tests.sinks.delta.test_types import COLUMNS
from tests.support.read_rows import as_drawn
from tests.support.typed_records import typed
from twopc.testing import SinkContract
from twopc.testing.values import nested

if TYPE_CHECKING:
    from tests.sinks.delta.conftest import Place
    from twopc_delta import DeltaSink


FLAT = [*COLUMNS.values()]
TYPES = [*FLAT, *nested(*FLAT, keys=(pa.int32(), pa.date32(), pa.binary()))]
DRAWN = pa.schema([("value", pa.string()), *((f"c{n}", type_) for n, type_ in enumerate(TYPES))])


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

    def types_taken(self) -> pa.Schema:
        self.place = type(self.place)(f"{self.place.path}-drawn")
        self.place.create(DRAWN)
        return DRAWN

    def readers(self) -> dict[str, Any]:
        names = ("DuckDB", "pandas", "polars")
        return {name: self.read_by(read) for name, read in zip(names, READERS, strict=True)}

    def read_by(self, read: Reader) -> Callable[[], list[dict[str, Any]]]:
        return lambda: [as_drawn(row, DRAWN) for row in read(self.place).to_pylist()]


@pytest.mark.long  # partitions have tests of their own
class TestPartitioned(TestAppend):
    partition_by = ("value", "day")
    large = 100  # each record has a file of its own

    def types_taken(self) -> pa.Schema:
        return self.sample().schema

    def readers(self) -> dict[str, Any]:
        return {"deltalake": self.visible_records}

    def with_bad_records(self) -> pa.RecordBatch:
        return self.record_batch(["a", "", "b", "__HIVE_DEFAULT_PARTITION__", "c"])

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        days = pa.nulls(len(values), pa.date32())
        return pa.record_batch({"value": pa.array(values), "whole": pa.array(range(len(values))), "day": days})
