"""Records that replace rows: which one wins, and what two writers of one key do to each other."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from twopc import Participant, Round
from twopc.errors import ConfigurationError, RoundAborted, SchemaMismatch

if TYPE_CHECKING:
    from tests.sinks.mysql.conftest import Place


@pytest.fixture
def keyed(place: Place) -> Place:
    place.create("id INT, day DATE DEFAULT '2026-01-01', value TEXT, PRIMARY KEY (id)")
    return place


def records(ids: list[int], values: list[str]) -> dict[str, pa.Array]:
    return {"id": pa.array(ids, pa.int32()), "value": pa.array(values)}


def rows(place: Place) -> list[tuple[object, ...]]:
    return place.ask("SELECT id, value FROM {} ORDER BY id")


def test_a_record_replaces_the_row_of_its_key_when_it_is_committed_and_not_before(keyed: Place) -> None:
    keyed.ask("INSERT INTO {} VALUES (1, '2026-02-02', 'old'), (2, '2026-02-02', 'kept')")
    committable = keyed.pre_commit(records([1, 3], ["new", "added"]), upsert_by="id")
    assert rows(keyed) == [(1, "old"), (2, "kept")]
    keyed.sink().commit(committable)
    assert rows(keyed) == [(1, "new"), (2, "kept"), (3, "added")]
    # A column that the records don't have keeps its value.
    assert keyed.ask("SELECT CAST(day AS CHAR) FROM {} ORDER BY id") == [
        ("2026-02-02",),
        ("2026-02-02",),
        ("2026-01-01",),
    ]


def test_records_that_are_keys_alone_are_added_once(place: Place) -> None:
    place.create("value VARCHAR(9) PRIMARY KEY")
    place.ask("INSERT INTO {} VALUES ('a')")
    place.sink().commit(place.pre_commit(["a", "b", "b"], upsert_by="value"))
    assert place.values() == ["a", "b"]


def test_of_records_with_one_key_the_last_that_its_task_wrote_wins(keyed: Place) -> None:
    sink = keyed.sink(upsert_by="id")
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        for values in (["a", "b", "c"], ["d"]):
            participant.write("orders", pa.record_batch(records([1, 2, 1][: len(values)], values)))
        [committable] = participant.pre_commit().values()
    sink.commit(committable)
    assert rows(keyed) == [(1, "d"), (2, "b")]


def test_a_second_task_that_writes_a_key_of_the_first_fails_and_reports_what_to_do(keyed: Place) -> None:
    first = keyed.pre_commit(records([1], ["a"]), upsert_by="id")
    with pytest.raises(RoundAborted, match=r"1205, Lock wait timeout.*repartition"):
        keyed.pre_commit(records([1], ["b"]), partition=1, upsert_by="id", lock_timeout_s=1)
    keyed.sink().commit(first)
    assert rows(keyed) == [(1, "a")]


def test_a_lost_attempt_keeps_the_next_one_from_its_keys_until_it_is_swept(keyed: Place) -> None:
    lost = keyed.pre_commit(records([1], ["a"]), upsert_by="id")
    with pytest.raises(RoundAborted, match="a lost attempt, which is rolled back with the batch"):
        keyed.pre_commit(records([1], ["a"]), partition=1, upsert_by="id", lock_timeout_s=1)
    keyed.sink().abort(lost)
    keyed.sink().commit(keyed.pre_commit(records([1], ["a"]), Round(2, 0), upsert_by="id"))
    assert rows(keyed) == [(1, "a")]


def test_tasks_that_write_keys_between_each_other_do_not_wait(keyed: Place) -> None:
    """A gap lock of a prepared transaction would keep the next task from the keys between its own."""
    keyed.ask("INSERT INTO {} (id) VALUES (10), (20), (30)")
    wrote = [
        keyed.pre_commit(records(ids, ["x"] * len(ids)), partition=n, upsert_by="id", lock_timeout_s=10)
        for n, ids in enumerate(([5, 15, 20, 35], [14, 16, 19, 21, 30], [4, 6, 10, 17, 34, 36]))
    ]
    for each in wrote:
        keyed.sink().commit(each)
    assert len(rows(keyed)) == 15


@pytest.mark.parametrize("index", ["(value(5))", "(id, value(5))", "(id, value(5)), ADD UNIQUE (day)"])
def test_keys_without_a_unique_index_on_just_them_are_refused_before_anything_is_written(
    index: str, place: Place
) -> None:
    place.create("id INT, value TEXT, day DATE")
    place.ask(f"ALTER TABLE {{}} ADD UNIQUE {index}")
    schema = pa.schema([("id", pa.int32()), ("value", pa.string())])
    with pytest.raises(ConfigurationError, match="no primary key or unique index on exactly the columns"):
        place.sink(upsert_by="id").validate(schema)


def test_a_column_of_the_key_that_the_records_lack_is_named(keyed: Place) -> None:
    keyed.create("id INT DEFAULT 1 PRIMARY KEY, value TEXT")
    with pytest.raises(SchemaMismatch, match="'id', which 'upsert_by' names"):
        keyed.sink(upsert_by="id").validate(pa.schema([("value", pa.string())]))


def test_another_unique_key_is_refused_as_a_record_could_replace_a_row_by_it(place: Place) -> None:
    place.create("id INT PRIMARY KEY, code INT, UNIQUE KEY by_code (code)")
    schema = pa.schema([("id", pa.int32()), ("code", pa.int32())])
    with pytest.raises(ConfigurationError, match="has another unique key, by_code"):
        place.sink(upsert_by="id").validate(schema)
    place.ask("ALTER TABLE {} DROP KEY by_code, ADD KEY (code)")
    place.sink(upsert_by="id").validate(schema)


def test_a_number_that_the_server_counts_up_replaces_no_row(place: Place) -> None:
    place.create("id INT AUTO_INCREMENT PRIMARY KEY, code INT, value TEXT, UNIQUE (code)")
    sink = place.sink(upsert_by="code")
    sink.validate(pa.schema([("code", pa.int32()), ("value", pa.string())]))
    with pytest.raises(ConfigurationError, match="has another unique key, PRIMARY"):
        sink.validate(pa.schema([("id", pa.int32()), ("code", pa.int32())]))
    for batch_id, value in enumerate("ab"):
        batch = {"code": pa.array([7], pa.int32()), "value": [value]}
        place.sink().commit(place.pre_commit(batch, Round(1, batch_id), upsert_by="code"))
    assert place.ask("SELECT id, code, value FROM {}") == [(1, 7, "b")]


def test_a_record_without_a_key_is_refused(place: Place) -> None:
    """No two nulls are equal in a unique index, so it would be added with each batch."""
    place.create("id int UNIQUE, value text")
    ids = pa.array([1, None], pa.int32())
    _, positions = place.vote_without_bad({"id": ids, "value": ["a", "b"]}, upsert_by="id")
    assert positions == [1]


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "takes different texts for equal.* such as utf8mb4_bin"),
        ("DOUBLE", "floating-point number: make it a DECIMAL"),
    ],
)
def test_a_key_that_takes_different_values_for_equal_is_refused(column: str, reason: str, place: Place) -> None:
    place.create(f"id {column} PRIMARY KEY")
    type = pa.float64() if column == "DOUBLE" else pa.string()
    with pytest.raises(ConfigurationError, match=reason):
        place.sink(upsert_by="id").validate(pa.schema([("id", type)]))


def test_large_and_exact_numbers_and_keys_of_several_columns_delete_their_own_rows_alone(place: Place) -> None:
    """Beside a text, the server would compare them as floating-point numbers, which takes neighbors for equal."""
    place.create(
        "id BIGINT, price DECIMAL(38,18), day DATETIME(6), code VARBINARY(9), is_new BOOLEAN,"
        " PRIMARY KEY (id, price, day, code, is_new)"
    )
    first = {
        "id": pa.array([9007199254740993, 9007199254740992], pa.int64()),
        "price": pa.array([Decimal("12345678901234567890.123456789012345678")] * 2, pa.decimal128(38, 18)),
        "day": pa.array([1_767_225_600_000_001] * 2, pa.timestamp("us")),
        "code": pa.array([b"'a\\"] * 2, pa.binary()),
        "is_new": pa.array([True, True]),
    }
    by = "id,price,day,code,is_new"
    place.sink().commit(place.pre_commit(first, upsert_by=by))
    keys = pa.record_batch(first).slice(0, 1)
    with Participant({"orders": place.sink(upsert_by=by)}, Round(1, 1), partition=0) as participant:
        participant.delete("orders", keys)
        [committable] = participant.pre_commit().values()
    place.sink().commit(committable)
    assert place.ask("SELECT id FROM {}") == [(9007199254740992,)]


def test_a_delete_asks_nothing_of_the_other_columns(place: Place) -> None:
    place.create("id INT PRIMARY KEY, value TEXT NOT NULL")
    place.ask("INSERT INTO {} VALUES (1, 'a'), (2, 'b')")
    with Participant({"orders": place.sink(upsert_by="id")}, Round(1, 0), partition=0) as participant:
        participant.delete(
            "orders", pa.record_batch({"id": pa.array([1], pa.int32()), "value": pa.array([None], pa.string())})
        )
        [committable] = participant.pre_commit().values()
    place.sink().commit(committable)
    assert rows(place) == [(2, "b")]
