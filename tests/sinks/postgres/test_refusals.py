"""What a table, its triggers, rules and policies do to a record: it is refused by name, or it is there as it was given.
Nothing that fails again and again is called temporary (invariants 13 and 15)."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.sinks.postgres.conftest import Place
from tests.sinks.prepared_contract import checked, warned
from twopc import Participant, Round
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError, RecordRefused, Refused, RoundAborted, SchemaMismatch
from twopc_postgres import outcomes
from twopc_postgres.rows import lines
from twopc_postgres.sessions import session

VALUE = pa.schema({"value": pa.string()})


def add_trigger(place: Place, body: str, when: str = "BEFORE INSERT") -> None:
    place.ask(
        f"CREATE FUNCTION {place.schema}.f() RETURNS trigger LANGUAGE plpgsql AS $f$BEGIN {body} RETURN NEW; END$f$;"
        f"CREATE TRIGGER watch {when} ON {{}} FOR EACH ROW EXECUTE FUNCTION {place.schema}.f()".replace("%", "%%")
    )


def test_a_type_stays_as_it_is_although_a_bad_record_was_left_out(place: Place) -> None:
    """What a transaction has locked after a savepoint is given back with it."""
    sink = place.sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    assert [each.record for each in sink.write_valid(transaction, pa.record_batch({"value": ["a\0"]}))] == [0]
    with pytest.raises(psycopg.errors.LockNotAvailable):
        place.ask("SET lock_timeout = 50; ALTER TABLE {} ALTER value TYPE name")
    sink.discard(transaction)


def test_psycopg_logs_nothing_of_records_that_are_refused(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """It would, if it refused one itself after the server has refused another."""
    place.create("value text, small int8 CHECK (small <> 10)")
    values = [f"{number}" * 100 for number in range(3000)]
    values[2000] = "a\0"
    _, refused = place.vote_without_bad({"value": values, "small": [*range(3000)]})
    assert refused == [10, 2000]
    assert [each.getMessage() for each in caplog.records if each.name.startswith("psycopg")] == []


def test_a_batch_becomes_the_same_text_in_parts_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {
        "text": ["a\\\t\n\r", None, "", "\\N", "\\."],
        "list": pa.array([['"', None, "\\"], None, [], ["x,}"], ["NULL"]]),
        "bytes": [b"\0\xff", None, b"", b"\\", b"x"],
        "moment": pa.array([0, None, 1, 2, 3], pa.timestamp("ms", "Asia/Tokyo")),
        "half": pa.array([0.1, None, -0.0, math.nan, -math.inf], pa.float32()),
    }
    whole = rb"""a\\\t\n\r	{"\\"",NULL,"\\\\"}	\\x00ff	1970-01-01 00:00:00.000+00	0.10000000149011612
\N	\N	\N	\N	\N
	{}	\\x	1970-01-01 00:00:00.001+00	-0
\\N	{"x,}"}	\\x5c	1970-01-01 00:00:00.002+00	nan
\\.	{"NULL"}	\\x78	1970-01-01 00:00:00.003+00	-inf
"""
    batch = pa.record_batch(columns)
    assert [*lines(batch)] == [whole]
    monkeypatch.setattr("twopc_postgres.rows.BYTES_AT_ONCE", 30)
    assert [*lines(batch)] == whole.splitlines(keepends=True)


@pytest.mark.parametrize("flags", [pa.array([True] * 800), pa.array([[True] * 100] * 8)])
def test_a_part_of_a_batch_is_bounded_also_where_arrow_needs_a_bit_for_a_value(
    flags: pa.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc_postgres.rows.BYTES_AT_ONCE", 2000)
    assert max(map(len, lines(pa.record_batch({"flags": flags})))) < 2000


@pytest.mark.parametrize("upsert_by", ["", "value"])
def test_a_record_that_a_trigger_leaves_out_is_refused_and_not_lost(upsert_by: str, place: Place) -> None:
    place.create("value text PRIMARY KEY")
    add_trigger(place, "IF NEW.value = 'b' THEN RETURN NULL; END IF;")
    with pytest.raises(RecordRefused, match=r"a trigger of the table \(watch\) leaves out 1 of 3 records"):
        place.pre_commit(["a", "b", "c"], upsert_by=upsert_by)
    vote, refused = place.vote_without_bad({"value": ["a", "b", "c"]}, upsert_by=upsert_by)
    place.sink().commit(vote)
    assert (refused, place.values()) == ([1], ["a", "c"])


def test_a_trigger_that_writes_records_to_another_table_is_named_with_what_works(place: Place) -> None:
    place.ask("CREATE TABLE {}_old (LIKE {})")
    add_trigger(place, f"INSERT INTO {place.table}_old VALUES (NEW.*); RETURN NULL;")  # noqa: S608
    with pytest.raises(RecordRefused, match=r"\(watch\) leaves out 1 of 1 .*partition the table with PARTITION BY"):
        place.pre_commit(["a"])
    [warning] = warned(checked(place))
    assert "a trigger of the table (watch) leaves out" in warning.detail


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
    [warning] = warned(checked(place))
    assert "row triggers watch" in warning.check
    assert "let no trigger use NOTIFY" in warning.advice


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


def test_a_key_that_is_equal_and_not_the_same_is_written_as_it_was_given(place: Place) -> None:
    place.create("value numeric PRIMARY KEY, n int")
    place.ask("INSERT INTO {} VALUES (1.0, 0)")
    records = {"value": pa.array([Decimal("1.00")], pa.decimal128(3, 2)), "n": pa.array([1], pa.int32())}
    place.sink().commit(place.pre_commit(records, upsert_by="value"))
    assert place.ask("SELECT format('%%s', value), n FROM {}") == [("1.00", 1)]


@pytest.mark.parametrize("column", ["float8", "float4"])
def test_a_floating_point_number_is_no_key(column: str, place: Place) -> None:
    """Its two zeros would be one row."""
    place.create(f"value {column} PRIMARY KEY")
    with pytest.raises(ConfigurationError, match=r"takes 0\.0 and -0\.0 for one key: make it a numeric or a text"):
        place.sink(upsert_by="value").validate(pa.schema({"value": pa.float32()}))


@pytest.mark.parametrize(
    "folds", ["ALTER TABLE {} ALTER value TYPE text COLLATE", "CREATE UNIQUE INDEX ON {} (value COLLATE"]
)
def test_a_key_that_a_collation_folds_is_written_too(folds: str, place: Place) -> None:
    """Whether PostgreSQL itself folds depends on how it was built: the catalog says so in any case."""
    place.ask(f'CREATE COLLATION {place.schema}.folding FROM "C"')
    place.ask(
        "UPDATE pg_collation SET collisdeterministic = false WHERE collnamespace = %s::regnamespace", place.schema
    )
    with session(place.server.conninfo) as connection:
        table = place.sink(upsert_by="value")._table
        assert [column.needs_its_key for column in table.columns(connection)] == [False]
        place.ask(f"{folds} {place.schema}.folding{')' * folds.count('(')}")
        assert [column.needs_its_key for column in table.columns(connection)] == [True]


def test_a_rule_of_the_table_that_an_upsert_finds_late_still_names_the_record(place: Place) -> None:
    place.create("id int PRIMARY KEY, value text CHECK (value <> 'b')")
    records = {"id": pa.array([1, 2, 1, 3], pa.int32()), "value": ["a", "b", "c", "d"]}
    vote, refused = place.vote_without_bad(records, upsert_by="id")
    place.sink().commit(vote)
    assert (refused, place.values()) == ([1], ["c", "d"])


@pytest.mark.parametrize(
    ("column", "text"), [("value text", "x"), ("value json", "[" * 200_000 + "]" * 200_000)], ids=["index", "depth"]
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


def test_a_type_that_changed_after_the_begin_is_seen_whatever_isolation_a_role_prefers(place: Place) -> None:
    """A snapshot of the begin has the old type, and the write the new one, which rounds."""
    place.create("value numeric(12,3)")
    preferring = place.reach(options=r"-c default_transaction_isolation=repeatable\ read")
    sink, transaction = place.begun(conninfo=preferring)
    place.ask("ALTER TABLE {} ALTER value TYPE numeric(12,1)")
    with pytest.raises(SchemaMismatch, match="column 'value' has the Arrow type"):
        sink.write(transaction, pa.record_batch({"value": pa.array([Decimal("1.255")], pa.decimal128(12, 3))}))
    sink.discard(transaction)
    sink.close()


def test_nothing_that_a_task_or_the_driver_sets_stays_in_its_session(place: Place) -> None:
    """A pooler gives the session to another client after the transaction."""
    ask = (
        "SELECT name, setting FROM pg_settings WHERE source IN ('session', 'database', 'user')"
        " AND name <> 'transaction_isolation'"  # that of this transaction
    )
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
@pytest.mark.parametrize("sqlstate", ["58000", "58030", "XX000", "25P03"])
def test_a_failure_of_the_system_and_not_of_the_statement_may_be_run_again(sqlstate: str, place: Place) -> None:
    add_trigger(place, f"RAISE EXCEPTION USING MESSAGE = 'odd words', ERRCODE = '{sqlstate}';")
    with pytest.raises(RoundAborted, match=r"odd words.*can be run again"):
        place.pre_commit(["a"])


class FakeDiagnostic:
    def __init__(self, severity: str) -> None:
        self.severity_nonlocalized = severity


class Unknown(psycopg.Error):
    sqlstate = "PP000"
    diag: Any = FakeDiagnostic("FATAL")


def test_an_error_that_has_ended_the_session_is_temporary_whatever_code_a_pooler_gives_it() -> None:
    error = Unknown()
    assert outcomes.is_temporary(error)
    error.diag = FakeDiagnostic("ERROR")
    assert not outcomes.is_temporary(error)


OF_HOST = 'connection to server at "'
REFUSED = '", port 5432 failed: FATAL:  password authentication failed for user "etl"'


@pytest.mark.parametrize(
    ("words", "is_temporary"),
    [
        ('FATAL:  password authentication failed for user "etl"', False),
        ('FATAL:  LDAP authentication failed for user "etl"', True),
        ('FATAL:  PAM authentication failed for user "etl"', True),
        ('FATAL:  RADIUS authentication failed for user "etl"', True),
        ('FATAL:  unrecognized configuration parameter "odd"', False),
        ('connection is bad: definition of service "odd" not found', False),
        ('connection is bad: invalid sslmode value: "odd"', False),
        ('root certificate file "/odd" does not exist', False),
        ('FATAL:  pg_hba.conf rejects connection for host "10.0.0.1", user "etl", database "sales"', True),
        ('FATAL:  database "sales" is not currently accepting connections', True),
        ("FATAL:  no such database: sales", False),
        ("FATAL:  unsupported startup parameter: options", False),
        ('server certificate for "odd" does not match host name "db"', False),
        ("received invalid response to SSL negotiation: H", True),
        ("FATAL:  the database system is starting up", True),
        (f"{OF_HOST}a{REFUSED}\n{OF_HOST}b{REFUSED}", False),
        (f"{OF_HOST}a{REFUSED}\n{OF_HOST}b failed: timeout expired", True),
        ('FATAL:  too many connections for role "etl"', True),
        ('could not translate host name "db" to address: Temporary failure in name resolution', True),
        ("FATAL:  server login has been failing, cached error: connect failed (server_login_retry)", True),
    ],
)
def test_a_login_that_another_server_decides_is_asked_again(words: str, is_temporary: bool) -> None:
    """PostgreSQL has the same words for a wrong password and for an LDAP server that it can't reach."""
    assert outcomes.is_temporary(psycopg.OperationalError(words)) == is_temporary


def test_a_certificate_that_is_missing_is_no_matter_of_user_and_password_alone() -> None:
    refused = outcomes.request_failed(psycopg.OperationalError('root certificate file "/odd" does not exist'), "asked")
    assert "Correct 'conninfo': user, password, database, parameters and certificates" in str(refused)


@pytest.mark.variants
@pytest.mark.parametrize("sqlstate", ["XX001", "58P01", "55006", "25001", "0Z000"])
def test_an_error_that_no_table_knows_stops_with_the_words_of_the_server(sqlstate: str, place: Place) -> None:
    add_trigger(place, f"RAISE EXCEPTION USING MESSAGE = 'odd words', ERRCODE = '{sqlstate}';")
    with pytest.raises(Refused, match=rf"odd words.*does not know this error \({sqlstate}\)"):
        place.pre_commit(["a"])


def test_no_sqlstate_is_in_two_tables() -> None:
    known = [*outcomes.CONFIGURATION, *outcomes.RECORD, *outcomes.TEMPORARY]
    assert len({*known}) == len(known)


def test_a_sequence_without_numbers_is_no_fault_of_a_record(place: Place) -> None:
    """All records would go where bad ones go."""
    place.create("value text, n serial")
    place.ask("ALTER SEQUENCE {}_n_seq MAXVALUE 2")
    with pytest.raises(ConfigurationError, match=r"reached maximum value.*a larger maximum"):
        place.vote_without_bad({"value": ["a", "b", "c"]})


def test_what_fails_before_a_record_is_written_is_no_fault_of_a_record(place: Place) -> None:
    place.create(f"value text PRIMARY KEY, {', '.join(f'c{number} int' for number in range(1599))}")
    with pytest.raises(Refused, match=r"54011|1600 columns") as refused:
        place.begun(upsert_by="value")
    assert not isinstance(refused.value, RecordRefused)


def test_a_type_whose_errors_have_no_code_refuses_a_record_and_not_the_batch(place: Place) -> None:
    """As PostGIS does: the code is that of an internal error."""
    place.ask(
        "CREATE TYPE {}_odd; CREATE FUNCTION {}_in(cstring, oid, int) RETURNS {}_odd LANGUAGE internal STRICT AS"
        " 'range_in'; CREATE FUNCTION {}_out({}_odd) RETURNS cstring LANGUAGE internal STRICT AS 'textout';"
        " CREATE TYPE {}_odd (INPUT = {}_in, OUTPUT = {}_out, LIKE = text)"
    )
    place.create(f"value {place.table}_odd, n int")
    records = {"value": [None, "secret"], "n": pa.array([1, 2], pa.int32())}
    with pytest.raises(RecordRefused, match=r"column 'value': .*type, .*orders_odd, does not take it \(XX000\)"):
        place.vote(records)
    vote, left_out = place.vote_without_bad(records)
    place.sink().commit(vote)
    assert (left_out, place.ask("SELECT n FROM {}")) == ([1], [(1,)])
