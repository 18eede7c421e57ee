"""What becomes of a decided transaction, by what the server reports of it (invariants 2, 5 and 6)."""

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pymysql
import pytest

from tests.sinks.mysql.conftest import Place, new_place
from tests.sinks.prepared_contract import PreparedContract
from tests.support.mariadb_server import MariaDbServer
from twopc import Committable, Round
from twopc.errors import ConfigurationError, OperatorRequired, OutcomeUnknown, Retriable, RoundAborted, TransactionLost
from twopc_mysql import outcomes, sessions, sink, tables
from twopc_mysql.sink import MysqlTransaction
from twopc_mysql.tables import FORMAT_ID, can_prepare, xid

RESET_CONNECTION = 0x1F
"""A command of the protocol that PyMySQL does not send."""


def prepare(place: Place, xid: str, value: str) -> None:
    """Prepare a transaction by hand. One without a row would end with its session."""
    with place.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"XA START {xid}")
        cursor.execute(f"INSERT INTO {place.database}.orders VALUES ('{value}')")  # noqa: S608
        for verb in ("END", "PREPARE"):
            cursor.execute(f"XA {verb} {xid}")


class TestPrepared(PreparedContract):
    pass


def test_markers_are_removed_while_other_transactions_are_prepared(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LOCK_TIMEOUT_S", 5.0)
    sink = place.sink()
    for partition in range(20):
        sink.commit(place.pre_commit(["a"], Round(1, 0), partition))
    left = [place.pre_commit(["b"], Round(1, 1), partition) for partition in range(0, 20, 2)]
    sink.commit(place.pre_commit(["c"], Round(1, 1), 1))
    sink.complete(1, [])
    assert place.marked() == [(1,)]
    assert len(place.prepared()) == len(left)


def test_a_transaction_of_another_program_with_the_same_name_is_not_ours(place: Place) -> None:
    name = f"{place.prefix}.log.orders.1.0.0.0.0"
    theirs = f"'{name[:64]}', '{name[64:]}', {FORMAT_ID + 1}"
    prepare(place, theirs, "theirs")
    assert list(place.sink().recover()) == []
    with pytest.raises(RoundAborted, match="but no longer is"):
        place.sink().seal([Committable(name, {})], age_s=0)
    place.end("ROLLBACK", theirs)


# Two sessions and one transaction. --------------------------------------------------------------------------------


def held(place: Place, values: list[str]) -> tuple[MysqlTransaction, Committable]:
    """A transaction that is prepared and that its session still holds, as of a task that stands still."""
    of_task, transaction = place.begun({"value": values})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink, "end", lambda connection: None)
        return transaction, of_task.pre_commit(transaction)


def test_a_transaction_that_its_session_still_holds_is_neither_lost_nor_left_out(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "HELD_S", 0.1)
    place.sink().commit(place.pre_commit(["before"], Round(0, 0)))
    transaction, committable = held(place, ["a"])
    assert place.sink().seal([committable], age_s=0) == [committable]
    assert [each.transaction_id for each in place.sink().recover()] == [committable.transaction_id]
    for end in (place.sink().commit, place.sink().abort):
        with pytest.raises(Retriable, match="another session of the server still holds the transaction"):
            end(committable)
    transaction.connection.close()
    monkeypatch.undo()
    place.sink().commit(committable)
    assert place.values() == ["a", "before"]


def test_a_session_that_falls_silent_after_its_vote_is_ended_by_the_server(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "LEFT_AFTER_S", 1)
    transaction, committable = held(place, ["a"])
    monkeypatch.setattr(sink, "HELD_S", 30.0)
    place.sink().commit(committable)
    assert place.values() == ["a"]
    assert transaction.connection.open  # this end of it knows nothing


