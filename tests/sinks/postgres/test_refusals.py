"""What a table, its triggers, rules and policies do to a record: it is refused by name, or it is there as it was given.
Nothing that fails again and again is called temporary (invariants 13 and 15)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from twopc import Participant, Round
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError, RecordRefused, Refused, SchemaMismatch
from twopc_postgres import outcomes
from twopc_postgres.sessions import session

if TYPE_CHECKING:
    from tests.sinks.postgres.conftest import Place

VALUE = pa.schema({"value": pa.string()})


def add_trigger(place: Place, body: str, when: str = "BEFORE INSERT") -> None:
    place.ask(
        f"CREATE FUNCTION {place.schema}.f() RETURNS trigger LANGUAGE plpgsql AS $f$BEGIN {body} RETURN NEW; END$f$;"
        f"CREATE TRIGGER watch {when} ON {{}} FOR EACH ROW EXECUTE FUNCTION {place.schema}.f()".replace("%", "%%")
    )


@pytest.mark.parametrize(
    ("column", "type", "changed"),
    [
        ("timestamp", pa.timestamp("us"), "timestamp(0)"),
        ("numeric(12,3)", pa.decimal128(12, 3), "numeric(12,1)"),
        ("bigint", pa.int64(), "int"),
        ("text", pa.string(), "name"),
    ],
)
@pytest.mark.parametrize("upsert_by", ["", "id"])
def test_a_type_that_was_changed_since_it_was_validated_is_refused_by_the_task(
    upsert_by: str, column: str, type: pa.DataType, changed: str, place: Place
) -> None:
    place.create(f"id int PRIMARY KEY, value {column}")
    batch = pa.record_batch({"id": pa.array([1], pa.int32()), "value": pa.array([None], type)})
    sink = place.sink(upsert_by=upsert_by)
    sink.validate(batch.schema)
    place.ask(f"ALTER TABLE {{}} ALTER value TYPE {changed}")
    with pytest.raises(SchemaMismatch, match="column 'value' has the Arrow type"):
        place.vote(batch, sink=sink)
    assert place.prepared() == []


def test_a_type_stays_as_it_is_until_its_records_are_committed(place: Place) -> None:
    vote = place.pre_commit(["a"])
    with pytest.raises(psycopg.errors.LockNotAvailable):
        place.ask("SET lock_timeout = 50; ALTER TABLE {} ALTER value TYPE name")
    place.sink().commit(vote)
    assert place.values() == ["a"]


def test_a_type_stays_as_it_is_although_a_bad_record_was_left_out(place: Place) -> None:
    """What a transaction has locked after a savepoint is given back with it."""
    sink = place.sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    assert [each.record for each in sink.write_valid(transaction, pa.record_batch({"value": ["a\0"]}))] == [0]
    with pytest.raises(psycopg.errors.LockNotAvailable):
        place.ask("SET lock_timeout = 50; ALTER TABLE {} ALTER value TYPE name")
    sink.discard(transaction)


@pytest.mark.parametrize("upsert_by", ["", "value"])
def test_a_record_that_a_trigger_leaves_out_is_refused_and_not_lost(upsert_by: str, place: Place) -> None:
    place.create("value text PRIMARY KEY")
    add_trigger(place, "IF NEW.value = 'b' THEN RETURN NULL; END IF;")
    with pytest.raises(RecordRefused, match="a trigger of the table leaves out 1 of 3 records"):
        place.pre_commit(["a", "b", "c"], upsert_by=upsert_by)
    vote, refused = place.vote_without_bad({"value": ["a", "b", "c"]}, upsert_by=upsert_by)
    place.sink().commit(vote)
    assert (refused, place.values()) == ([1], ["a", "c"])


@pytest.mark.parametrize("when", ["BEFORE INSERT", "AFTER INSERT"])
def test_a_record_for_which_a_trigger_raises_is_refused_and_can_be_left_out(when: str, place: Place) -> None:
    add_trigger(place, "IF NEW.value = 'b' THEN RAISE EXCEPTION 'account % is closed', NEW.value; END IF;", when)
    vote, refused = place.vote_without_bad({"value": ["a", "b", "c"]})
    place.sink().commit(vote)
    assert (refused, place.values()) == ([1], ["a", "c"])


NOT_PREPARED = ["PERFORM pg_notify('c', NEW.value);", "CREATE TEMP TABLE x (i int) ON COMMIT DROP;"]


@pytest.mark.parametrize("body", NOT_PREPARED)
def test_a_trigger_that_does_what_can_not_be_prepared_is_refused_by_doctor_and_by_the_task(
    body: str, place: Place
) -> None:
    add_trigger(place, body)
    with pytest.raises(ConfigurationError, match="use the backend 'sql'"):
        place.pre_commit(["a"])
    sink = place.unbound()
    sink.bind("orders", "doctor")
    failed = [each for each in sink.check() if each.result is CheckStatus.FAILED]
    assert [("row triggers watch" in each.check, "cannot PREPARE" in each.detail) for each in failed] == [(True, True)]
    assert place.values() == []


def test_a_row_trigger_that_no_made_up_row_reaches_is_named_by_doctor(place: Place) -> None:
    place.create("value text CHECK (value = 'a')")
    add_trigger(place, "")
    sink = place.unbound()
    sink.bind("orders", "doctor")
    [warned] = [each for each in sink.check() if each.result is CheckStatus.WARNING]
    assert "row triggers watch" in warned.check
    assert "let no trigger use NOTIFY" in warned.advice


@pytest.mark.parametrize(("upsert_by", "event"), [("", "INSERT"), ("value", "INSERT"), ("value", "UPDATE")])
def test_a_rule_is_refused_before_anything_is_written(upsert_by: str, event: str, place: Place) -> None:
    place.create("value text PRIMARY KEY")
    place.ask(f"CREATE RULE away AS ON {event} TO {{}} DO INSTEAD NOTHING")
    with pytest.raises(ConfigurationError, match=r"has the rules away.* Replace them by triggers"):
        place.sink(upsert_by=upsert_by).validate(VALUE)


@pytest.fixture
def as_role(place: Place) -> Iterator[str]:
    """The connection string of a role for which the table has a policy."""
    role, password = place.schema, uuid.uuid4().hex
    place.create("value text PRIMARY KEY")
    place.sink().close()  # creates the marker table
    place.ask(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'; GRANT ALL ON SCHEMA {role} TO {role}")
    place.ask(f"GRANT ALL ON ALL TABLES IN SCHEMA {role} TO {role}; ALTER TABLE {{}} ENABLE ROW LEVEL SECURITY")
    place.ask("CREATE POLICY p ON {} USING (true) WITH CHECK (value <> 'b')")
    yield psycopg.conninfo.make_conninfo(place.server.conninfo, user=role, password=password)
    place.ask(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_policy_is_refused_where_copy_does_not_work_and_the_other_way_works(as_role: str, place: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"row level security.* Use 'upsert_by'"):
        place.sink(conninfo=as_role).validate(VALUE)
    sink = place.sink(conninfo=as_role, upsert_by="value")
    sink.validate(VALUE)
    with pytest.raises(ConfigurationError, match=r"row level security, which hides rows from a DELETE"):
        sink.validate_deletes()
    with pytest.raises(RecordRefused, match=r"breaks the table's rules \(row level security\)"):
        place.vote(["b"], sink=sink)
    vote, refused = place.vote_without_bad({"value": ["a", "b", "c"]}, conninfo=as_role, upsert_by="value")
    sink.commit(vote)
    sink.close()
    assert (refused, place.values()) == ([1], ["a", "c"])


def test_a_null_in_the_key_of_an_upsert_is_refused_with_its_place(place: Place) -> None:
    place.create("value text, day int, UNIQUE (value, day)")
    days = pa.array([1, None, 2], pa.int32())
    with pytest.raises(RecordRefused, match="one of 'upsert_by', and the record has no value") as refused:
        place.pre_commit({"value": ["a", "b", "c"], "day": days}, upsert_by="value,day")
    assert (refused.value.record, refused.value.column) == (1, "day")
    vote, left_out = place.vote_without_bad({"value": ["a", "b", "c"], "day": days}, upsert_by="value,day")
    place.sink().commit(vote)
    assert (left_out, place.values()) == ([1], ["a", "c"])


def test_a_key_that_is_equal_and_not_the_same_is_written_as_it_was_given(place: Place) -> None:
    place.create("value float8 PRIMARY KEY")
    for batch_id, value in enumerate([0.0, -0.0]):
        records = {"value": pa.array([value])}
        place.sink().commit(place.pre_commit(records, Round(1, batch_id), upsert_by="value"))
    assert place.ask("SELECT value::text FROM {}") == [("-0",)]


def test_a_rule_of_the_table_that_an_upsert_finds_late_still_names_the_record(place: Place) -> None:
    place.create("id int PRIMARY KEY, value text CHECK (value <> 'b')")
    records = {"id": pa.array([1, 2, 1, 3], pa.int32()), "value": ["a", "b", "c", "d"]}
    vote, refused = place.vote_without_bad(records, upsert_by="id")
    place.sink().commit(vote)
    assert (refused, place.values()) == ([1], ["c", "d"])


@pytest.mark.parametrize(
    ("column", "text"), [("value text", "x"), ("value jsonb", "[" * 200_000 + "]" * 200_000)], ids=["index", "depth"]
)
def test_a_value_that_is_too_large_or_too_deep_is_refused_with_its_place(column: str, text: str, place: Place) -> None:
    place.create(column)
    if text == "x":
        place.ask("CREATE INDEX ON {} (value)")
        text = "".join(f"{number:x}" for number in range(4000))
    values = ["1", text, "3"]
    with pytest.raises(RecordRefused, match=r"breaks the table's rules \((ProgramLimitExceeded|StatementTooComplex)"):
        place.pre_commit(values)
    vote, refused = place.vote_without_bad({"value": values})
    place.sink().commit(vote)
    assert refused == [1]


def test_a_name_with_a_percent_sign_is_a_name(place: Place) -> None:
    odd = f"{place.schema}%r"
    place.ask(f'CREATE SCHEMA "{odd}"; CREATE TABLE "{odd}".orders ("va%s" text PRIMARY KEY)'.replace("%", "%%"))
    for batch_id, upsert_by in enumerate(["", "va%s"]):
        sink = place.sink(table=f"{odd}.orders", upsert_by=upsert_by)
        vote = place.vote({"va%s": [f"{batch_id}"]}, Round(1, batch_id), sink=sink)
        for _ in range(2):
            sink.commit(vote)
        sink.complete(batch_id, [vote])
    assert place.sink(table=f"{odd}.orders").recover() == []
    assert place.ask(f'TABLE "{odd}".orders'.replace("%", "%%")) == [("0",), ("1",)]
    place.ask(f'DROP SCHEMA "{odd}" CASCADE'.replace("%", "%%"))


def test_a_column_with_a_name_that_upserts_need_is_refused_at_the_start(place: Place) -> None:
    place.create("value text PRIMARY KEY, twopc_ordinal int")
    place.sink().validate(VALUE)
    with pytest.raises(SchemaMismatch, match="'twopc_ordinal', whose name 'upsert_by' reserves"):
        place.sink(upsert_by="value").validate(VALUE)


# Settings of the role, the database or the server. ----------------------------------------------------------------

PREFERRED = {
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "client_encoding": "latin1",
    "idle_in_transaction_session_timeout": "300",
    "statement_timeout": "300",
    "intervalstyle": "iso_8601",
}


def test_settings_that_others_prefer_change_no_value_and_end_no_task(place: Place) -> None:
    place.create("value bytea, words text[], lasts interval, name text")
    database = f"odd_{place.schema}"
    place.ask(f"CREATE DATABASE {database}")
    for name, setting in PREFERRED.items():
        place.ask(f"ALTER DATABASE {database} SET {name} = '{setting}'")
    there = psycopg.conninfo.make_conninfo(place.server.conninfo, dbname=database)
    try:
        with psycopg.connect(there, autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (value bytea, words text[], lasts interval, name text)")
            sink = place.sink(conninfo=there, table="orders")
            batch = pa.record_batch(
                {"value": [b"\0\xff\\"], "words": [["a", None]], "lasts": ["1 day 02:00:00"], "name": ["世界 🐎"]}
            )
            with Participant({"orders": sink}, Round(1, 0), partition=0) as task:
                task.write("orders", batch)
                connection.execute("SET statement_timeout = 0; SELECT pg_sleep(0.5)")  # the task computes
                task.write("orders", batch)
                vote = task.pre_commit()["orders"]
            sink.commit(vote)
            sink.close()
            connection.execute("SET client_encoding = 'UTF8'; SET intervalstyle = postgres")
            [found, _] = connection.execute("SELECT value, words, lasts::text, name FROM orders").fetchall()
        assert found == (b"\0\xff\\", ["a", None], "1 day 02:00:00", "世界 🐎")
    finally:
        place.unbound(conninfo=there).close()
        place.ask(f"DROP DATABASE {database} (FORCE)")


def test_nothing_that_a_task_or_the_driver_sets_stays_in_its_session(place: Place) -> None:
    """A pooler gives the session to another client after the transaction."""
    ask = "SELECT name, setting FROM pg_settings WHERE source IN ('session', 'database', 'user') ORDER BY 1"
    sink = place.sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    sink.write(transaction, pa.record_batch({"value": ["a"]}))
    transaction.connection.tpc_rollback()
    assert transaction.connection.execute(ask).fetchall() == []
    assert transaction.connection.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
    sink.discard(transaction)
    sink.commit(place.pre_commit(["b"]))
    with session(sink._options.conninfo) as connection:
        assert connection.execute(ask).fetchall() == []


@pytest.mark.variants
@pytest.mark.parametrize("sqlstate", ["XX000", "58030", "55006", "25001", "0Z000"])
def test_an_error_that_no_table_knows_stops_with_the_words_of_the_server(sqlstate: str, place: Place) -> None:
    add_trigger(place, f"RAISE EXCEPTION USING MESSAGE = 'odd words', ERRCODE = '{sqlstate}';")
    with pytest.raises(Refused, match=rf"odd words.*does not know this error \({sqlstate}\)"):
        place.pre_commit(["a"])


def test_no_sqlstate_is_in_two_tables() -> None:
    known = [*outcomes.CONFIGURATION, *outcomes.RECORD, *outcomes.TEMPORARY]
    assert len({*known}) == len(known)
