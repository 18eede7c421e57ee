"""Records that replace rows: which one wins, and what two writers of one key do to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from twopc import Participant, Round
from twopc.errors import ConfigurationError, RoundAborted, SchemaMismatch

if TYPE_CHECKING:
    from tests.sinks.postgres.conftest import Place


@pytest.fixture
def keyed(place: Place) -> Place:
    place.create("id int, day date DEFAULT '2026-01-01', value text, PRIMARY KEY (id)")
    return place


def rows(place: Place) -> list[tuple[object, ...]]:
    return place.ask("SELECT id, value FROM {} ORDER BY id")


def test_a_record_replaces_the_row_of_its_key_when_it_is_committed_and_not_before(keyed: Place) -> None:
    keyed.ask("INSERT INTO {} VALUES (1, '2026-02-02', 'old'), (2, '2026-02-02', 'kept')")
    committable = keyed.pre_commit({"id": pa.array([1, 3], pa.int32()), "value": ["new", "added"]}, upsert_by="id")
    assert rows(keyed) == [(1, "old"), (2, "kept")]
    keyed.sink().commit(committable)
    assert rows(keyed) == [(1, "new"), (2, "kept"), (3, "added")]
    # A column that the records don't have keeps its value.
    assert keyed.ask("SELECT day::text FROM {} ORDER BY id") == [("2026-02-02",), ("2026-02-02",), ("2026-01-01",)]


def test_of_records_with_one_key_the_last_that_its_task_wrote_wins(keyed: Place) -> None:
    sink = keyed.sink(upsert_by="id")
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        for values in (["a", "b", "c"], ["d"]):
            ids = pa.array([1, 2, 1][: len(values)], pa.int32())
            participant.write("orders", pa.record_batch({"id": ids, "value": values}))
        [committable] = participant.pre_commit().values()
    sink.commit(committable)
    assert rows(keyed) == [(1, "d"), (2, "b")]


def test_a_second_task_that_writes_a_key_of_the_first_fails_and_says_what_to_do(keyed: Place) -> None:
    first = keyed.pre_commit({"id": pa.array([1], pa.int32()), "value": ["a"]}, upsert_by="id")
    with pytest.raises(RoundAborted, match=r"lock timeout.*repartition"):
        keyed.pre_commit(
            {"id": pa.array([1], pa.int32()), "value": ["b"]}, partition=1, upsert_by="id", lock_timeout_s=0.05
        )
    keyed.sink().commit(first)
    assert rows(keyed) == [(1, "a")]


def test_a_lost_attempt_keeps_the_next_one_from_its_keys_until_it_is_swept(keyed: Place) -> None:
    records = {"id": pa.array([1], pa.int32()), "value": ["a"]}
    lost = keyed.pre_commit(records, upsert_by="id")
    with pytest.raises(RoundAborted, match="a lost attempt, which is rolled back with the batch"):
        keyed.pre_commit(records, partition=1, upsert_by="id", lock_timeout_s=0.05)
    keyed.sink().abort(lost)
    keyed.sink().commit(keyed.pre_commit(records, Round(2, 0), upsert_by="id"))
    assert rows(keyed) == [(1, "a")]


@pytest.mark.variants
@pytest.mark.parametrize("index", ["(value)", "(id, value)", "(id) WHERE id > 1", "(abs(id))"])
def test_keys_without_a_unique_index_on_just_them_are_refused_before_anything_is_written(
    index: str, place: Place
) -> None:
    place.create("id int, value text")
    place.ask(f"CREATE UNIQUE INDEX ON {{}} {index}")
    schema = pa.schema([("id", pa.int32()), ("value", pa.string())])
    with pytest.raises(ConfigurationError, match="no primary key or unique index on exactly the columns"):
        place.sink(upsert_by="id").validate(schema)
    place.ask("CREATE UNIQUE INDEX ON {} (id) INCLUDE (value)")
    place.sink(upsert_by="id").validate(schema)
    with pytest.raises(SchemaMismatch, match="'id', which 'upsert_by' names"):
        place.sink(upsert_by="id").validate(pa.schema([("value", pa.string())]))