def test_a_commit_that_another_process_has_under_way_is_waited_for_and_not_called_lost(
    own_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_place.sink().commit(own_place.pre_commit(["before"], Round(0, 0)))
    committable = own_place.pre_commit(["a"])
    monkeypatch.setattr(sink, "HELD_S", 0.1)
    with own_place.server.connect() as blocking, blocking.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        other = threading.Thread(target=own_place.sink().commit, args=[committable])
        other.start()
        time.sleep(0.3)
        with pytest.raises(Retriable, match="still holds the transaction"):
            own_place.sink().commit(committable)
        assert own_place.values() == ["before"]
        cursor.execute("UNLOCK TABLES")
        other.join()
    own_place.sink().commit(committable)
    assert own_place.values() == ["a", "before"]


# MariaDB gives a name free before the session has left its transaction. -------------------------------------------


def nameless(place: Place, verb: str) -> tuple[MysqlTransaction, Committable]:
    """A prepared transaction whose name the server has ended alone. To reset a session gives the name free, too, but
    not the transaction: it does for long what the end of a session does for a moment."""
    transaction, committable = held(place, ["a"])
    transaction.connection._execute_command(RESET_CONNECTION, b"")
    transaction.connection._read_ok_packet()
    place.ask(f"XA {verb} {xid(committable.transaction_id)}")  # succeeds
    assert place.prepared() == []
    return transaction, committable


def require_unlocked(place: Place) -> None:
    """Of the transactions of the markers, none is left, listed or not."""
    place.ask("SELECT * FROM {markers} LOCK IN SHARE MODE NOWAIT")


def left_nameless(place: Place, verb: str) -> Committable:
    """The same, whose session has ended."""
    place.sink()
    transaction, committable = nameless(place, verb)
    transaction.connection.close()
    return committable


@pytest.mark.advice("and another session of the server still holds the transaction")
def test_a_commit_that_ended_the_name_alone_is_not_believed_and_repeated(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.sink()
    transaction, committable = nameless(place, "COMMIT")
    assert place.values() == []
    monkeypatch.setattr(sink, "HELD_S", 0.1)
    with pytest.raises(Retriable, match="still holds the transaction"):
        place.sink().commit(committable)
    monkeypatch.undo()
    transaction.connection.close()
    place.sink().commit(committable)
    assert place.values() == ["a"]
    require_unlocked(place)


def test_a_server_that_would_roll_the_transaction_back_is_not_asked_to_commit_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = left_nameless(place, "COMMIT")
    with monkeypatch.context() as patch:
        patch.setattr(tables.Table, "write_nothing", lambda table, connection: None)
        with pytest.raises(OutcomeUnknown, match=r"the server has lost its name\. Restart the server"):
            place.sink().commit(committable)
    place.sink().commit(committable)
    assert place.values() == ["a"]


def test_a_rollback_that_ended_the_name_alone_is_repeated(place: Place) -> None:
    committable = left_nameless(place, "ROLLBACK")
    place.sink().abort(committable)
    assert (place.values(), place.prepared()) == ([], [])
    require_unlocked(place)


def test_a_crash_between_a_rollback_and_the_adoption_leaves_no_locked_rows(place: Place) -> None:
    """Nothing lists the transaction then but its marker."""
    committable = left_nameless(place, "ROLLBACK")
    [left] = place.sink().recover()
    assert left.transaction_id == committable.transaction_id
    place.sink().abort(left)
    assert list(place.sink().recover()) == []
    require_unlocked(place)


def test_a_crash_amid_an_adoption_leaves_a_trial_that_the_next_start_rolls_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = left_nameless(place, "COMMIT")
    with monkeypatch.context() as patch:
        patch.setattr(sink.MysqlSink, "_end_name", lambda *_: (_ for _ in ()).throw(Retriable("a crash")))
        with pytest.raises(Retriable, match="a crash"):
            place.sink()._adopt(None, "COMMIT", committable.transaction_id, "", place.sink()._table)
    left = {each.transaction_id for each in place.sink().recover()}
    assert len(left) == 2  # the trial, and the one that is decided
    place.sink().commit(committable)
    [trial] = left - {committable.transaction_id}
    place.sink().abort(Committable(trial, {}))
    assert (place.values(), place.prepared(), list(place.sink().recover())) == (["a"], [], [])


def test_a_commit_that_succeeds_without_a_marker_is_not_believed(place: Place) -> None:
    """What was left under the name is empty: the records were rolled back."""
    place.sink().commit(place.pre_commit(["before"], Round(0, 0)))
    committable = place.pre_commit(["a"], Round(1, 1))
    place.by_hand("ROLLBACK", committable)
    coordinator = place.sink()
    coordinator._prepare_empty(committable.transaction_id, coordinator._table, writes=True)
    with pytest.raises(TransactionLost, match="has no marker"):
        coordinator.commit(committable)


def test_a_session_about_to_prepare_is_listed_and_neither_adopted_nor_called_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_task, transaction = place.begun({"value": ["a"]})
    of_task._table.mark(transaction.connection, transaction.id, of_task.transactional_ids.scope)
    [left] = place.sink().recover()
    monkeypatch.setattr(sink, "HELD_S", 0.1)
    with pytest.raises(Retriable, match="still holds the transaction"):
        place.sink().abort(left)
    of_task.discard(transaction)
    place.sink().abort(left)
    assert (place.values(), place.prepared()) == ([], [])


@pytest.mark.long
def test_every_commit_that_follows_at_once_is_visible(place: Place) -> None:
    """Of 2 000 by plain SQL on a busy machine, 9 were not."""
    coordinator = place.sink()

    def write(worker: int) -> None:
        for batch_id in range(100):
            coordinator.commit(place.pre_commit([f"{worker} {batch_id}"], Round(1, batch_id), worker))

    with ThreadPoolExecutor(8) as workers:
        list(workers.map(write, range(8)))
    assert len(place.values()) == 800
    require_unlocked(place)


# What must not be prepared. ---------------------------------------------------------------------------------------


def test_a_deadlock_ends_its_transaction_and_nothing_of_it_is_prepared_or_visible(place: Place) -> None:
    """The server takes statements after a deadlock as if nothing had happened."""
    place.create("value VARCHAR(50) PRIMARY KEY")
    place.ask(f"CREATE TABLE {place.database}.another (n INT)")
    (of_task, first), (_, second) = (
        place.begun({"value": [value]}, partition=n, upsert_by="value") for n, value in enumerate("ab")
    )
    failed: list[RoundAborted] = []

    def write(transaction: MysqlTransaction, value: str) -> None:
        try:
            of_task.write(transaction, pa.record_batch({"value": [value]}))
        except RoundAborted as error:
            failed.append(error)

    other = threading.Thread(target=write, args=[first, "b"])
    other.start()
    time.sleep(0.3)
    write(second, "a")
    other.join(30)
    [error] = failed
    assert "1213, Deadlock" in str(error)
    [victim] = [each for each in (first, second) if each.is_partial]
    sessions.ask(victim.connection, f"INSERT INTO {place.database}.another VALUES (1)")  # noqa: S608
    victim.is_partial = False  # even then
    with pytest.raises(RoundAborted, match="1614, XA_RBDEADLOCK"):
        of_task.pre_commit(victim)
    for each in (first, second):
        of_task.discard(each)
    assert place.prepared() == []
    assert place.values() == []
    assert place.ask(f"SELECT * FROM {place.database}.another") == []  # noqa: S608


# The server ends, and comes back. ---------------------------------------------------------------------------------


@pytest.mark.advice("and the server is read-only, as a replica is")
def test_a_replica_that_only_reads_is_asked_again(own_place: Place) -> None:
    """Until the failover is complete."""
    committable = own_place.pre_commit(["a"])
    user, password = own_place.database, uuid.uuid4().hex
    own_place.ask(f"CREATE USER {user}@localhost IDENTIFIED BY '{password}'")
    own_place.ask(f"GRANT ALL ON {own_place.database}.* TO {user}@localhost")
    sink = own_place.sink(url=own_place.server.url(own_place.database, user, password))
    own_place.ask("SET GLOBAL read_only = ON")
    try:
        for ask in (lambda: sink.seal([committable], age_s=0), lambda: sink.commit(committable)):
            with pytest.raises(Retriable, match="the server is read-only"):
                ask()
    finally:
        own_place.ask("SET GLOBAL read_only = OFF")
    sink.commit(committable)
    sink.close()
    own_place.ask(f"DROP USER {user}@localhost")
    assert own_place.values() == ["a"]


PREFERRED = "completion_type = 'CHAIN', GLOBAL sql_select_limit = 0, GLOBAL check_constraint_checks = 0"
USUAL = "completion_type = DEFAULT, GLOBAL sql_select_limit = DEFAULT, GLOBAL check_constraint_checks = DEFAULT"


def test_settings_that_others_prefer_hide_no_marker_and_leave_no_transaction_open(own_place: Place) -> None:
    """The driver's session would be in a transaction after the first batch, and see nothing of the second."""
    own_place.create("value VARCHAR(9) CHECK (value <> 'bad')")
    own_place.ask(f"SET GLOBAL {PREFERRED}")
    try:
        sink = own_place.sink()
        for batch_id in range(3):
            vote, refused = own_place.vote_without_bad({"value": [f"{batch_id}", "bad"]}, round=Round(1, batch_id))
            for _ in range(2):
                sink.commit(vote)
            sink.complete(batch_id, [vote])
            assert refused == [1]
        sink.close()
    finally:
        own_place.ask(f"SET GLOBAL {USUAL}")
    assert own_place.values() == ["0", "1", "2"]


@pytest.mark.parametrize(("answer", "is_read_only"), [(0, False), (1, True), ("OFF", False), ("NO_LOCK", True)])
def test_a_server_that_takes_commits_is_known_by_a_number_or_a_word(
    answer: object, is_read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer MariaDB answers by a word. Taken for true, each of them would have every commit repeated for ever."""
    monkeypatch.setattr(tables, "ask", lambda *_: [(answer,)])
    assert tables.is_read_only(None) is is_read_only


@pytest.mark.parametrize("number", [2026, 2059, 2061])
def test_a_login_that_the_client_can_not_do_is_no_outage(number: int) -> None:
    error = pymysql.OperationalError(number, "odd words")
    assert isinstance(outcomes.request_failed(error, "opening"), OperatorRequired)
    assert isinstance(outcomes.write_failed(error, "a transaction", None), ConfigurationError)


# Before anything is written. --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "can"),
    [
        ("10.4.99-MariaDB", False),
        ("10.5.0-MariaDB-log", True),
        ("11.4.5-MariaDB", True),
        ("5.7.44", False),
        ("8.0.28", False),
        ("8.0.29-log", True),
        ("8.4.0", True),
    ],
)
def test_a_server_that_forgets_prepared_transactions_is_known_by_its_version(version: str, can: bool) -> None:
    assert can_prepare(version) is can


def test_a_server_that_is_too_old_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "can_prepare", lambda version: False)
    with pytest.raises(ConfigurationError, match=r"Use MariaDB 10\.5 or MySQL 8\.0\.29"):
        place.sink()


@pytest.mark.long
def test_a_binary_log_of_statements_is_refused_and_the_setting_named() -> None:
    with MariaDbServer(binlog=True, binlog_format="STATEMENT") as server:
        place = new_place(server)
        with pytest.raises(ConfigurationError, match=r"binlog_format=STATEMENT.* Set it to MIXED or ROW"):
            place.sink()


def test_a_marker_table_that_is_not_transactional_is_refused(place: Place) -> None:
    place.sink()
    place.ask("ALTER TABLE {markers} ENGINE=MyISAM")
    with pytest.raises(ConfigurationError, match=r"twopc_committed has the engine MyISAM.*ENGINE=InnoDB"):
        place.sink()


def test_a_name_is_in_two_parts_and_as_long_as_the_server_allows(place: Place) -> None:
    longest = f"{place.prefix}.{'L' * (128 - len(place.prefix) - 2)}."
    assert len(longest) == 128
    for name in (longest, longest.lower()):  # they differ in case alone
        prepare(place, xid(name), name)
    with place.server.connect() as connection:
        assert {longest, longest.lower()} <= set(tables.prepared(connection))
    for name in (longest, longest.lower()):
        place.end("COMMIT", xid(name))
    assert place.values() == sorted([longest, longest.lower()])


def test_a_replica_that_does_not_have_the_transaction_yet_is_not_believed(own_place: Place) -> None:
    """It reports a transaction as gone that the primary has prepared."""
    own_place.sink().commit(own_place.pre_commit(["a"]))
    missing = own_place.pre_commit(["b"], Round(1, 1))
    own_place.sink().abort(missing)
    own_place.ask("SET GLOBAL read_only = ON")
    try:
        with pytest.raises(Retriable, match="read-only, as a replica is"):
            own_place.sink().commit(missing)
    finally:
        own_place.ask("SET GLOBAL read_only = OFF")
    with pytest.raises(TransactionLost):
        own_place.sink().commit(missing)
