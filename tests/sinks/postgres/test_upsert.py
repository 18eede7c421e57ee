"""Records that replace rows: which one wins, and what two writers of one key do to each other."""

import uuid

import pyarrow as pa
import pytest

from tests.sinks.postgres.conftest import Place
from tests.sinks.prepared_contract import UpsertContract
from twopc import Participant, Round
from twopc.errors import ConfigurationError, RecordRefused
from twopc.keyed import UniqueIndex
from twopc_postgres.columns import OTHER, Column, check_upsert


class TestUpserts(UpsertContract):
    lock_timeout_s = 0.05


@pytest.fixture
def keyed(place: Place) -> Place:
    place.create("id int PRIMARY KEY, value text")
    return place


@pytest.mark.parametrize("index", ["(value)", "(id) WHERE id > 1", "(abs(id))"])
def test_an_index_by_which_no_record_can_replace_a_row_is_no_key(index: str, place: Place) -> None:
    place.create("id int, value text")
    place.ask(f"CREATE UNIQUE INDEX another ON {{}} {index}")
    schema = pa.schema([("id", pa.int32()), ("value", pa.string())])
    with pytest.raises(ConfigurationError, match="no primary key or unique index on exactly the columns"):
        place.sink(upsert_by="id").validate(schema)
    place.ask(f"DROP INDEX {place.schema}.another; CREATE UNIQUE INDEX ON {{}} (id) INCLUDE (value)")
    place.sink(upsert_by="id").validate(schema)


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
    keyed.sink()  # creates the marker table
    with keyed.user(makes_tables=True) as (own, grant):
        grant("SELECT, INSERT, UPDATE (value) ON {}")
        grant("ALL ON {markers}")
        for batch_id, value in enumerate("ab"):
            records = {"id": pa.array([1], pa.int32()), "value": [value]}
            keyed.sink().commit(keyed.pre_commit(records, Round(1, batch_id), upsert_by="id", conninfo=own))
    assert keyed.rows() == [(1, "b")]


SWAPPABLE = pa.schema([("id", pa.int32()), ("email", pa.string())])


@pytest.mark.variants
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
    with pytest.raises(ConfigurationError, match=r"column 'id' .*takes different texts for equal"):
        place.sink(upsert_by="id").validate(pa.schema([("id", pa.string())]))


SPELLED = {
    "uuid": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
    "macaddr": ("08:00:2b:01:02:03", "08002b010203"),
    "inet": ("10.0.0.1", "10.0.0.1/32"),
    "time": ("04:05:00", "04:05"),
    "char(3)": ("a", "a  "),
}


@pytest.mark.variants
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
    index = UniqueIndex("a_key", frozenset(["id"]))
    with pytest.raises(ConfigurationError, match=r"column 'id' .*takes different texts for equal"):
        check_upsert(["id"], ["id"], [column], [index], "the table")


def test_a_rule_that_may_keep_rows_is_refused_before_the_first_delete(keyed: Place) -> None:
    keyed.sink(upsert_by="id").validate_deletes()
    keyed.ask("CREATE RULE kept AS ON DELETE TO {} DO INSTEAD NOTHING")
    with pytest.raises(ConfigurationError, match="the rules kept ON DELETE"):
        keyed.sink(upsert_by="id").validate_deletes()


def test_a_trigger_that_keeps_a_row_fails_the_batch(keyed: Place) -> None:
    keyed.ask("INSERT INTO {} VALUES (1, 'a'), (2, 'b')")
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
    assert keyed.rows() == [(1, "a")]
