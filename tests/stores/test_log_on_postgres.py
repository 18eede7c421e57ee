"""The commit log in PostgreSQL: put-if-absent by a unique index, sessions and servers that end at the wrong moment,
standbys, and servers that can't be used."""

import pickle
import re
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql

import twopc
from tests.support.commit_log import CommitLog
from tests.support.pages import DOCS, blocks
from tests.support.postgres_server import PostgresServer, Standby
from tests.support.racing_writers import race
from tests.support.waiting import until
from twopc import Committable, Round
from twopc.checks import CheckStatus
from twopc.cli.commands import cli
from twopc.errors import ConfigurationError, InDoubt, Retriable, TwoPhaseCommitError
from twopc.log.commit_log import read_tail
from twopc.log.entries import Decision
from twopc.log.store import LogStore
from twopc.testing import LogStoreContract
from twopc.testing.query import answered
from twopc_postgres import PostgresLogStore, sessions
from twopc_postgres.log.outcomes import log_request_failed
from twopc_postgres.log.table import TABLE, LogTable
from twopc_postgres.server import may_spare_a_standby, prove_current

TEST_TIMEOUT_S = 60.0

FIRST = Decision(Round(1, 0), {"sink": (Committable("t0", {}, 1),)})


@dataclass(frozen=True)
class Place:
    """A schema of one test, for its log."""

    server: PostgresServer
    schema: str

    @property
    def url(self) -> str:
        return self.server.log_url(f"{self.schema}.orders")

    def store(self, **parameters: Any) -> PostgresLogStore:
        store = twopc.open_store(self.url, **{"password": self.server.password, **parameters})
        assert isinstance(store, PostgresLogStore)
        return store

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What another session sees. ``{}`` stands for the table."""
        with psycopg.connect(self.server.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement.replace("{}", f"{self.schema}.twopc_log"), values)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def taking(self, slot: int) -> Iterator[psycopg.Connection[Any]]:
        """Another session that has inserted an entry and not committed it. It is rolled back at the end."""
        with psycopg.connect(self.server.conninfo) as other:
            table = sql.Identifier(self.schema, TABLE)
            other.execute(sql.SQL("INSERT INTO {} VALUES ('orders', %s, 'of another')").format(table), (slot,))
            yield other
            other.rollback()

    def require_standbys(self, standbys: str) -> None:
        """Have the server wait for these standbys from now on."""
        self.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{standbys}'")
        self.ask("SELECT pg_reload_conf()")

    def waiting(self, event: str) -> list[int]:
        """The sessions that wait for a lock of another transaction (``transactionid``), or a standby (``SyncRep``)."""
        return [pid for (pid,) in self.ask("SELECT pid FROM pg_stat_activity WHERE wait_event = %s", event)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def place(server: PostgresServer) -> Iterator[Place]:
    place = Place(server, f"test_{uuid.uuid4().hex[:8]}")
    place.ask(f"CREATE SCHEMA {place.schema}")
    yield place
    place.ask(f"DROP SCHEMA {place.schema} CASCADE")


@pytest.fixture
def own_place() -> Iterator[Place]:
    """A log on a server of its own."""
    with PostgresServer() as server:
        yield Place(server, "public")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr(sessions, "LOCK_TIMEOUT_S", 0.2)


@contextmanager
def meanwhile(call: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Make a call in a thread. At the end it has returned, or its error is in the list."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # the test tells which it must be
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield errors
    thread.join(TEST_TIMEOUT_S)
    assert not thread.is_alive()


class TestPostgresLogStore(LogStoreContract):
    @pytest.fixture(autouse=True)
    def own_schema(self, place: Place) -> None:
        self.place = place

    def make_store(self) -> LogStore:
        return self.place.store()


# The URL. ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown", "table", "conninfo"),
    [
        (
            "postgresql://writer@db.example/sales/orders",
            "postgresql://writer@db.example/sales/public.orders",
            "public.twopc_log",
            {"user": "writer", "host": "db.example", "dbname": "sales", "target_session_attrs": "read-write"},
        ),
        (
            "postgresql://one:5433,two:5434/sales/etl.orders/?sslmode=verify-full&target_session_attrs=primary",
            "postgresql://one:5433,two:5434/sales/etl.orders",
            "etl.twopc_log",
            {"host": "one,two", "port": "5433,5434", "sslmode": "verify-full", "target_session_attrs": "primary"},
        ),
        (
            "postgresql:///sales/My%20Schema.or%2Eders?service=reports",
            "postgresql:///sales/My%20Schema.or%2Eders",
            "My Schema.twopc_log",
            {"service": "reports", "dbname": "sales"},
        ),
        (
            "postgresql://[::1]:5433/sales/orders?user=writer",
            "postgresql://writer@[::1]:5433/sales/public.orders",
            "public.twopc_log",
            {"host": "::1", "user": "writer"},
        ),
        (
            "postgresql://writer@/sales/orders?host=/tmp",
            "postgresql://writer@%2Ftmp/sales/public.orders",
            "public.twopc_log",
            {"user": "writer"},
        ),
    ],
)
def test_a_url_names_server_database_and_log(url: str, shown: str, table: str, conninfo: dict[str, str]) -> None:
    store = twopc.open_store(url)
    assert isinstance(store, PostgresLogStore)
    assert (store.url, str(store._table)) == (shown, table)
    assert conninfo.items() <= psycopg.conninfo.conninfo_to_dict(store._place.conninfo).items()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://writer@db.example", r"must have the form postgresql://user@host/database/log"),
        ("postgresql://writer@db.example/sales", r"must have the form"),
        ("postgresql://writer@db.example/sales/etl/orders", r"must have the form"),
        ("postgresql://writer@db.example/sales/a.b.c", r"must be log or schema\.log"),
        ("postgresql://db.example/sales/.orders", r"must be log or schema\.log"),
        ("postgresql://db.example/sales/or%zzders", r"must be log or schema\.log"),
        ("postgresql://db.example/sales/or%ffders", r"must be log or schema\.log"),
        ("postgresql://db.example/sales/or%00ders", r"must be log or schema\.log"),
        ("postgresql://db.example/sales/orders%20", r"must be log or schema\.log"),
        ("postgresql://db.example/sales/etl.%0Aorders", r"must be log or schema\.log"),
        ("postgresql://db.example/sales/etl%2Forders", r"must be log or schema\.log"),
        ("postgresql://db.example/sales/orders#1", r"must have the form"),
        ("postgresql://db.example/sales@other/orders", r"must have the form"),
        ("postgresql://db.example/sales/orders?dbname=other", r"gives dbname before and after the question mark"),
        ("postgresql://a@one:1/sales/orders?h%6Fst=two&user=b&port=2", r"gives user, host, port before and after"),
        ("postgres://db.example/sales/orders", r"Did you mean 'postgresql'"),
        ("postgresql://writer@db.example/sales/orders?nonsense=1", r"is not one that libpq takes"),
        ("postgresql://db.example/sales/orders?target_session_attrs=any", r"may read the commit log from a standby"),
        ("postgresql://db.example/sales/orders?target_session_attrs=standby", r"from a standby"),
    ],
)
def test_a_url_of_another_form_is_refused_before_any_connection(url: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        twopc.open_store(url)


def test_options_replace_what_the_url_says_of_the_server_but_not_of_the_database() -> None:
    url = "postgresql://writer@one:5433/sales/orders"
    store = twopc.open_store(url, host="two,three", user="a/b", port=5434)
    assert store.url == "postgresql://a%2Fb@two:5434,three:5434/sales/public.orders"
    with pytest.raises(ConfigurationError, match="names the database: remove the option dbname"):
        twopc.open_store(url, dbname="other")


def test_a_name_that_is_refused_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as refused:
        twopc.open_store("postgresql://db.example/sales/hunter2.a.b")
    assert "hunter2" not in str(refused.value)


def test_an_option_that_libpq_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="libpq does not know all of these options of the commit log: key"):
        twopc.open_store("postgresql://db.example/sales/orders", key="x")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://writer:hunter2@db.example/sales/orders",
        "postgresql://writer:hun/ter2@db.example/sales/orders",
        "postgresql://writer:1234/hunter2@db.example/sales/orders",
        "postgresql://db.example/sales/orders?password=hunter2",
        "postgresql://db.example/sales/orders?sslpassword=hunter2",
    ],
)
def test_a_secret_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"holds a (password|secret)|must have the form") as refused:
        twopc.open_store(url)
    assert "ter2" not in str(refused.value)


# Races. -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_of_processes_that_race_for_the_table_and_a_slot_one_wins(place: Place) -> None:
    for _ in range(3):
        outcomes = race(4, place.url, {"PGPASSWORD": place.server.password})
        assert sorted(outcomes) == ["refused", "refused", "refused", "won"]
        assert place.store().read(0) == str(outcomes.index("won")).encode()
        place.ask("DROP TABLE {}")


def test_a_slot_that_another_session_is_taking_is_waited_for(place: Place) -> None:
    store = place.store()
    store.put_if_absent(0, b"the table is there")
    with place.taking(1) as other, meanwhile(lambda: store.put_if_absent(1, b"mine")) as errors:
        until(lambda: place.waiting("transactionid"))
        other.commit()
    assert [type(error) for error in errors] == [FileExistsError]
    with place.taking(2) as other, meanwhile(lambda: store.put_if_absent(2, b"mine")) as errors:
        until(lambda: place.waiting("transactionid"))
        other.rollback()
    assert errors == []
    assert (store.read(1), store.read(2)) == (b"of another", b"mine")


def test_logs_of_one_schema_do_not_see_each_other(place: Place) -> None:
    one = place.store()
    other = twopc.open_store(place.server.log_url(f"{place.schema}.returns"), password=place.server.password)
    one.put_if_absent(0, b"one")
    other.put_if_absent(0, b"other")
    other.post(b"notice")
    assert (one.read(0), other.read(0), one.posted(), other.posted()) == (b"one", b"other", b"", b"notice")
    one.delete(0)
    assert (one.slots(), other.slots()) == ([], [0])


# Sessions and servers that end. -----------------------------------------------------------------------------------


def test_a_decision_whose_answer_is_lost_is_in_the_log_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = CommitLog.open(place.store(), "query")
    insert = LogTable.insert

    def lost(table: LogTable, connection: sessions.Connection, slot: int, data: bytes) -> bool:
        monkeypatch.setattr(LogTable, "insert", insert)
        insert(table, connection, slot, data)
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(LogTable, "insert", lost)
    log.decide(FIRST)
    assert read_tail(place.store()) == (1, log.tail)


def test_a_session_that_is_ended_before_its_commit_is_repeated(place: Place) -> None:
    log = CommitLog.open(place.store(), "query")
    with place.taking(1) as other, meanwhile(lambda: log.decide(FIRST)) as errors:
        until(lambda: place.waiting("transactionid"))
        place.ask("SELECT pg_terminate_backend(%s)", *place.waiting("transactionid"))
        other.rollback()
    assert errors == []
    assert read_tail(place.store()) == (1, log.tail)
    log.decide(Decision(Round(1, 1), {}))


@pytest.mark.crash
def test_a_server_that_is_killed_during_an_insert_leaves_the_decision_in_doubt_and_no_half_of_it(
    own_place: Place,
) -> None:
    place = own_place
    log = CommitLog.open(place.store(), "query")
    with suppress(psycopg.OperationalError), place.taking(1), meanwhile(lambda: log.decide(FIRST)) as errors:
        until(lambda: place.waiting("transactionid"))
        place.server.kill()
    [error] = errors
    assert isinstance(error, InDoubt)
    assert "whether the entry was or will be written is not known" in str(error)
    place.server.start()
    next_log = answered(TEST_TIMEOUT_S, CommitLog.open, place.store(), "query")
    assert (next_log.incarnation, next_log.tail.decided) == (2, None)


@pytest.mark.long
@pytest.mark.crash
def test_a_server_that_is_away_may_be_asked_again(own_place: Place) -> None:
    store = own_place.store()
    own_place.server.kill()
    with pytest.raises(Retriable, match=r"/postgres/public\.orders gave no answer.*Is the server up"):
        CommitLog.open(store, "query")


# Standbys. --------------------------------------------------------------------------------------------------------


@pytest.fixture
def away(own_place: Place) -> Callable[[], None]:
    """From its call on the server waits for a standby that is not there."""

    def leave() -> None:
        own_place.require_standbys("standby")
        until(lambda: _waits(own_place))  # sessions know the setting before they keep to it

    return leave


def _waits(place: Place) -> bool:
    with cancelling(place), sessions.connect(place.server.conninfo, autocommit=True) as connection:
        prove_current(connection)
        return bool(connection.unreplicated)


@contextmanager
def cancelling(place: Place, call: str = "pg_cancel_backend") -> Iterator[None]:
    """Cancel each wait for a standby, as an operator does who sees it."""
    has_ended = threading.Event()

    def cancel() -> None:
        while not has_ended.wait(0.02):
            for pid in place.waiting("SyncRep"):
                place.ask(f"SELECT {call}(%s)", pid)

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("call", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_decision_whose_wait_for_a_standby_was_ended_is_in_doubt_until_the_standby_has_it(
    call: str, own_place: Place, away: Callable[[], None]
) -> None:
    log = CommitLog.open(own_place.store(), "query")
    away()
    with cancelling(own_place, call), pytest.raises(InDoubt):
        log.decide(FIRST)
    assert own_place.ask("SELECT count(*) FROM {} WHERE slot = 1") == [(1,)]  # on this server alone
    with pytest.raises(Retriable):
        CommitLog.open(own_place.store(), "query")
    own_place.require_standbys("")
    assert answered(TEST_TIMEOUT_S, CommitLog.open, own_place.store(), "query").tail.decided == 0


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_a_slot_that_is_taken_on_this_server_alone_is_not_called_taken(
    own_place: Place, away: Callable[[], None]
) -> None:
    store = own_place.store()
    store.put_if_absent(0, b"the table is there")
    away()
    with cancelling(own_place):
        own_place.ask("INSERT INTO {} VALUES ('orders', 1, 'of another')")
    with pytest.raises(Retriable):
        store.put_if_absent(1, b"mine")
    own_place.require_standbys("")
    with pytest.raises(FileExistsError):
        answered(TEST_TIMEOUT_S, store.put_if_absent, 1, b"mine")


@pytest.mark.variants
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("setting", ["off", "local", "remote_write"])
def test_a_decision_waits_for_standbys_whatever_the_role_prefers(
    setting: str, own_place: Place, away: Callable[[], None]
) -> None:
    CommitLog.open(own_place.store(), "query")
    own_place.ask(f"ALTER DATABASE postgres SET synchronous_commit = {setting}")
    away()
    sessions.release(own_place.store()._place.conninfo)
    with pytest.raises(Retriable):
        own_place.store().put_if_absent(1, b"x")


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_a_decision_waits_for_standbys_also_in_a_session_that_a_pooler_has_exchanged(
    own_place: Place, away: Callable[[], None]
) -> None:
    """Such a session knows no prepared statement."""
    store = own_place.store()
    store.put_if_absent(0, b"the table is there")
    own_place.ask("ALTER DATABASE postgres SET synchronous_commit = off")
    own_place.ask("ALTER DATABASE postgres SET client_min_messages = error")
    away()
    sessions.release(store._place.conninfo)
    with sessions.session(store._place.conninfo) as connection:
        assert connection.prepare_threshold is None
    with cancelling(own_place), pytest.raises(Retriable):
        store.put_if_absent(1, b"x")
    with pytest.raises(Retriable):
        store.put_if_absent(2, b"x")


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_a_server_that_was_replaced_is_not_believed_that_its_newest_entry_is_the_newest(
    own_place: Place, away: Callable[[], None]
) -> None:
    """As its standbys follow another one now, which may have more."""
    log = CommitLog.open(own_place.store(), "query")
    away()
    with pytest.raises(Retriable):
        log.verify()
    own_place.require_standbys("")
    answered(TEST_TIMEOUT_S, log.verify)


@pytest.mark.long
@pytest.mark.crash
def test_a_standby_is_not_read_until_it_is_promoted_and_then_has_every_decision(own_place: Place) -> None:
    primary = own_place.server
    with Standby(primary) as standby:
        own_place.require_standbys("standby")
        until(lambda: own_place.ask("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
        log = CommitLog.open(own_place.store(), "query")
        log.decide(FIRST)
        both = f"{primary._folder},{standby._folder}"
        store = own_place.store(host=both)
        alone = own_place.store(host=str(standby._folder))
        with pytest.raises(Retriable, match="read-only"):
            alone.slots()
        assert read_tail(store) == (1, log.tail)
        primary.kill()
        standby.promote()
        assert answered(TEST_TIMEOUT_S, read_tail, store) == (1, log.tail)
        newer = answered(TEST_TIMEOUT_S, CommitLog.open, store, "query")
        assert (newer.incarnation, newer.tail.decided) == (2, 0)


@pytest.mark.long
def test_no_answer_of_a_standby_is_believed_whoever_sent_the_question_there(
    own_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a proxy does that sends reads to standbys. A standby may lack a table, too."""
    with Standby(own_place.server) as standby:
        CommitLog.open(own_place.store(), "query")
        until(lambda: _rows(standby) == 1)
        monkeypatch.setattr("twopc_postgres.log.url.SERVES_CURRENT_READS", ("any",))
        for log in ("public.orders", "public.returns", "nowhere.orders"):
            url = f"{standby.log_url(log)}&target_session_attrs=any"
            store = twopc.open_store(url, password=standby.password)
            for call in (store.slots, lambda: store.read(0), lambda: store.put_if_absent(1, b"x")):  # noqa: B023
                with pytest.raises(Retriable, match="standby has answered"):
                    call()


