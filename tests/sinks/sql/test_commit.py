"""What a commit finds, and what it does about it: committed, rolled back, or nobody knows (invariants 2, 3 and 5)."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests.sinks.sql.conftest import Place
from tests.support.lag import require_each_time_behind_measured_by_itself
from tests.support.sql_databases import Databases
from twopc import Committable, Participant, Round
from twopc.errors import (
    CorruptLog,
    LogMismatch,
    OperatorRequired,
    OutcomeUnknown,
    Refused,
    Retriable,
    RoundAborted,
    SchemaMismatch,
    TransactionLost,
)
from twopc_sql import SqlSink
from twopc_sql.tables import Tables

pytestmark = pytest.mark.in_turn("database")

FIRST, SECOND = Round(1, 0), Round(1, 1)


def deleted(sink: SqlSink, key: object) -> Committable:
    """The vote of a transaction that deletes the row of a key."""
    with Participant({"orders": sink}, FIRST, partition=0) as participant:
        participant.delete("orders", pa.record_batch({"value": [key]}))
        return participant.pre_commit()["orders"]


def test_a_commit_leaves_no_row_of_its_transactions_and_no_staged_record(place: Place) -> None:
    votes = [place.vote(["a", "b"]), place.vote(["c"], partition=1)]
    place.sink().commit_batch(0, votes)
    assert place.values() == ["a", "b", "c"]
    assert place.ask("SELECT count(*) FROM twopc_transactions") == [(0,)]
    assert place.staged() == 0


def test_more_transactions_than_a_statement_may_name_are_committed_at_once(place: Place) -> None:
    sink = place.sink()
    votes = [place.vote([str(number)], partition=number, sink=sink) for number in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twopc_sql.tables._AT_ONCE", 2)
        assert list(sink.seal(votes, 0.0)) == votes
        sink.commit_batch(0, votes)
    assert place.values() == ["0", "1", "2"]
    assert place.staged() == 0


def test_a_lost_transaction_of_a_later_batch_was_rolled_back(place: Place) -> None:
    place.sink().commit_batch(0, [place.vote(["a"])])
    votes = [place.vote(["b"], SECOND), place.vote(["c"], SECOND, partition=1)]
    place.sink().abort(votes[1])
    with pytest.raises(TransactionLost, match=rf"1 of them are not prepared, such as {votes[1].transaction_id}"):
        place.sink().commit_batch(1, votes)
    assert place.values() == ["a"]


def test_a_batch_whose_mark_was_removed_is_not_taken_for_rolled_back(place: Place) -> None:
    """With ``TransactionLost``, it would be written again, and be there twice."""
    vote = place.vote(["a"])
    place.sink().commit_batch(0, [vote])
    place.ask("DELETE FROM twopc_batches")
    with pytest.raises(OutcomeUnknown):
        place.sink().commit_batch(0, [vote])


def test_a_batch_that_was_rolled_back_before_its_decision_is_vetoed(place: Place) -> None:
    vote = place.vote(["a"])
    place.sink().abort(vote)
    with pytest.raises(RoundAborted, match="not prepared"):
        place.sink().seal([vote], 0.0)


def test_a_log_that_is_older_than_the_database_decides_nothing(place: Place) -> None:
    """Its batch would count as committed, and its records would be lost."""
    place.sink().commit_batch(1, [place.vote(["a"], SECOND)])
    vote = place.vote(["b"], Round(2, 1))
    with pytest.raises(LogMismatch, match=r"has batch 1 .* about to decide batch 1"):
        place.sink().seal([vote], 0.0)


def test_a_seal_changes_nothing(place: Place) -> None:
    vote = place.vote(["a"])
    for _ in range(2):
        place.sink().seal([vote], 0.0)
    assert place.values() == []
    place.sink().commit_batch(0, [vote])
    assert place.values() == ["a"]


def test_what_a_table_refuses_it_refuses_before_the_decision(place: Place) -> None:
    place.create("value {key} PRIMARY KEY, CHECK (value <> 'bad')")
    place.ask("INSERT INTO {} VALUES ('there')")
    of_another_row = pytest.raises(RoundAborted, match=r"the table refuses it: .*breaks a key.*can be run again")
    of_itself = pytest.raises(Refused, match=r"the table refuses it: .*breaks NOT NULL, a CHECK")
    for incarnation, (value, refused) in enumerate({"there": of_another_row, "bad": of_itself}.items()):
        vote = place.vote([value], Round(1 + incarnation, 0))
        with refused:
            place.sink().seal([vote], 0.0)
        place.sink().abort(vote)
    assert place.values() == ["there"]


def test_a_row_that_came_after_the_decision_holds_the_commit_up_until_it_is_removed(place: Place) -> None:
    place.create("value {key} PRIMARY KEY")
    vote = place.vote(["a"])
    place.sink().seal([vote], 0.0)
    place.ask("INSERT INTO {} VALUES ('a')")
    with pytest.raises(Retriable):
        place.sink().commit_batch(0, [vote])
    place.ask("DELETE FROM {}")
    place.sink().commit_batch(0, [vote])
    assert place.values() == ["a"]


@pytest.mark.advice("set 'table' back")
def test_a_batch_that_was_decided_for_another_table_waits_for_the_option_to_be_set_back(place: Place) -> None:
    vote = place.vote(["a"])
    place.ask("CREATE TABLE others (value {text})")
    with pytest.raises(OperatorRequired, match=r"written for table 'orders': set 'table' back"):
        place.sink(table="others").commit_batch(0, [vote])
    place.sink().commit_batch(0, [vote])
    assert place.values() == ["a"]


def test_what_was_written_for_another_table_is_rolled_back_without_a_rest(place: Place) -> None:
    place.vote(["a"])
    place.ask("CREATE TABLE others (value {text})")
    sink = place.sink(table="others")
    [found] = sink.recover()
    sink.abort(found)
    assert place.staged() == 0


def test_a_table_that_is_gone_after_the_decision_calls_an_operator(place: Place) -> None:
    vote = place.vote(["a"])
    place.ask("ALTER TABLE {} RENAME TO elsewhere")
    with pytest.raises(OperatorRequired, match=r"orders .*(is gone|the database refuses)"):
        place.sink().commit_batch(0, [vote])
    place.ask("ALTER TABLE elsewhere RENAME TO {}")
    place.sink().commit_batch(0, [vote])
    assert place.values() == ["a"]


def test_a_transaction_of_another_sink_is_not_touched(place: Place) -> None:
    other = place.unbound()
    other.bind("orders", "another_log")
    vote = place.vote(["a"])
    for call in (lambda: other.commit_batch(0, [vote]), lambda: other.abort(vote), lambda: other.seal([vote], 0.0)):
        with pytest.raises(CorruptLog):
            call()


def test_names_that_differ_in_their_letters_case_are_of_two_queries(place: Place) -> None:
    for log_id in ("log", "LOG"):
        sink = place.sink(log_id)
        sink.commit_batch(0, [place.vote([log_id], sink=sink)])
    assert sorted(place.values()) == ["LOG", "log"]


def test_two_tables_of_one_database_change_at_one_moment(place: Place) -> None:
    others = replace(place, table="others")
    others.create("value {key} PRIMARY KEY")
    sinks = place.sink(), others.unbound()
    sinks[1].bind("others", "log")
    assert sinks[0].commit_group == sinks[1].commit_group
    with Participant({"orders": sinks[0], "others": sinks[1]}, FIRST, partition=0) as participant:
        for name in ("orders", "others"):
            participant.write(name, pa.record_batch({"value": [name]}))
        votes = participant.pre_commit()
    due = {sinks[0]: [votes["orders"]], sinks[1]: [votes["others"]]}
    others.ask("INSERT INTO {} VALUES ('others')")
    with pytest.raises(Retriable):
        SqlSink.commit_together(0, due)
    assert place.values() == []
    others.ask("DELETE FROM {}")
    SqlSink.commit_together(0, due)
    assert (place.values(), others.values()) == (["orders"], ["others"])


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_constraint_that_is_checked_at_a_commit_is_checked_before_the_decision(place: Place) -> None:
    place.create("value TEXT UNIQUE DEFERRABLE INITIALLY DEFERRED")
    with pytest.raises(RoundAborted, match=r"the table refuses it: UniqueViolation\."):
        place.sink().seal([place.vote(["a", "a"])], 0.0)


def trigger(place: Place, event: str, does: str) -> None:
    """Have the database do something instead of, or before, each INSERT or UPDATE of 'a'."""
    if place.database == "sqlite":
        place.ask(f"CREATE TRIGGER t BEFORE {event} ON {{}} WHEN NEW.value = 'a' BEGIN SELECT {does}; END")
        return
    place.ask(f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {does}; END'")
    place.ask(f"CREATE TRIGGER t BEFORE {event} ON {{}} FOR EACH ROW WHEN (NEW.value = 'a') EXECUTE FUNCTION f()")


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
@pytest.mark.parametrize(
    ("upsert_by", "event", "records"),
    [
        ("", "INSERT", {"value": ["a", "b"]}),
        ("value", "INSERT", {"value": ["a", "b"]}),
        ("value", "INSERT", {"value": ["a", "b", "a"], "n": [1, 2, 3]}),
        ("value", "UPDATE", {"value": ["a", "c"], "n": [1, 2]}),
    ],
)
def test_records_that_a_trigger_leaves_out_are_missed_before_the_decision(
    upsert_by: str, event: str, records: dict[str, Any], place: Place
) -> None:
    place.create("value {key} PRIMARY KEY, n BIGINT")
    if event == "UPDATE":
        place.ask("INSERT INTO {} VALUES ('a', 0)")
    sink, count = place.sink(upsert_by=upsert_by), len(records["value"])
    sink.seal([vote := place.vote(records, sink=sink)], 0.0)
    trigger(place, event, "RAISE(IGNORE)" if place.database == "sqlite" else "RETURN NULL")
    with pytest.raises(Refused, match=f"leaves out 1 of its {count} records, by a trigger or a rule"):
        sink.seal([vote], 0.0)


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_row_that_comes_back_after_its_delete_is_no_fault_of_the_batch(place: Place) -> None:
    place.create("value {key} PRIMARY KEY")
    place.ask("INSERT INTO {} VALUES ('a')")
    sink = place.sink(upsert_by="value")
    vote = deleted(sink, "a")
    place.ask("CREATE TRIGGER again AFTER DELETE ON {} BEGIN INSERT INTO {} VALUES (OLD.value); END")
    with pytest.raises(RoundAborted, match="1 rows that it deletes are there again"):
        sink.seal([vote], 0.0)
    with pytest.raises(Retriable, match="1 rows that it deletes are there again"):
        sink.commit_batch(0, [vote])
    place.ask("DROP TRIGGER again")
    sink.commit_batch(0, [vote])
    assert place.values() == []


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize("of", ["a trigger", "a strict table"])
def test_what_a_record_breaks_by_itself_ends_the_seal_for_good(of: str, place: Place) -> None:
    if of == "a trigger":
        place.create("value {key}")
        trigger(place, "INSERT", "RAISE(ABORT, 'closed')")
        vote = place.vote({"value": ["a"]})
    else:
        place.ask("DROP TABLE {}")
        place.ask("CREATE TABLE {} (value INTEGER) STRICT")
        vote = place.vote({"value": [0.5]})
    with pytest.raises(Refused, match="the table refuses it") as refused:
        place.sink().seal([vote], 0.0)
    assert not isinstance(refused.value, RoundAborted)


@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize("error", ["54000", "P0001", "XX000"])
def test_what_a_table_refuses_for_good_ends_the_seal_at_once_with_the_words_of_the_database(
    error: str, place: Place
) -> None:
    raising = f"BEGIN RAISE EXCEPTION USING MESSAGE = ''odd words'', ERRCODE = ''{error}''; END"
    place.ask(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS '{raising}'")
    place.ask("CREATE TRIGGER refuses BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION refuse()")
    with pytest.raises(Refused, match="the table refuses it: odd words"):
        place.sink().seal([place.vote(["a"])], 0.0)


@pytest.mark.parametrize("database", ["postgresql"])
def test_nothing_that_the_sink_sets_stays_in_its_session(place: Place) -> None:
    """A pooler gives the session to another client after the transaction."""
    with place.sink()._engine.connect() as connection:
        [bounded] = connection.execute(sa.text("SELECT current_setting('lock_timeout')")).one()
        connection.commit()
        raw = connection.connection.driver_connection
        after = raw.execute("SELECT name FROM pg_settings WHERE source = 'session'").fetchall()  # type: ignore[union-attr]
    assert (bounded, after) == ("1min", [("transaction_isolation",)])  # that of this transaction


def test_a_column_with_a_name_of_the_sinks_own_is_refused_at_the_start(place: Place) -> None:
    place.create("value {key} PRIMARY KEY, twopc_newest INT")
    with pytest.raises(SchemaMismatch, match="'twopc_newest' is reserved"):
        place.sink(upsert_by="value").validate(pa.schema({"value": pa.string(), "twopc_newest": pa.int32()}))


@pytest.mark.advice("is gone, or its columns were changed, since records were written for it")
def test_a_table_whose_types_were_changed_since_its_records_were_written_gets_none_of_them(place: Place) -> None:
    """It could round a number that the staging table has kept."""
    place.create("value {float}")
    vote = place.vote({"value": [0.5]})
    place.create("value {text}")
    with pytest.raises(OperatorRequired, match=r"its columns were changed, .*: undo that and start again"):
        place.sink().commit_batch(0, [vote])
    place.create("value {float}")
    place.sink().commit_batch(0, [vote])
    assert place.ask("SELECT value FROM {}") == [(0.5,)]


def test_a_key_whose_type_was_changed_since_rows_of_it_were_deleted_waits_for_the_change_to_be_undone(
    place: Place,
) -> None:
    place.create("value BIGINT PRIMARY KEY")
    vote = deleted(place.sink(upsert_by="value"), 1)
    place.create("value {key} PRIMARY KEY")
    with pytest.raises(OperatorRequired, match="its columns were changed") as waiting:
        place.sink(upsert_by="value").commit_batch(0, [vote])
    assert not isinstance(waiting.value, TransactionLost)
    place.create("value BIGINT PRIMARY KEY")
    place.ask("INSERT INTO {} VALUES (1), (2)")
    place.sink(upsert_by="value").commit_batch(0, [vote])
    assert place.values() == [2]  # type: ignore[comparison-overlap]  # numbers, here


def test_what_is_rolled_back_leaves_no_key_of_the_types_of_before(place: Place) -> None:
    place.create("value BIGINT PRIMARY KEY")
    vote = deleted(place.sink(upsert_by="value"), 1)
    [(deletes,)] = place.ask("SELECT deletes FROM twopc_transactions")
    place.create("value {key} PRIMARY KEY")
    place.sink().abort(vote)
    assert place.ask(f"SELECT count(*) FROM {deletes}") == [(0,)]  # noqa: S608  # from the database


def test_records_of_the_types_of_before_are_not_in_the_way_of_new_ones(place: Place) -> None:
    place.create("value {float}")
    place.vote({"value": [0.5]})
    place.create("value {text}")
    vote = place.vote(["a"], SECOND)
    place.sink().commit_batch(1, [vote])
    assert place.values() == ["a"]


def test_a_first_batch_that_another_process_commits_meanwhile_is_committed(
    place: Place, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no mark yet that the two could wait for."""
    if not databases.servers(place.database):
        pytest.skip("the first holds the whole database")
    vote, sink, other = place.vote(["a"]), place.sink(), place.sink()
    locked = Tables.locked

    def late(tables: Tables, *arguments: Any) -> Any:
        monkeypatch.setattr(Tables, "locked", locked)
        other.commit_batch(0, [vote])
        return locked(tables, *arguments)

    monkeypatch.setattr(Tables, "locked", late)
    sink.commit_batch(0, [vote])
    assert place.values() == ["a"]


