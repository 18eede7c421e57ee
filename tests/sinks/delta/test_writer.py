"""A task's memory and its open files are bounded, however many partitions its records have (invariant 7)."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.sinks.delta.conftest import Place
from tests.sinks.partitions_contract import ManyPartitions
from tests.support.sink_place import ROUND
from twopc import Participant


class TestManyPartitions(ManyPartitions):
    @pytest.fixture
    def parted(self, tmp_path: Path) -> Place:
        place = Place(str(tmp_path / "parted"))
        place.create(pa.schema({"value": pa.string(), "payload": pa.binary()}), ["value"])
        return place


def test_each_write_of_a_transaction_may_have_its_columns_in_another_order_and_lack_some(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "table"))
    place.create(pa.schema({"a": pa.string(), "b": pa.string(), "c": pa.int64()}))
    sink = place.sink()
    with Participant({"orders": sink}, ROUND, partition=0) as participant:
        participant.write("orders", pa.record_batch({"a": ["1"], "b": ["x"]}))
        participant.write("orders", pa.record_batch({"b": ["y"], "a": ["2"]}))
        participant.write("orders", pa.record_batch({"c": [3], "a": ["3"]}))
        place.commit(sink.seal([participant.pre_commit()["orders"]], 0.0)[0])
    rows = sorted(tuple(row.values()) for row in place.rows())
    assert rows == [("1", "x", None), ("2", "y", None), ("3", None, 3)]
