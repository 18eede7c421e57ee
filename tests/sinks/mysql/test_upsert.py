"""Records that replace rows: which one wins, and what two writers of one key do to each other."""

from decimal import Decimal

import pyarrow as pa
import pytest

from tests.sinks.mysql.conftest import Place
from tests.sinks.prepared_contract import UpsertContract, records
from twopc import Participant, Round
from twopc.errors import ConfigurationError


class TestUpserts(UpsertContract):
    pass


def test_tasks_that_write_keys_between_each_other_do_not_wait(place: Place) -> None:
    """A gap lock of a prepared transaction would keep the next task from the keys between its own."""
    place.create("id INT PRIMARY KEY, value TEXT")
    place.ask("INSERT INTO {} (id) VALUES (10), (20), (30)")
    wrote = [
        place.pre_commit(records(ids, ["x"] * len(ids)), partition=n, upsert_by="id", lock_timeout_s=10)
        for n, ids in enumerate(([5, 15, 20, 35], [14, 16, 19, 21, 30], [4, 6, 10, 17, 34, 36]))
    ]
    for each in wrote:
        place.sink().commit(each)
    assert len(place.rows()) == 15


@pytest.mark.parametrize("index", ["(value(5))", "(id, value(5)), ADD UNIQUE (day)"])
def test_keys_without_a_unique_index_on_just_them_are_refused_before_anything_is_written(
    index: str, place: Place
) -> None:
    place.create("id INT, value TEXT, day DATE")
    place.ask(f"ALTER TABLE {{}} ADD UNIQUE {index}")
    schema = pa.schema([("id", pa.int32()), ("value", pa.string())])
    with pytest.raises(ConfigurationError, match="no primary key or unique index on exactly the columns"):
        place.sink(upsert_by="id").validate(schema)


def test_a_number_that_the_server_counts_up_replaces_no_row(place: Place) -> None:
    place.create("id INT AUTO_INCREMENT PRIMARY KEY, code INT, value TEXT, UNIQUE (code)")
    sink = place.sink(upsert_by="code")
    sink.validate(pa.schema([("code", pa.int32()), ("value", pa.string())]))
    with pytest.raises(ConfigurationError, match=r"another unique index, PRIMARY.* do not select its column if"):
        sink.validate(pa.schema([("id", pa.int32()), ("code", pa.int32())]))
    for batch_id, value in enumerate("ab"):
        batch = {"code": pa.array([7], pa.int32()), "value": [value]}
        place.sink().commit(place.pre_commit(batch, Round(1, batch_id), upsert_by="code"))
    assert place.ask("SELECT id, code, value FROM {}") == [(1, 7, "b")]


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
        "id BIGINT, price DECIMAL(38,18), day DATETIME(6), code VARBINARY(9), is_new BOOLEAN, hundreds BIGINT,"
        " PRIMARY KEY (id, price, day, code, is_new, hundreds)"
    )
    first = {
        "id": pa.array([9007199254740993, 9007199254740992], pa.int64()),
        "price": pa.array([Decimal("12345678901234567890.123456789012345678")] * 2, pa.decimal128(38, 18)),
        "day": pa.array([1_767_225_600_000_001] * 2, pa.timestamp("us")),
        "code": pa.array([b"'a\\"] * 2, pa.binary()),
        "is_new": pa.array([True, True]),
        "hundreds": pa.array([Decimal("7E+2")] * 2, pa.decimal128(5, -2)),
    }
    by = ",".join(first)
    place.sink().commit(place.pre_commit(first, upsert_by=by))
    keys = pa.record_batch(first).slice(0, 1)
    with Participant({"orders": place.sink(upsert_by=by)}, Round(1, 1), partition=0) as participant:
        participant.delete("orders", keys)
        [committable] = participant.pre_commit().values()
    place.sink().commit(committable)
    assert place.ask("SELECT id FROM {}") == [(9007199254740992,)]