def _rows(server: PostgresServer) -> int:
    with psycopg.connect(server.conninfo, autocommit=True) as connection, suppress(psycopg.errors.UndefinedTable):
        [(count,)] = connection.execute("SELECT count(*) FROM public.twopc_log")
        return int(count)
    return 0


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_a_driver_that_still_asks_the_old_server_after_a_failover_gets_no_listing(own_place: Place) -> None:
    with Standby(own_place.server) as standby:
        own_place.require_standbys("standby")
        until(lambda: own_place.ask("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
        zombie = CommitLog.open(own_place.store(), "query")
        standby.promote()
        newer = twopc.open_store(standby.log_url("public.orders"), password=standby.password)
        log = answered(TEST_TIMEOUT_S, CommitLog.open, newer, "query")
        log.decide(FIRST)
        with pytest.raises(Retriable):
            zombie.verify()
        with pytest.raises(Retriable):
            own_place.store().slots()
        with pytest.raises(InDoubt):
            zombie.decide(FIRST)
        assert read_tail(newer) == (2, log.tail)


# Servers that can't be used. --------------------------------------------------------------------------------------


def test_a_wrong_password_is_named_as_a_possible_reason_and_a_missing_one_as_the_reason(place: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"password authentication failed.*user, database and password right"):
        CommitLog.open(place.store(password="wrong"), "query")  # noqa: S106  # of nobody
    with pytest.raises(ConfigurationError, match=r"asks for a password, and none was found\. Set PGPASSWORD"):
        CommitLog.open(twopc.open_store(place.url), "query")


@pytest.fixture
def role(place: Place) -> Iterator[tuple[str, str]]:
    """Name and password of a role without rights."""
    name, password = f"role_{place.schema}", uuid.uuid4().hex
    place.ask(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
    yield name, password
    place.ask(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_right_that_is_missing_is_refused_with_what_the_server_says(place: Place, role: tuple[str, str]) -> None:
    user, password = role

    def refused(call: Callable[[PostgresLogStore], object], reason: str) -> None:
        with pytest.raises(ConfigurationError, match=rf"{place.schema}\.orders: permission denied for {reason}"):
            call(place.store(user=user, password=password))

    refused(lambda store: store.slots(), "schema")
    place.ask(f"GRANT USAGE ON SCHEMA {place.schema} TO {user}")
    refused(lambda store: CommitLog.open(store, "query"), "schema")
    place.store().put_if_absent(0, b"the table is there")
    refused(lambda store: store.slots(), "table twopc_log")
    place.ask(f"GRANT SELECT ON {{}} TO {user}")
    refused(lambda store: store.put_if_absent(1, b"x"), "table twopc_log")
    refused(lambda store: list(store.check()), "table twopc_log")
    assert place.store().slots() == [0]
    place.ask(f"GRANT INSERT, UPDATE, DELETE ON {{}} TO {user}")
    store = place.store(user=user, password=password)
    assert {check.result for check in store.check()} == {CheckStatus.PASSED}
    store.put_if_absent(1, b"x")


def test_a_role_that_may_create_the_table_needs_no_other_preparation(place: Place, role: tuple[str, str]) -> None:
    user, password = role
    place.ask(f"GRANT USAGE, CREATE ON SCHEMA {place.schema} TO {user}")
    CommitLog.open(place.store(user=user, password=password), "query").close()


def test_a_role_needs_no_more_than_the_statements_of_the_guide(place: Place, role: tuple[str, str]) -> None:
    user, password = role
    statements, _ = blocks(DOCS / "stores.md", "sql")
    place.ask(re.sub(r"\betl\b", place.schema, statements).replace("writer", user))
    store = place.store(user=user, password=password)
    assert {check.result for check in store.check()} == {CheckStatus.PASSED}
    CommitLog.open(store, "query").close()


def test_a_log_is_copied_and_restored_by_the_statements_of_the_guide(place: Place) -> None:
    store = place.store()
    CommitLog.open(store, "query").close()
    before = [store.read(slot) for slot in store.slots()]
    _, statements = blocks(DOCS / "stores.md", "sql")
    place.ask(re.sub(r"\betl\b", place.schema, statements))
    assert [store.read(slot) for slot in store.slots()] == before
    [(logs,)] = place.ask("SELECT count(DISTINCT log) FROM {}")
    assert logs == 1


def test_a_schema_that_is_not_there_is_named(server: PostgresServer) -> None:
    store = twopc.open_store(server.log_url("nowhere.orders"), password=server.password)
    assert store.slots() == []
    with pytest.raises(ConfigurationError, match=r'schema "nowhere" does not exist.*Create the schema'):
        CommitLog.open(store, "query")


@pytest.mark.parametrize("attributes", ["read-write", "primary"])
def test_a_role_that_may_only_read_is_named_as_a_possible_reason(
    attributes: str, place: Place, role: tuple[str, str]
) -> None:
    user, password = role
    place.ask(f"GRANT USAGE, CREATE ON SCHEMA {place.schema} TO {user}")
    place.ask(f"ALTER ROLE {user} SET default_transaction_read_only = on")
    store = place.store(user=user, password=password, target_session_attrs=attributes)
    with pytest.raises(Retriable, match=r"read-only.*default_transaction_read_only"):
        store.put_if_absent(0, b"x")


def test_a_check_and_another_session_may_create_the_table_at_the_same_moment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = LogTable.create

    def late(table: LogTable, connection: sessions.Connection) -> None:
        CommitLog.open(place.store(), "query")
        create(table, connection)

    def once(table: LogTable, connection: sessions.Connection) -> None:
        monkeypatch.setattr(LogTable, "create", create)
        late(table, connection)

    monkeypatch.setattr(LogTable, "create", once)
    assert {check.result for check in place.store().check()} == {CheckStatus.PASSED}
    assert place.store().slots() == [0]


COLUMNS = "log text, slot numeric(20), entry bytea NOT NULL"


TABLE_OF_LOGS = f"TABLE {{}} ({COLUMNS}, PRIMARY KEY (log, slot))"


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (f"UNLOGGED TABLE {{}} ({COLUMNS}, PRIMARY KEY (log, slot))", "UNLOGGED"),
        ("VIEW {} AS SELECT '' AS log, 1 AS slot, ''::bytea AS entry", "must be an ordinary table"),
        (f"TABLE {{}} ({COLUMNS})", r"no unique or exclusion constraint.*Is it a table \(log text"),
        ("TABLE {} (log text PRIMARY KEY)", r'column "slot".*Is it a table \(log text'),
        (f"{TABLE_OF_LOGS}; CREATE RULE r AS ON INSERT TO {{}} DO ALSO NOTHING", "triggers, rules"),
        (f"{TABLE_OF_LOGS}; ALTER TABLE {{}} ENABLE ROW LEVEL SECURITY", "row security"),
        (
            f"{TABLE_OF_LOGS}; CREATE TRIGGER t AFTER UPDATE ON {{}} EXECUTE FUNCTION tsvector_update_trigger()",
            "triggers",
        ),
    ],
)
def test_another_table_of_the_name_is_refused_before_the_first_entry(
    definition: str, reason: str, place: Place
) -> None:
    place.ask(f"CREATE {definition}")
    for call in (lambda: place.store().put_if_absent(0, b"x"), lambda: list(place.store().check())):
        with pytest.raises(ConfigurationError, match=reason):
            call()
    if "VIEW" not in definition:
        assert place.ask("SELECT count(*) FROM {}") == [(0,)]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (psycopg.errors.FeatureNotSupported, "Is it a table (log text"),
        (psycopg.errors.ObjectNotInPrerequisiteState, "Is it a table (log text"),
        (psycopg.errors.InvalidSchemaName, "Create the schema"),
        (psycopg.errors.InsufficientPrivilege, "Grant this role USAGE"),
    ],
)
def test_a_refused_statement_is_no_unknown_outcome(error: type[psycopg.Error], advice: str) -> None:
    refused = log_request_failed(error("no"), "postgresql://db.example/sales/public.orders")
    assert (type(refused), advice in str(refused)) == (ConfigurationError, True)


