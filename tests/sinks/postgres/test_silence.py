"""A server that is asked and says nothing: it is stopped, waits for a standby that is away, or for a lock. The
coordinator takes its statement for unanswered and repeats it, and calls nothing committed that a failover can take back
(invariants 2 and 6)."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import psycopg
import pytest

from tests.sinks.postgres.conftest import Place
from tests.support.kills import all_of
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import until
from twopc import Committable, Round
from twopc.errors import Retriable, RoundAborted
from twopc.testing.query import answered
from twopc_postgres import server, sessions


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr(sessions, "LOCK_TIMEOUT_S", 0.2)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer(max_prepared_transactions=10) as server:
        yield server


@pytest.fixture
def own_place(own_server: PostgresServer) -> Place:
    place = Place(own_server, "silent", "silent")
    place.ask("CREATE SCHEMA silent; CREATE TABLE {} (value text)")
    return place


@pytest.fixture
def away(own_place: Place) -> Callable[[], None]:
    """From its call on the server waits for a standby that is not there."""

    def leave() -> None:
        own_place.ask("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        own_place.ask("SELECT pg_reload_conf()")
        until(lambda: waits_for_standbys(own_place))  # sessions know the setting before they keep to it

    return leave


def come_back(place: Place) -> None:
    place.ask("ALTER SYSTEM SET synchronous_standby_names = ''")
    place.ask("SELECT pg_reload_conf()")


def waiting(place: Place) -> list[int]:
    """The sessions that wait for a standby."""
    return [pid for (pid,) in place.ask("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")]


@contextmanager
def waits_are_cancelled(place: Place) -> Iterator[None]:
    """Cancel each wait for a standby, as an operator does who sees it."""
    has_ended = threading.Event()

    def cancel() -> None:
        while not has_ended.wait(0.02):
            for pid in waiting(place):
                place.ask("SELECT pg_cancel_backend(%s)", pid)

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def waits_for_standbys(place: Place) -> bool:
    """Whether a commit waits."""
    with waits_are_cancelled(place), sessions.connect(place.server.conninfo, autocommit=True) as connection:
        server.prove_current(connection)
        return bool(connection.unreplicated)


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_a_commit_that_a_stopped_server_does_not_answer_is_repeated(
    own_place: Place, own_server: PostgresServer
) -> None:
    committable = own_place.pre_commit(["a"])
    sink = own_place.sink()
    stopped = all_of(own_server._process)  # type: ignore[arg-type]  # it runs
    for process in stopped:
        with suppress(psutil.NoSuchProcess):  # the server's workers come and go
            process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(Retriable, match="wait timeout expired"):
            sink.commit(committable)
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
    answered(30, sink.commit, committable)  # the session that was stopped may still be ending it
    assert own_place.values() == ["a"]


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_a_commit_that_waits_for_an_absent_standby_is_in_doubt_until_it_is_back(
    own_place: Place, away: Callable[[], None]
) -> None:
    committable = own_place.pre_commit(["a"])
    sink = own_place.sink()
    away()
    with pytest.raises(Retriable, match="wait timeout expired"):
        sink.commit(committable)
    with pytest.raises(Retriable, match=r"is busy.* bring the standby back"):
        sink.commit(committable)
    assert own_place.values() == []
    own_place.ask("SELECT pg_terminate_backend(%s)", *waiting(own_place))
    until(lambda: own_place.prepared() == [])
    for _ in range(2):
        with pytest.raises(Retriable, match="wait timeout expired"):
            sink.commit(committable)  # its marker is there, on this server alone
        until(lambda: not waiting(own_place))  # and no session is left behind
    come_back(own_place)
    sink.commit(committable)
    assert own_place.values() == ["a"]


@pytest.mark.variants
@pytest.mark.parametrize(
    "setting",
    [
        *("", "synchronous_commit = local"),
        pytest.param("client_min_messages = error", marks=pytest.mark.long),
        pytest.param("statement_timeout = 300", marks=pytest.mark.long),
    ],
)
def test_a_commit_whose_wait_for_a_standby_was_cancelled_is_in_doubt(
    setting: str, own_place: Place, away: Callable[[], None]
) -> None:
    committable = own_place.pre_commit(["a"])
    if setting:
        own_place.ask(f"ALTER DATABASE postgres SET {setting}")
    sink = own_place.unbound()
    sink.bind("orders", "log")
    away()
    for _ in range(2):
        refused = pytest.raises(Retriable, match=r"canceling (wait for synchronous replication|statement)")
        with waits_are_cancelled(own_place), refused:
            sink.commit(committable)
    come_back(own_place)
    sink.commit(committable)
    assert own_place.values() == ["a"]


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_a_server_that_was_replaced_is_not_believed_that_a_transaction_is_lost(
    own_place: Place, away: Callable[[], None]
) -> None:
    sink = own_place.sink()
    sink.commit(own_place.pre_commit(["before"], Round(1, 0)))
    away()  # as is the standby that was promoted, and has the transaction
    with pytest.raises(Retriable, match="wait timeout expired"):
        sink.commit(Committable(f"{own_place.prefix}.log.orders.1.1.0.0.0", {}, 1))


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_a_task_whose_wait_for_a_standby_was_cancelled_votes_no(own_place: Place, away: Callable[[], None]) -> None:
    own_place.sink()  # creates the marker table
    away()
    refused = pytest.raises(RoundAborted, match="canceling wait for synchronous replication")
    with waits_are_cancelled(own_place), refused:
        own_place.pre_commit(["a"])


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_a_coordinator_that_needs_a_locked_table_is_told_and_repeats(place: Place) -> None:
    committable: Committable = place.pre_commit(["a"])
    sink = place.sink()
    sink.commit(committable)
    with psycopg.connect(place.server.conninfo) as other:
        other.execute(f"LOCK TABLE {place.schema}.twopc_committed")
        with pytest.raises(Retriable, match="lock timeout"):
            sink.commit(committable)
    sink.commit(committable)
