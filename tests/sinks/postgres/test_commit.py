"""What becomes of a decided transaction, by what the server says of it (invariants 2, 5 and 6)."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

import twopc
from tests.support.postgres_server import PostgresServer
from twopc import Committable, Coordinator, Participant, Round
from twopc.errors import (
    ConfigurationError,
    CorruptLog,
    OperatorRequired,
    OutcomeUnknown,
    RecordRefused,
    Retriable,
    RoundAborted,
    TransactionLost,
)
from twopc.events import CallRetried, Event, PhaseEntered
from twopc.phases import Phase
from twopc_postgres import PostgresSink, sessions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.sinks.postgres.conftest import Place
    from twopc.participant import Vote


def by_hand(place: Place, verb: str, committable: Committable) -> None:
    place.ask(sql.SQL(f"{verb} PREPARED {{}}").format(committable.transaction_id).as_string())


def test_a_transaction_that_was_rolled_back_by_hand_is_lost_and_told_with_its_records(place: Place) -> None:
    place.sink().commit(place.pre_commit(["before"], Round(1, 0)))
    committable = place.pre_commit(["a", "b"], Round(1, 1))
    by_hand(place, "ROLLBACK", committable)
    with pytest.raises(TransactionLost, match=r"\(2 records\).*is not prepared and has no marker"):
        place.sink().commit(committable)


@pytest.mark.parametrize("statement", ["DROP TABLE {markers}", "TRUNCATE {markers}"])
def test_a_committed_transaction_whose_marker_was_removed_is_not_called_lost(statement: str, place: Place) -> None:
    committables = [place.pre_commit(["a"], Round(1, batch_id)) for batch_id in range(2)]
    sink = place.sink()
    for committable in committables:
        sink.commit(committable)
    place.ask(statement)
    with pytest.raises(OutcomeUnknown, match=r"Check whether its records are in|does not report whether"):
        sink.commit(committable)
    with pytest.raises(OutcomeUnknown, match="Check whether its records are in"):
        place.sink().commit(committable)  # a new process, which makes the table anew


def test_a_batch_without_records_leaves_the_newest_markers(place: Place) -> None:
    sink = place.sink()
    sink.commit(place.pre_commit(["a"], Round(1, 0)))
    sink.complete(1, [])
    committable = place.pre_commit(["b"], Round(1, 2))
    by_hand(place, "ROLLBACK", committable)
    with pytest.raises(TransactionLost):
        sink.commit(committable)


def test_what_was_committed_since_the_markers_were_removed_proves_nothing_of_its_batch(place: Place) -> None:
    committables = [place.pre_commit(["a"], partition=partition) for partition in range(2)]
    sink = place.sink()
    sink.commit(committables[0])
    place.ask("DELETE FROM {markers}")
    sink.commit(committables[1])
    with pytest.raises(OutcomeUnknown):
        sink.commit(committables[0])


def test_a_transaction_that_was_committed_by_hand_is_committed(place: Place) -> None:
    committable = place.pre_commit(["a", "b"])
    by_hand(place, "COMMIT", committable)
    place.sink().commit(committable)
    assert place.values() == ["a", "b"]


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


def test_a_transaction_is_not_decided_when_it_is_not_prepared_any_more(place: Place) -> None:
    committables = [place.pre_commit(["a"], partition=partition) for partition in range(2)]
    by_hand(place, "ROLLBACK", committables[1])
    with pytest.raises(RoundAborted, match="but no longer is"):
        place.sink().seal(committables, age_s=0)


def test_markers_are_kept_while_their_commit_may_be_repeated_and_then_removed(place: Place) -> None:
    sink = place.sink()
    for batch_id in range(3):
        committable = place.pre_commit(["a"], Round(1, batch_id))
        for _ in range(2):  # a crash after its completion, before the log has noted that
            sink.commit(committable)
            sink.complete(batch_id, [committable])
    kept = place.ask("SELECT batch_id FROM {markers}")
    assert kept == [(2,)]


def test_what_another_query_has_prepared_is_refused_and_stays(place: Place) -> None:
    with Participant({"orders": (theirs := place.sink("other"))}, Round(1, 0), partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": ["a"]}))
        committable = participant.pre_commit()["orders"]
    for refuse in (place.sink().commit, place.sink().abort):
        with pytest.raises(CorruptLog, match=r"which is none of .*Nothing was touched"):
            refuse(committable)
    assert place.prepared() == [committable.transaction_id]
    theirs.commit(committable)
    assert place.values() == ["a"]


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


def test_a_commit_that_another_process_has_under_way_is_repeated_and_comes_to_one_result(place: Place) -> None:
    committables = [place.pre_commit([f"{n}"], partition=n) for n in range(5)]

    def commit_all() -> None:
        for committable in committables:
            while True:
                try:
                    place.sink().commit(committable)
                    break
                except Retriable:
                    continue

    threads = [threading.Thread(target=commit_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.values() == ["0", "1", "2", "3", "4"]


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
    with pytest.raises(RoundAborted, match="current transaction is aborted"):
        sink.pre_commit(transaction)
    sink.discard(transaction)
    assert place.prepared() == []


def test_what_was_prepared_is_rolled_back_by_its_task_when_another_sink_of_it_votes_no(place: Place) -> None:
    participant = Participant({"orders": place.sink()}, Round(1, 0), partition=0)
    participant.write("orders", pa.record_batch({"value": ["a"]}))
    participant.pre_commit()
    with pytest.raises(RuntimeError), participant:
        raise RuntimeError("the next sink could not")
    assert place.prepared() == []


# The server ends, and comes back. ---------------------------------------------------------------------------------


class KillsTheServer:
    """As a batch is decided. It starts again when a commit had no answer."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        match event:
            case PhaseEntered(Phase.COMMITTING, 1):
                self.server.kill()
            case CallRetried():
                self.server.start()
            case _:
                pass