RAISES = (
    "CREATE FUNCTION {}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''not today''; END';"
    " CREATE TRIGGER t BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION {}_f()"
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("ALTER TABLE {} ADD CHECK (slot < 1)", "violates check constraint"),
        ("ALTER TABLE {} ADD CONSTRAINT small CHECK (length(entry) < 1) NOT VALID", 'check constraint "small"'),
        ("ALTER TABLE {} ADD COLUMN extra int NOT NULL DEFAULT 0; ALTER TABLE {} ALTER extra DROP DEFAULT", "not-null"),
        ("ALTER TABLE {} ALTER slot TYPE numeric(2, 2) USING slot / 100", "numeric field overflow"),
        (RAISES, "not today"),
    ],
)
def test_a_rule_that_somebody_gives_to_the_table_refuses_a_decision_and_leaves_none_in_doubt(
    change: str, reason: str, place: Place
) -> None:
    log = CommitLog.open(place.store(), "query")
    place.ask(change)
    with pytest.raises(ConfigurationError, match=f"refuses the commit log.*{reason}.*This request changed nothing"):
        log.decide(FIRST)
    assert place.ask("SELECT count(*) FROM {}") == [(1,)]


def test_a_table_that_is_dropped_while_the_query_runs_stops_it(place: Place) -> None:
    log = CommitLog.open(place.store(), "query")
    place.ask("DROP TABLE {}")
    with pytest.raises(ConfigurationError, match=r"refuses the commit log .* does not exist.*restore it from a"):
        log.decide(FIRST)


