"""Records that replace rows: which one wins, and what two writers of one key do to each other."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from twopc import Participant, Round
from twopc.errors import ConfigurationError, RecordRefused, RoundAborted, SchemaMismatch
from twopc_postgres.columns import OTHER, Column, UniqueIndex, check_upsert

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
    place.ask(f"CREATE UNIQUE INDEX another ON {{}} {index}")
    schema = pa.schema([("id", pa.int32()), ("value", pa.string())])
    with pytest.raises(ConfigurationError, match="no primary key or unique index on exactly the columns"):
        place.sink(upsert_by="id").validate(schema)
    place.ask(f"DROP INDEX {place.schema}.another; CREATE UNIQUE INDEX ON {{}} (id) INCLUDE (value)")
    place.sink(upsert_by="id").validate(schema)
    with pytest.raises(SchemaMismatch, match="'id', which 'upsert_by' names"):
        place.sink(upsert_by="id").validate(pa.schema([("value", pa.string())]))


@pytest.mark.variants
@pytest.mark.parametrize("key", ["int", "text", "numeric(9,0)", "uuid", "timestamptz"])
def test_a_row_that_refers_to_a_replaced_one_need_not_wait_for_the_batch(key: str, place: Place) -> None:
    values = {"text": pa.array(["a"]), "uuid": pa.array([str(uuid.UUID(int=1))])}
    moment = pa.array([0], pa.timestamp("us", "UTC"))
    id_ = values.get(key, moment if key == "timestamptz" else pa.array([1], pa.int32()))
    place.create(f"id {key} PRIMARY KEY, value text")
    place.ask(f"CREATE TABLE {{}}_items (id {key} REFERENCES {{}})")
    records = {"id": id_, "value": ["a"]}
    place.sink().commit(place.pre_commit(records, upsert_by="id"))
    vote = place.pre_commit(records, Round(1, 1), upsert_by="id")
    place.ask("SET lock_timeout = 50; INSERT INTO {}_items SELECT id FROM {}")
    place.sink().commit(vote)


def test_a_batch_whose_bad_records_are_left_out_reads_no_other_batch_again(keyed: Place) -> None:
    sink = keyed.sink(upsert_by="id")
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    for first in range(0, 2_000, 200):
        batch = pa.record_batch({"id": pa.array(range(first, first + 200), pa.int32())})
        assert list(sink.write_valid(transaction, batch)) == []
    ask = "SELECT relname, seq_tup_read FROM pg_stat_xact_user_tables WHERE schemaname = %s AND seq_tup_read > 200"
    read = transaction.connection.execute(ask, (keyed.schema,)).fetchall()
    sink.discard(transaction)
    assert read == []


def test_an_upsert_finds_its_rows_by_the_index_of_the_key(keyed: Place) -> None:
    keyed.ask("INSERT INTO {} (id) SELECT generate_series(1, 20000)")
    sink = keyed.sink(upsert_by="id")
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    sink.write(transaction, pa.record_batch({"id": pa.array(range(100), pa.int32()), "value": ["a"] * 100}))
    assert transaction.upsert_table is not None
    sink._table.merge(transaction.connection, transaction.upsert_table, transaction.written())
    ask = "SELECT sum(seq_tup_read)::int FROM pg_stat_xact_user_tables WHERE relname = 'orders' AND schemaname = %s"
    read = transaction.connection.execute(ask, (keyed.schema,)).fetchall()
    sink.discard(transaction)
    assert read == [(0,)]


def test_an_upsert_needs_no_right_to_change_the_key(keyed: Place) -> None:
    role, password = keyed.schema, uuid.uuid4().hex
    keyed.sink()  # creates the marker table
    keyed.ask(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'; GRANT ALL ON SCHEMA {keyed.schema} TO {role}")
    keyed.ask(f"GRANT SELECT, INSERT, UPDATE (value) ON {{}} TO {role}; GRANT ALL ON {{markers}} TO {role}")
    own = psycopg.conninfo.make_conninfo(keyed.server.conninfo, user=role, password=password)
    try:
        for batch_id, value in enumerate("ab"):
            records = {"id": pa.array([1], pa.int32()), "value": [value]}
            keyed.sink().commit(keyed.pre_commit(records, Round(1, batch_id), upsert_by="id", conninfo=own))
        assert rows(keyed) == [(1, "b")]
    finally:
        keyed.sink(conninfo=own).close()
        keyed.ask(f"DROP OWNED BY {role}; DROP ROLE {role}")


SWAPPABLE = pa.schema([("id", pa.int32()), ("email", pa.string())])


@pytest.mark.parametrize(
    ("index", "is_taken"),
    [
        ("UNIQUE (email)", False),
        ("UNIQUE (email) DEFERRABLE INITIALLY DEFERRED", False),
        ("EXCLUDE (email WITH =)", False),
        ("UNIQUE (email, id)", True),
        ("UNIQUE (code)", True),
    ],
)
def test_another_unique_index_is_refused_at_the_start_if_two_rows_may_exchange_its_values(
    index: str, is_taken: bool, place: Place
) -> None:
    place.create(f"id int PRIMARY KEY, email text, code serial, {index}")
    sink = place.sink(upsert_by="id")
    if is_taken:
        sink.validate(SWAPPABLE)
        return
    with pytest.raises(ConfigurationError, match=r"another unique index, orders_.*Drop it or make it .* not unique"):
        sink.validate(SWAPPABLE)
    sink.validate(SWAPPABLE.remove(1))


@pytest.mark.parametrize("index", ["(lower(email))", "(code) WHERE email = 'a'"])
def test_another_unique_index_on_an_expression_or_a_condition_is_refused(index: str, place: Place) -> None:
    place.create("id int PRIMARY KEY, email text, code int")
    place.ask(f"CREATE UNIQUE INDEX of_email ON {{}} {index}")
    with pytest.raises(ConfigurationError, match="another unique index, of_email"):
        place.sink(upsert_by="id").validate(SWAPPABLE)


@pytest.mark.parametrize("column", ["interval", "jsonb"])
def test_a_key_that_takes_different_texts_for_equal_is_refused(column: str, place: Place) -> None:
    place.create(f"id {column} PRIMARY KEY")
    with pytest.raises(ConfigurationError, match=r"takes different texts for equal.*column id"):
        place.sink(upsert_by="id").validate(pa.schema([("id", pa.string())]))


SPELLED = {
    "uuid": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
    "macaddr": ("08:00:2b:01:02:03", "08002b010203"),
    "inet": ("10.0.0.1", "10.0.0.1/32"),
    "time": ("04:05:00", "04:05"),
    "char(3)": ("a", "a  "),
}


@pytest.mark.parametrize("column", SPELLED)
def test_a_key_that_postgres_spells_in_another_way_is_refused(column: str, place: Place) -> None:
    """It would be another key for Spark, and the same row."""
    place.create(f"id {column} PRIMARY KEY")
    kept, other = SPELLED[column]
    found = place.vote({"id": [kept]}, sink=place.sink(upsert_by="id"))
    place.sink().commit(found)
    for act in (Participant.write, Participant.delete):
        keys = pa.record_batch({"id": [kept, other]})
        failing = Participant({"orders": place.sink(upsert_by="id")}, Round(1, 1), partition=0)
        with pytest.raises(RecordRefused, match="the column is one of 'upsert_by', and its type") as refused, failing:
            act(failing, "orders", keys)
        assert refused.value.record == 1


def test_a_key_of_a_type_of_an_extension_is_refused_as_its_equality_is_not_known() -> None:
    column = Column("id", OTHER, None, False, "citext", "citext", False, False, True)
    index = UniqueIndex("a_key", frozenset(["id"]), can_replace=True, is_exact=True)
    with pytest.raises(ConfigurationError, match=r"takes different texts for equal.*column id"):
        check_upsert(["id"], ["id"], [column], [index], "the table")


def test_a_key_whose_collation_takes_different_texts_for_equal_is_refused() -> None:
    """Not by a server: the one of the tests is built without ICU, which such collations need."""
    index = UniqueIndex("a_key", frozenset(["id"]), can_replace=True, is_exact=False)
    with pytest.raises(ConfigurationError, match=r"takes different texts for equal.*column id"):
        check_upsert(["id"], ["id"], [], [index], "the table")


def test_a_delete_asks_nothing_of_the_other_columns(place: Place) -> None:
    place.create("id int PRIMARY KEY, value text NOT NULL CHECK (value <> '')")
    place.ask("INSERT INTO {} VALUES (1, 'a'), (2, 'b')")
    with Participant({"orders": place.sink(upsert_by="id")}, Round(1, 0), partition=0) as participant:
        participant.delete("orders", pa.record_batch({"id": pa.array([1], pa.int32()), "value": [""]}))
        [committable] = participant.pre_commit().values()
    place.sink().commit(committable)
    assert rows(place) == [(2, "b")]


def test_a_rule_that_may_keep_rows_is_refused_before_the_first_delete(keyed: Place) -> None:
    keyed.sink(upsert_by="id").validate_deletes()
    keyed.ask("CREATE RULE kept AS ON DELETE TO {} DO INSTEAD NOTHING")
    with pytest.raises(ConfigurationError, match="the rules kept ON DELETE"):
        keyed.sink(upsert_by="id").validate_deletes()


def test_a_trigger_that_keeps_a_row_fails_the_batch(keyed: Place) -> None:
    keyed.ask("INSERT INTO {} VALUES (1, DEFAULT, 'a'), (2, DEFAULT, 'b')")
    keyed.ask(
        f"CREATE FUNCTION {keyed.schema}.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER keep BEFORE DELETE ON {} FOR EACH ROW WHEN (OLD.id = 1)"
        f" EXECUTE FUNCTION {keyed.schema}.keep()"
    )
    deletes = pa.record_batch({"id": pa.array([1, 2], pa.int32())})
    failing = Participant({"orders": keyed.sink(upsert_by="id")}, Round(1, 0), partition=0)
    failing.delete("orders", deletes)
    with pytest.raises(RecordRefused, match="keeps 1 rows that are to be deleted"), failing:
        failing.pre_commit()
    sink = keyed.sink(upsert_by="id")
    with Participant({"orders": sink}, Round(1, 1), partition=0, max_bad_records=1) as participant:
        assert [each.record for each in participant.delete("orders", deletes)] == [0]
        [committable] = participant.pre_commit().values()
    sink.commit(committable)
    assert rows(keyed) == [(1, "a")]