@pytest.mark.crash
def test_a_server_that_is_killed_between_decision_and_commit_costs_nothing(
    place: Place, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    sink = place.unbound()

    def phase_one(round: Round) -> Iterator[Vote]:
        for partition in range(3):
            with Participant({"orders": sink}, round, partition=partition) as participant:
                participant.write("orders", pa.record_batch({"value": [f"{round.batch_id}-{partition}"]}))
                yield participant.pre_commit()

    observer = KillsTheServer(postgres_server)
    twopc.register_observer(observer)
    try:
        # One at a time, on this thread: with the thread that starts it the server ends.
        with Coordinator({"orders": sink}, str(tmp_path / "log"), owner="query", commits_at_once=1) as coordinator:
            coordinator.run(0, phase_one)
            finished = coordinator.run(1, phase_one)
    finally:
        twopc.unregister_observer(observer)
    assert finished.retries > 0
    assert place.values() == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]
    assert place.prepared() == []


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


def test_a_server_that_prepares_no_transactions_is_refused_and_told_what_to_set() -> None:
    with PostgresServer() as server:
        sink = PostgresSink({"conninfo": server.conninfo, "table": "orders"})
        sink.bind("orders", "log")
        with pytest.raises(
            ConfigurationError, match=r"max_prepared_transactions is 0.* Set it to at least twice the number of tasks"
        ):
            sink.open()
        sink.close()


def test_a_task_for_which_the_server_has_no_room_says_which_setting_to_raise(place: Place) -> None:
    [(room,)] = place.ask("SHOW max_prepared_transactions")
    for partition in range(int(room)):
        place.pre_commit(["a"], partition=partition)
    with pytest.raises(RoundAborted, match="Raise max_prepared_transactions"):
        place.pre_commit(["a"], partition=int(room))


def test_a_name_that_is_too_long_for_the_server_is_refused(place: Place) -> None:
    sink = place.unbound()
    sink.bind("o" * 120, "log")
    with pytest.raises(ConfigurationError, match="a shorter name"):
        sink.open()
