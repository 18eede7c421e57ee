"""A task's memory and its open files are bounded, however many partitions its records have (invariant 7)."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.sinks.delta.conftest import Place
from tests.sinks.partitions_contract import ManyPartitions


class TestManyPartitions(ManyPartitions):
    @pytest.fixture
    def parted(self, tmp_path: Path) -> Place:
        place = Place(str(tmp_path / "parted"))
        place.create(pa.schema({"value": pa.string(), "payload": pa.binary()}), ["value"])
        return place
