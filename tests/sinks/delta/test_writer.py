"""A task's memory and its open files are bounded, however many partitions its records have (invariant 7)."""

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.sinks.delta.conftest import Place
from tests.sinks.partitions_contract import ManyPartitions
from twopc import Committable, Participant, Round
from twopc.errors import RoundAborted


class TestManyPartitions(ManyPartitions):
    @pytest.fixture
    def parted(self, tmp_path: Path) -> Place:
        place = Place(str(tmp_path / "parted"))
        place.create(pa.schema({"value": pa.string(), "payload": pa.binary()}), ["value"])
        return place


def test_each_write_of_a_transaction_may_have_its_columns_in_another_order_and_lack_some(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "table"))
    place.create(pa.schema({"a": pa.string(), "b": pa.string(), "c": pa.int64()}))
    votes = list[Committable]()
    for batch_id in range(2):
        with Participant({"orders": place.sink()}, Round(1, batch_id), partition=0) as participant:
            participant.write("orders", pa.record_batch({"a": ["1"], "b": ["x"]}))
            participant.write("orders", pa.record_batch({"b": ["y"], "a": ["2"]}))
            participant.write("orders", pa.record_batch({"c": [3], "a": ["3"]}))
            votes.append(participant.pre_commit()["orders"])
    sink = place.sink()
    sink.commit_batch(0, sink.seal(votes[:1], 0.0))
    rows = sorted(tuple(row.values()) for row in place.rows())
    assert rows == [("1", "x", None), ("2", "y", None), ("3", None, 3)]
    narrower = pa.table({"a": ["4"], "b": ["z"]})
    write_deltalake(place.path, narrower, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(RoundAborted, match="column 'c' was int64 and is gone"):
        sink.seal(votes[1:], 0.0)


def test_records_share_a_file_whatever_the_order_of_their_columns_and_the_metadata_of_their_schemas(
    tmp_path: Path,
) -> None:
    place = Place(str(tmp_path / "table"))
    place.create(pa.schema({"a": pa.int64(), "b": pa.int64(), "c": pa.int64()}))
    sink = place.sink()
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        for number, names in enumerate(itertools.permutations("abc")):
            batch = pa.record_batch({name: [number * 10 + "abc".index(name)] for name in names})
            participant.write("orders", batch.replace_schema_metadata({"number": str(number)}))
        vote = participant.pre_commit()["orders"]
    sink.commit_batch(0, sink.seal([vote], 0.0))
    rows = sorted((row["a"], row["b"], row["c"]) for row in place.rows())
    assert rows == [(number * 10, number * 10 + 1, number * 10 + 2) for number in range(6)]
    assert len(place.table().file_uris()) == 1
