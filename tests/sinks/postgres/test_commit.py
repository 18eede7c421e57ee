"""What becomes of a decided transaction, by what the server says of it (invariants 2, 5 and 6)."""

import uuid

import psycopg
import pytest

from tests.sinks.postgres.conftest import Place
from tests.sinks.prepared_contract import PreparedContract
from tests.support.advice import told
from twopc import Round
from twopc.errors import OperatorRequired, RoundAborted


class TestPrepared(PreparedContract):
    pass


def test_what_another_role_prepared_is_neither_committed_nor_called_lost(place: Place) -> None:
    committable = place.pre_commit(["a"])
    password = uuid.uuid4().hex
    place.ask(f"CREATE ROLE {place.schema} LOGIN PASSWORD '{password}'")
    try:
        other = psycopg.conninfo.make_conninfo(place.server.conninfo, user=place.schema, password=password)
        sink = place.unbound(conninfo=other)
        sink.bind("orders", "log")
        with pytest.raises(OperatorRequired, match="permission denied to finish prepared transaction"):
            sink.commit(committable)
        assert len(place.prepared()) == 1
        sink.close()
    finally:
        place.ask(f"DROP ROLE {place.schema}")


def test_what_is_prepared_in_another_database_is_neither_committed_nor_called_lost(place: Place) -> None:
    committable = place.pre_commit(["a"])
    other = psycopg.conninfo.make_conninfo(place.server.conninfo, dbname="template1")
    sink = place.unbound(conninfo=other)
    sink.bind("orders", "log")
    try:
        assert list(sink.recover()) == []
        with pytest.raises(OperatorRequired, match="belongs to another database"):
            sink.commit(committable)
    finally:
        sink.close()
    assert len(place.prepared()) == 1


def test_what_somebody_prepared_by_hand_is_not_ours(place: Place) -> None:
    place.ask(f"BEGIN; PREPARE TRANSACTION '{place.prefix}.log.orders.by-hand'")
    assert list(place.sink().recover()) == []


# Before anything is written. --------------------------------------------------------------------------------------


def test_a_task_for_which_the_server_has_no_room_says_which_setting_to_raise(own_place: Place) -> None:
    [(room,)] = own_place.ask("SHOW max_prepared_transactions")
    for partition in range(int(room)):
        own_place.pre_commit(["a"], partition=partition)
    with pytest.raises(RoundAborted, match="Raise max_prepared_transactions"):
        own_place.pre_commit(["a"], partition=int(room))


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.advice("Raise max_prepared_transactions on the server")
def test_a_task_has_room_when_the_setting_was_raised(own_place: Place) -> None:
    settings = own_place.server._settings
    before = settings["max_prepared_transactions"]
    left = [own_place.pre_commit(["a"], partition=partition) for partition in range(int(before))]
    with pytest.raises(RoundAborted) as aborted:
        own_place.pre_commit(["a"], partition=int(before))
    settings[told(aborted.value, r"Raise (\w+) on the server")[1]] = 2 * int(before)
    own_place.unbound().close()  # its connections to the server that ends
    own_place.server.kill()
    own_place.server.start()
    own_place.sink().commit(own_place.pre_commit(["b"], Round(2, 0)))
    assert own_place.values() == ["b"]
    for each in left:
        own_place.sink().abort(each)
    settings["max_prepared_transactions"] = before
    own_place.server.kill()
    own_place.server.start()


@pytest.mark.advice("PostgreSQL refuses")
def test_a_role_goes_on_when_it_was_granted_the_right_that_it_lacked(place: Place) -> None:
    place.sink()  # makes the table of the markers
    with place.user() as (location, grant):
        grant("INSERT ON {}")
        grant("SELECT, INSERT ON {markers}")
        sink = place.bound(conninfo=location)
        committable = place.vote(["a"], sink=sink)
        sink.commit(committable)
        with pytest.raises(
            OperatorRequired, match=r"PostgreSQL refuses: .*twopc_committed.* Grant this role the rights"
        ):
            sink.complete(0, [committable])
        grant("DELETE ON {markers}")
        sink.complete(0, [committable])
    assert place.values() == ["a"]


@pytest.mark.long
def test_prepared_transactions_are_counted_with_the_age_of_the_oldest(place: Place) -> None:
    sink = place.sink()
    assert sink.open_transactions().count == 0
    assert sink.open_transactions().oldest_s == 0
    written = [place.pre_commit(["a"], partition=partition) for partition in (0, 1)]
    first = sink.open_transactions()
    second = sink.open_transactions()
    assert first.count == len(written)
    assert first.oldest_s is not None
    assert second.oldest_s is not None
    assert 0 < first.oldest_s < second.oldest_s < 60
    assert second.timeout_s is None
    sink.abort(written[0])
    assert sink.open_transactions().count == 1


def test_alter_table_waits_for_a_prepared_transaction_and_changes_the_table_when_that_is_committed(
    place: Place,
) -> None:
    committable = place.pre_commit(["a"])
    with psycopg.connect(place.server.conninfo, autocommit=True) as operator:
        operator.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            operator.execute(f"ALTER TABLE {place.table} ADD COLUMN note text")
        place.sink().commit(committable)
        operator.execute(f"ALTER TABLE {place.table} ADD COLUMN note text")
    assert place.values() == ["a"]


def test_what_the_driver_may_not_end_is_not_decided_and_still_listed(place: Place) -> None:
    """The tasks have logged in as somebody else, such as by a password file of their own."""
    place.sink()  # creates the marker table
    vote = place.pre_commit(["a"])
    with place.user() as (location, grant):
        grant("SELECT ON {markers}")
        driver = place.sink(conninfo=location)
        with pytest.raises(RoundAborted, match="or as different users"):
            driver.seal([vote], age_s=0)
        assert [each.transaction_id for each in driver.recover()] == [vote.transaction_id]
        assert driver.open_transactions().count == 1
    assert place.sink().seal([vote], age_s=0) == [vote]
