"""What becomes of a decided transaction, by what the server says of it (invariants 2, 5 and 6)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from tests.sinks.prepared_contract import PreparedContract
from tests.support.postgres_server import PostgresServer
from twopc import Committable, Participant, Round
from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    RecordRefused,
    Retriable,
    RoundAborted,
)
from twopc_postgres import PostgresSink, sessions

if TYPE_CHECKING:
    from tests.sinks.postgres.conftest import Place


class TestPrepared(PreparedContract):
    pass


def test_a_committed_transaction_is_found_when_table_names_another_schema_since(place: Place) -> None:
    """Its schema has markers, too, so the transaction would count as lost."""
    other = f"other_{place.schema}"
    place.ask(f"CREATE SCHEMA {other}; CREATE TABLE {other}.orders (value text)")
    before = place.pre_commit(["a"], Round(1, 0), table=f"{other}.orders")
    committable = place.pre_commit(["b"], Round(1, 1))
    sink = place.sink(table=f"{other}.orders")
    for each in (before, committable, committable):
        sink.commit(each)
    place.ask(f"DROP SCHEMA {other} CASCADE")
    assert place.values() == ["b"]


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


@pytest.mark.parametrize("upsert_by", ["", "value"])
def test_the_rights_of_the_readme_suffice(upsert_by: str, place: Place) -> None:
    role, password = place.schema, uuid.uuid4().hex
    place.sink()  # creates the marker table
    place.ask("CREATE UNIQUE INDEX ON {} (value)")
    place.ask(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
    place.ask(f"GRANT USAGE{', CREATE' if upsert_by else ''} ON SCHEMA {place.schema} TO {role}")
    place.ask(f"GRANT INSERT{', SELECT, UPDATE' if upsert_by else ''} ON {{}} TO {role}")
    place.ask(f"GRANT SELECT, INSERT, DELETE ON {{markers}} TO {role}")
    own = psycopg.conninfo.make_conninfo(place.server.conninfo, user=role, password=password)
    try:
        sink = place.sink(conninfo=own)
        committable = place.pre_commit(["a"], conninfo=own, upsert_by=upsert_by)
        left = place.pre_commit(["b"], partition=1, conninfo=own, upsert_by=upsert_by)
        place.sink(conninfo=own, upsert_by=upsert_by).validate(pa.schema([("value", pa.string())]))
        assert {found.transaction_id for found in sink.recover()} == {committable.transaction_id, left.transaction_id}
        sink.abort(left)
        for _ in range(2):
            sink.commit(committable)
        sink.complete(0, [committable])
        sink.close()
        assert place.values() == ["a"]
    finally:
        place.ask(f"DROP OWNED BY {role}; DROP ROLE {role}")


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


def test_a_task_whose_connection_is_lost_votes_no_and_leaves_nothing(place: Place) -> None:
    participant = Participant({"orders": place.sink()}, Round(1, 0), partition=0)
    participant.write("orders", pa.record_batch({"value": ["a"]}))
    live = participant._transactions["orders"]
    place.ask("SELECT pg_terminate_backend(%s)", live.connection.info.backend_pid)  # type: ignore[attr-defined]
    with pytest.raises(RoundAborted), participant:
        participant.pre_commit()
    assert place.prepared() == []
    assert place.values() == []


def test_a_transaction_in_which_a_write_has_failed_can_not_be_prepared(place: Place) -> None:
    place.create("value uuid")
    sink = place.sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    with pytest.raises(RecordRefused, match="InvalidTextRepresentation"):
        sink.write(transaction, pa.record_batch({"value": ["no uuid"]}))
    with pytest.raises(RoundAborted, match="lacks the records of a failed write"):
        sink.pre_commit(transaction)
    sink.discard(transaction)
    assert place.prepared() == []


# The server ends, and comes back. ---------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_asked_again(place: Place) -> None:
    gone = psycopg.conninfo.make_conninfo(place.server.conninfo, port=1)
    sink = place.unbound(conninfo=gone)
    sink.bind("orders", "log")
    with pytest.raises(Retriable, match=r"is decided: PostgreSQL gave no answer: .*failed"):
        sink.commit(Committable(f"{place.prefix}.log.orders.1.0.0.0.0", {}, 1))


def test_no_connection_is_kept_after_a_sink_is_closed(place: Place) -> None:
    sink = place.sink()
    assert sessions._idle.to(sink._options.conninfo)
    sink.close()
    assert not sessions._idle.to(sink._options.conninfo)


# Before anything is written. --------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_server_that_prepares_no_transactions_is_refused_and_told_what_to_set() -> None:
    with PostgresServer() as server:
        sink = PostgresSink({"conninfo": server.conninfo, "table": "orders"})
        sink.bind("orders", "log")
        with pytest.raises(
            ConfigurationError, match=r"max_prepared_transactions is 0.* Set it to at least twice the number of tasks"
        ):
            sink.open()
        sink.close()


def test_a_task_for_which_the_server_has_no_room_says_which_setting_to_raise(own_place: Place) -> None:
    [(room,)] = own_place.ask("SHOW max_prepared_transactions")
    for partition in range(int(room)):
        own_place.pre_commit(["a"], partition=partition)
    with pytest.raises(RoundAborted, match="Raise max_prepared_transactions"):
        own_place.pre_commit(["a"], partition=int(room))