# Checks, the command, and secrets. --------------------------------------------------------------------------------


def test_a_check_passes_and_leaves_nothing(place: Place) -> None:
    before = place.ask("SELECT * FROM pg_tables WHERE schemaname = %s", place.schema)
    for _ in range(2):
        found = list(place.store().check())
        assert [check.result for check in found] == [CheckStatus.PASSED] * 3
    assert place.ask("SELECT * FROM pg_tables WHERE schemaname = %s", place.schema) == before
    CommitLog.open(place.store(), "query")
    list(place.store().check())
    assert place.ask("SELECT log, slot FROM {}") == [("orders", 0)]


@pytest.mark.long
def test_a_server_that_loses_what_it_acknowledged_is_warned_of() -> None:
    with PostgresServer(fsync="off") as server:
        store = twopc.open_store(server.log_url("orders"), password=server.password)
        assert isinstance(store, PostgresLogStore)
        [warned] = [check for check in store.check() if check.result is not CheckStatus.PASSED]
        assert (warned.result, "set both on" in warned.advice) == (CheckStatus.WARNING, True)


@pytest.mark.long
def test_a_server_that_waits_for_none_of_its_standbys_is_warned_of(own_place: Place) -> None:
    with Standby(own_place.server):
        until(lambda: own_place.ask("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"))
        [warned] = [check for check in own_place.store().check() if check.result is not CheckStatus.PASSED]
        assert "set synchronous_standby_names" in warned.advice