def test_a_rollback_does_not_need_the_staging_table(place: Place) -> None:
    vote = place.vote(["a"])
    [(staged,)] = place.ask("SELECT staged FROM twopc_transactions")
    place.ask(f"DROP TABLE {staged}")
    place.sink().abort(vote)
    assert list(place.sink().recover()) == []


def test_what_is_prepared_takes_no_more_records(place: Place) -> None:
    sink = place.sink()
    transaction = sink.begin(sink.transactional_ids.allocate(FIRST, 0))
    sink.write(transaction, pa.record_batch({"value": ["a"]}))
    transaction.records = 1
    vote = sink.pre_commit(transaction)
    with pytest.raises(RoundAborted, match="rolled back while it was written"):
        sink.write(transaction, pa.record_batch({"value": ["late"]}))
    sink.commit_batch(0, [vote])
    assert place.values() == ["a"]


def test_a_record_whose_foreign_key_is_not_there_is_refused_before_the_decision(place: Place) -> None:
    place.ask("CREATE TABLE days (day VARCHAR(9) PRIMARY KEY)")
    place.create("value {text}, day VARCHAR(9), FOREIGN KEY (day) REFERENCES days (day)")
    with pytest.raises(RoundAborted, match="the table refuses it"):
        place.sink().seal([place.vote({"value": ["a"], "day": ["never"]})], 0.0)


def test_a_crash_while_a_staging_table_is_made_leaves_none_without_its_key(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, to remove one transaction's records would wait for those of all others."""
    execute = sa.Connection.exec_driver_sql

    def dies(connection: sa.Connection, statement: str, *given: Any, **named: Any) -> sa.CursorResult[Any]:
        result = execute(connection, statement, *given, **named)
        if statement.startswith("CREATE TABLE"):
            raise RuntimeError("a crash")
        return result

    monkeypatch.setattr(sa.Connection, "exec_driver_sql", dies)
    with pytest.raises(RuntimeError):
        place.vote(["a"])
    monkeypatch.setattr(sa.Connection, "exec_driver_sql", execute)
    place.vote(["a"], SECOND)
    [(staged,)] = place.ask("SELECT staged FROM twopc_transactions WHERE state = 'prepared'")
    if place.database != "duckdb":  # SQLAlchemy can't read its catalog
        found = sa.inspect(place.sink()._engine)
        assert found.get_pk_constraint(staged)["constrained_columns"] or found.get_indexes(staged)


def test_each_time_that_a_database_is_behind_is_measured_by_itself(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink()
    require_each_time_behind_measured_by_itself(
        sink, lambda found: monkeypatch.setattr(sink, "_mark", found), monkeypatch
    )