@pytest.mark.parametrize(
    ("names", "may_spare"),
    [
        ("", False),
        ("standby", False),
        ("FIRST 1 (one)", False),
        ("ANY 2 (one, two)", False),
        ('2 ("one, with a comma", two)', False),
        ("one, two", True),
        ("first 1 (one, two)", True),
        ("ANY 2 (one, two, three)", True),
        ("*", True),
        ("1 (*)", True),
    ],
)
def test_standbys_that_need_not_acknowledge_are_found(names: str, may_spare: bool) -> None:
    assert may_spare_a_standby(names) is may_spare


@pytest.mark.long
def test_a_server_that_can_commit_without_one_of_its_named_standbys_is_warned_of(own_place: Place) -> None:
    with Standby(own_place.server):
        own_place.require_standbys("ANY 1 (standby, other)")
        until(lambda: own_place.ask("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'quorum'"))
        [warned] = [check for check in own_place.store().check() if check.result is not CheckStatus.PASSED]
        assert (warned.check, "fence the old server" in warned.advice) == ("synchronous replication", True)


def test_a_query_and_the_command_use_the_log_by_its_url(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.setenv("PGPASSWORD", place.server.password)
    sink = twopc.testing.MemorySink(twopc.testing.MemoryTarget())
    with twopc.Coordinator({"sink": sink}, place.url, owner="query") as coordinator:
        coordinator.run(0, lambda _: [])
    assert _run("status", place.url) == 0
    shown = capsys.readouterr().out
    assert f"{place.schema}.orders" in shown
    assert "last decided batch  0" in shown
    sinks = tmp_path / "sinks.toml"
    sinks.write_text(f'[archive]\nbackend = "files"\npath = "{tmp_path}/orders"\n')
    assert _run("doctor", "--sinks", str(sinks), "--log", place.url) == 0
    shown += capsys.readouterr().out
    assert re.search(r"put-if-absent +passed +tried in a transaction that was rolled back", shown)
    assert place.server.password not in shown


def _run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        cli(arguments)
    return ended.value.code


def test_no_secret_is_in_what_is_shown_or_written(place: Place) -> None:
    """The password is in the connection string, where a repr or an error that shows it would repeat it."""
    store = place.store()
    assert place.server.password in store._place.conninfo
    CommitLog.open(store, "query")
    wrong = place.store(user="nobody")
    with pytest.raises(TwoPhaseCommitError) as told:
        CommitLog.open(wrong, "query")
    with pytest.raises(ConfigurationError) as refused:
        place.store(nonsense=place.server.password)
    errors = ["".join(traceback.format_exception(raised.value)) for raised in (told, refused)]
    shown = [repr(store), str(store), f"{vars(store)}", store.url, store.read(0).decode(), *errors]
    assert [text for text in shown if place.server.password in text] == []


def test_a_store_travels_to_another_process_with_its_options(place: Place) -> None:
    place.store().put_if_absent(0, b"x")
    assert pickle.loads(pickle.dumps(place.store())).read(0) == b"x"  # noqa: S301  # our own bytes
