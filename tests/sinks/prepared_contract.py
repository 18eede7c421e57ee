"""What every sink of a database keeps that prepares a transaction under a name, by what the server reports of it. A
sink's own modules subclass the contracts, beside the fixtures ``place`` and ``own_place``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pytest

import twopc
from tests.support.advice import Query, told
from tests.support.killed_writer import AFTER, BEFORE, VALUES, killed_writer
from tests.support.lag import require_each_time_behind_measured_by_itself
from tests.support.phase_one import writes
from tests.support.sink_place import ROUND, SinkPlace, Written, from_log
from twopc import CheckResult, Committable, Coordinator, Participant, Round
from twopc.checks import CheckStatus
from twopc.errors import (
    ConfigurationError,
    CorruptLog,
    OutcomeUnknown,
    RecordRefused,
    Retriable,
    RoundAborted,
    SchemaMismatch,
    TransactionLost,
)
from twopc.events import CallRetried, Event, PhaseEntered
from twopc.participant import Vote
from twopc.phases import Phase
from twopc.prepared import MarkedTable, PreparedSink
from twopc.testing import KeyedSinkContract, SinkContract

PreparedSinkT = TypeVar("PreparedSinkT", bound=PreparedSink[Any, Any])


class PreparedPlace(SinkPlace[PreparedSinkT]):
    """A table ``orders`` of one test, with the one column ``value``.

    Attributes:
        backend: the name of the backend.
        prefix: what the names of the test's transactions start with: tests share a server.
    """

    backend: ClassVar[str]
    server: Any
    prefix: str

    @property
    def table(self) -> str:
        """The table's qualified name."""
        raise NotImplementedError

    @property
    def sink_class(self) -> type[PreparedSinkT]:
        raise NotImplementedError

    def reach(self, user: str = "", password: str = "", **others: Any) -> str:
        """The value of the option that says which server it is, for another user, or a wrong password."""
        raise NotImplementedError

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What another session sees."""
        raise NotImplementedError

    def create(self, columns: str) -> None:
        """Make another table of it."""
        raise NotImplementedError

    def prepared(self) -> list[str]:
        """The names of all transactions of this test that are prepared."""
        raise NotImplementedError

    def by_hand(self, verb: str, committable: Committable) -> None:
        """End a transaction, as an operator may."""
        raise NotImplementedError

    def other(self) -> AbstractContextManager[PreparedPlace[PreparedSinkT]]:
        """A place beside this one, on the same server."""
        raise NotImplementedError

    def user(self, *, makes_tables: bool = False) -> AbstractContextManager[tuple[str, Callable[[str], object]]]:
        """A user without rights: the value of the option by which a sink connects as them, and what grants a right."""
        raise NotImplementedError

    def end_session(self, connection: Any) -> None:
        raise NotImplementedError

    def idle(self, sink: PreparedSinkT) -> Sequence[Any]:
        """The connections that this process keeps for a sink."""
        raise NotImplementedError

    @property
    def options(self) -> dict[str, str]:
        return {self.sink_class._server_option: self.reach(), "table": self.table}

    @property
    def password(self) -> str:
        return str(self.server.password)

    def as_reached(self, location: str) -> dict[str, Any]:
        return {self.sink_class._server_option: location}

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What another session sees. ``{}`` stands for the table, ``{markers}`` for that of the markers."""
        markers = f"{self.table.partition('.')[0]}.twopc_committed"
        return self.run(statement.replace("{}", self.table).replace("{markers}", markers), *values)

    def values(self) -> list[str]:
        """The ``value`` of every row that a reader sees, sorted."""
        return [value for (value,) in self.ask("SELECT value FROM {} ORDER BY value")]

    def rows(self) -> list[tuple[Any, ...]]:
        return self.ask("SELECT id, value FROM {} ORDER BY id")

    def marked(self) -> list[tuple[int]]:
        """The batch of every marker. Whatever else a sink keeps in that table has no scope."""
        return self.ask("SELECT batch_id FROM {markers} WHERE scope <> ''")

    def unbound(self, **options: Any) -> PreparedSinkT:
        """A new sink. Empty options are left out."""
        given = {name: value for name, value in options.items() if value != ""}
        sink = self.sink_class({**self.options, **given})
        sink.prefix = self.prefix
        return sink

    def pre_commit(self, records: Written, round: Round = ROUND, partition: int = 0, **options: Any) -> Committable:
        """What a participant that is gone has pre-committed, read back from a log."""
        return from_log(self.vote(records, round, partition, self.sink(**options)))

    def begun(self, *records: Mapping[str, Any], partition: int = 0, **options: Any) -> tuple[PreparedSinkT, Any]:
        """A task that is alive, and its transaction."""
        sink = self.sink(**options)
        transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), partition))
        for each in records:
            sink.write(transaction, pa.record_batch(each))
        return sink, transaction

    def deleted(self, keys: Mapping[str, Any], round: Round = ROUND, **options: Any) -> Committable:
        """What a participant has pre-committed that deletes rows."""
        with Participant({"orders": self.sink(**options)}, round, partition=0) as participant:
            participant.delete("orders", pa.record_batch(keys))
            return participant.pre_commit()["orders"]


class KillsTheServer:
    """As a batch is decided. It starts again when a commit had no answer."""

    def __init__(self, server: Any) -> None:
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


class PreparedContract:
    """Subclass it, and name the class ``Test…``."""

    @pytest.mark.variants
    @pytest.mark.advice(
        ", but it is not prepared and has no marker in", "It belongs to the first batch, or the markers were removed"
    )
    @pytest.mark.parametrize("before", [["before"], []])
    def test_a_transaction_that_was_rolled_back_by_hand_is_given_up_as_the_message_says(
        self, before: list[str], place: Any, tmp_path: Path
    ) -> None:
        """After the first batch it is lost. Of the first batch nothing shows that its marker was not removed."""
        query = Query(tmp_path, place.backend, place.options)
        for batch_id, value in enumerate(before):
            query.run(batch_id, value)
        query.decide(len(before), "a", "b")
        place.by_hand("ROLLBACK", *query.decided())
        error = query.stops(len(before), ", but it is not prepared and has no marker in")
        assert type(error) is (TransactionLost if before else OutcomeUnknown)
        assert before or "It belongs to the first batch, or the markers were removed" in error.message
        told(error, r"\(2 records\) .* make sure that its records are not in the table")
        assert place.values() == before
        query.abandon(error)
        query.run(len(before) + 1, "next")
        assert place.values() == [*before, "next"]

    @pytest.mark.advice("it has lost a commit, or the table was restored")
    def test_a_database_that_was_restored_while_the_query_was_stopped_gets_a_batch_when_its_marker_is_set(
        self, place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("twopc.failures.STALE_S", 0.3)  # it may be behind until then
        query, copy = Query(tmp_path, place.backend, place.options), f"{place.table}_copy"
        query.run(0, "a")
        place.ask(f"CREATE TABLE {copy} AS SELECT * FROM {{markers}}")  # noqa: S608  # our own name
        query.run(1, "b")
        for statement in ("DELETE FROM {} WHERE value = 'b'", "DELETE FROM {markers}"):
            place.ask(statement)
        place.ask(f"INSERT INTO {{markers}} SELECT * FROM {copy}")  # noqa: S608
        error = query.stops(2, "the table was restored")
        told(error, r"had batch 1 of this query, and (\W)\S+\1\.\1twopc_committed\1 shows batch 0")
        place.ask(told(error, r"run (INSERT INTO .*), and start again")[1])
        query.run(2, "c")
        assert place.values() == ["a", "c"]

    def test_a_server_that_was_behind_is_asked_again_before_a_batch_is_called_lost(
        self, place: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As a replica that takes over meanwhile."""
        sink, answers = place.bound(), [0, 1]
        sink.last_batch_id = 1
        monkeypatch.setattr(MarkedTable, "newest", lambda *_: answers.pop(0))
        sink.open()
        assert answers == []

    def test_each_time_that_a_server_is_behind_is_measured_by_itself(
        self, place: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def shows(found: Callable[..., int]) -> None:
            monkeypatch.setattr(MarkedTable, "newest", found)

        require_each_time_behind_measured_by_itself(place.bound(), shows, monkeypatch)

    @pytest.mark.parametrize("statement", ["DROP TABLE {markers}", "TRUNCATE {markers}"])
    def test_a_committed_transaction_whose_marker_was_removed_is_not_called_lost(
        self, statement: str, place: Any
    ) -> None:
        committables = [place.pre_commit(["a"], Round(1, batch_id)) for batch_id in range(2)]
        sink = place.sink()
        for committable in committables:
            sink.commit(committable)
        place.ask(statement)
        with pytest.raises(OutcomeUnknown, match=r"Check whether its records are in|does not report whether"):
            sink.commit(committables[1])
        with pytest.raises(OutcomeUnknown, match="Check whether its records are in"):
            place.sink().commit(committables[1])  # a new process, which makes the table anew

    def test_a_batch_without_records_leaves_the_newest_markers(self, place: Any) -> None:
        sink = place.sink()
        sink.commit(place.pre_commit(["a"], Round(1, 0)))
        sink.complete(1, [])
        committable = place.pre_commit(["b"], Round(1, 2))
        place.by_hand("ROLLBACK", committable)
        with pytest.raises(TransactionLost):
            sink.commit(committable)

    def test_what_was_committed_since_the_markers_were_removed_proves_nothing_of_its_batch(self, place: Any) -> None:
        committables = [place.pre_commit(["a"], partition=partition) for partition in range(2)]
        sink = place.sink()
        sink.commit(committables[0])
        place.ask("DELETE FROM {markers} WHERE transaction_id = %s", committables[0].transaction_id)
        sink.commit(committables[1])
        with pytest.raises(OutcomeUnknown):
            sink.commit(committables[0])

    def test_a_transaction_that_was_committed_by_hand_is_committed(self, place: Any) -> None:
        committable = place.pre_commit(["a", "b"])
        place.sink().seal([committable], age_s=0)
        place.by_hand("COMMIT", committable)
        place.sink().commit(committable)
        assert place.values() == ["a", "b"]

    def test_a_transaction_is_not_decided_when_it_is_not_prepared_any_more(self, place: Any) -> None:
        committables = [place.pre_commit(["a"], partition=partition) for partition in range(2)]
        place.by_hand("ROLLBACK", committables[1])
        with pytest.raises(RoundAborted, match="but no longer is"):
            place.sink().seal(committables, age_s=0)

    def test_markers_are_kept_while_their_commit_may_be_repeated_and_then_removed(self, place: Any) -> None:
        sink = place.sink()
        for batch_id in range(3):
            committable = place.pre_commit(["a"], Round(1, batch_id))
            for _ in range(2):  # a crash after its completion, before the log has noted that
                sink.commit(committable)
                sink.complete(batch_id, [committable])
        assert place.marked() == [(2,)]

    def test_what_another_query_has_prepared_is_refused_and_stays(self, place: Any) -> None:
        theirs = place.sink("other")
        committable = place.vote(["a"], sink=theirs)
        for refuse in (place.sink().commit, place.sink().abort):
            with pytest.raises(CorruptLog, match=r"which is none of .*Nothing was touched"):
                refuse(committable)
        assert place.prepared() == [committable.transaction_id]
        theirs.commit(committable)
        assert place.values() == ["a"]

    def test_coordinators_that_commit_at_once_come_to_one_result(self, place: Any) -> None:
        committables = [place.pre_commit([f"{n}"], partition=n) for n in range(5)]
        errors: list[Exception] = []

        def commit_all() -> None:
            for committable in committables:
                while True:
                    try:
                        place.sink().commit(committable)
                        break
                    except Retriable:
                        continue
                    except Exception as error:  # noqa: BLE001  # the test fails with it
                        errors.append(error)
                        break

        threads = [threading.Thread(target=commit_all) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert place.values() == ["0", "1", "2", "3", "4"]

    def test_what_was_prepared_is_rolled_back_by_its_task_when_another_sink_of_it_votes_no(self, place: Any) -> None:
        participant = Participant({"orders": place.sink()}, Round(1, 0), partition=0)
        participant.write("orders", pa.record_batch({"value": ["a"]}))
        participant.pre_commit()
        with pytest.raises(RuntimeError), participant:
            raise RuntimeError("the next sink could not")
        assert place.prepared() == []

    @pytest.mark.crash
    def test_a_server_that_is_killed_between_decision_and_commit_costs_nothing(
        self, own_place: Any, tmp_path: Path
    ) -> None:
        sink = own_place.unbound()

        def phase_one(round: Round) -> Iterator[Vote]:
            return writes({"orders": sink}, *({"value": [f"{round.batch_id}-{n}"]} for n in range(3)))(round)

        observer = KillsTheServer(own_place.server)
        twopc.register_observer(observer)
        try:
            # One at a time, on this thread: with the thread that starts it the server ends.
            with Coordinator({"orders": sink}, str(tmp_path / "log"), owner="query", commits_at_once=1) as coordinator:
                coordinator.run(0, phase_one)
                finished = coordinator.run(1, phase_one)
        finally:
            twopc.unregister_observer(observer)
        assert finished.retries > 0
        assert own_place.values() == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]
        assert own_place.prepared() == []

    def test_a_name_that_is_too_long_for_the_server_is_refused(self, place: Any) -> None:
        sink = place.unbound()
        sink.bind("o" * 120, "log")
        with pytest.raises(ConfigurationError, match="a shorter name"):
            sink.open()

    def test_a_committed_transaction_is_found_when_table_names_another_place_since(self, place: Any) -> None:
        """That place has markers, too, so the transaction would count as lost."""
        with place.other() as other:
            before = place.pre_commit(["a"], Round(1, 0), table=other.table)
            committable = place.pre_commit(["b"], Round(1, 1))
            sink = place.sink(table=other.table)
            for each in (before, committable, committable):
                sink.commit(each)
            assert (other.values(), place.values()) == (["a"], ["b"])

    @pytest.mark.parametrize("upsert_by", ["", "value"])
    def test_the_rights_of_the_readme_suffice(self, upsert_by: str, place: Any) -> None:
        place.create("value varchar(50) PRIMARY KEY")
        place.sink()  # creates the marker table
        with place.user(makes_tables=bool(upsert_by)) as (location, grant):
            grant(f"INSERT{', SELECT, UPDATE' if upsert_by else ''} ON {{}}")
            grant("SELECT, INSERT, DELETE ON {markers}")
            own = place.as_reached(location)
            sink = place.sink(**own)
            committable = place.pre_commit(["a"], upsert_by=upsert_by, **own)
            left = place.pre_commit(["b"], partition=1, upsert_by=upsert_by, **own)
            place.sink(upsert_by=upsert_by, **own).validate(pa.schema([("value", pa.string())]))
            found = {each.transaction_id for each in sink.recover()}
            assert found == {committable.transaction_id, left.transaction_id}
            sink.abort(left)
            for _ in range(2):
                sink.commit(committable)
            sink.complete(0, [committable])
            sink.close()
            assert place.values() == ["a"]

    def test_a_task_whose_connection_is_lost_votes_no_and_leaves_nothing(self, place: Any) -> None:
        sink, transaction = place.begun({"value": ["a"]})
        place.end_session(transaction.connection)
        with pytest.raises(RoundAborted):
            sink.pre_commit(transaction)
        sink.discard(transaction)
        assert place.prepared() == []
        assert place.values() == []

    def test_a_transaction_in_which_a_write_has_failed_is_not_prepared_whatever_follows(self, place: Any) -> None:
        place.create("value varchar(3)")
        sink, transaction = place.begun({"value": ["a"]})
        with pytest.raises(RecordRefused):
            sink.write(transaction, pa.record_batch({"value": ["too long"]}))
        with suppress(RoundAborted):  # PostgreSQL may take nothing more
            sink.write(transaction, pa.record_batch({"value": ["b"]}))
        with pytest.raises(RoundAborted, match="lacks the records of a failed write"):
            sink.pre_commit(transaction)
        sink.discard(transaction)
        assert place.prepared() == []
        assert place.values() == []

    @pytest.mark.parametrize("upsert_by", ["", "value"])
    def test_records_of_one_task_have_the_same_columns(self, upsert_by: str, place: Any) -> None:
        """An upsert writes at its end, by the columns of the last ones."""
        place.create("value varchar(9) PRIMARY KEY, n int")
        of_one = pa.array([1], pa.int32())
        sink, transaction = place.begun(
            {"value": ["a"], "n": of_one}, {"n": of_one, "value": ["b"]}, upsert_by=upsert_by
        )
        with pytest.raises(SchemaMismatch, match="and then"):
            sink.write(transaction, pa.record_batch({"value": ["c"]}))
        with pytest.raises(RoundAborted, match="lacks the records of a failed write"):
            sink.pre_commit(transaction)
        sink.discard(transaction)

    @pytest.mark.advice("PostgreSQL gave no answer")
    def test_a_server_that_is_not_there_is_asked_again(self, place: Any) -> None:
        committable = place.pre_commit(["a"])
        gone = place.bound(**place.as_reached(place.reach(host="127.0.0.1", port=1)))
        with pytest.raises(Retriable, match=r"is decided: .* gave no answer"):
            gone.commit(committable)
        place.sink().commit(committable)
        assert place.values() == ["a"]

    def test_no_connection_is_kept_after_a_sink_is_closed(self, place: Any) -> None:
        sink = place.sink()
        assert place.idle(sink)
        sink.close()
        assert not place.idle(sink)


class UpsertContract:
    """Records that replace rows: which one wins, and what two writers of one key do to each other."""

    lock_timeout_s = 1.0

    @pytest.fixture
    def keyed(self, place: Any) -> Any:
        place.create("id int, day date DEFAULT '2026-01-01', value text, PRIMARY KEY (id)")
        return place

    def test_a_record_replaces_the_row_of_its_key_when_it_is_committed_and_not_before(self, keyed: Any) -> None:
        keyed.ask("INSERT INTO {} VALUES (1, '2026-02-02', 'old'), (2, '2026-02-02', 'kept')")
        committable = keyed.pre_commit(records([1, 3], ["new", "added"]), upsert_by="id")
        assert keyed.rows() == [(1, "old"), (2, "kept")]
        keyed.sink().commit(committable)
        assert keyed.rows() == [(1, "new"), (2, "kept"), (3, "added")]
        # A column that the records don't have keeps its value.
        days = [f"{day}" for (day,) in keyed.ask("SELECT day FROM {} ORDER BY id")]
        assert days == ["2026-02-02", "2026-02-02", "2026-01-01"]

    def test_records_that_are_keys_alone_are_added_once(self, place: Any) -> None:
        place.create("value varchar(9) PRIMARY KEY")
        place.ask("INSERT INTO {} VALUES ('a')")
        place.sink().commit(place.pre_commit(["a", "b", "b"], upsert_by="value"))
        assert place.values() == ["a", "b"]

    def test_of_records_with_one_key_the_last_that_its_task_wrote_wins(self, keyed: Any) -> None:
        batches = records([1, 2, 1], ["a", "b", "c"]), records([1], ["d"])
        sink, transaction = keyed.begun(*batches, upsert_by="id")
        sink.commit(sink.pre_commit(transaction))
        assert keyed.rows() == [(1, "d"), (2, "b")]

    def test_of_records_with_one_key_the_last_good_one_wins_beside_bad_ones(self, place: Any) -> None:
        place.create("id int PRIMARY KEY, value varchar(3)")
        some = records([1, 1, 2, 1, 2], ["a", "b", "too long", "d", "e"])
        vote, refused = place.vote_without_bad(some, upsert_by="id")
        assert refused == [2]
        place.sink().commit(vote)
        assert place.rows() == [(1, "d"), (2, "e")]

    @pytest.mark.advice("Another transaction has held the row for longer than 'lock_timeout_s'")
    def test_a_key_of_another_task_or_of_a_lost_attempt_is_waited_for_until_that_one_is_swept(self, keyed: Any) -> None:
        lost = keyed.pre_commit(records([1], ["a"]), upsert_by="id")
        with pytest.raises(RoundAborted, match=r"repartition by the key\. Or it may be a lost attempt"):
            keyed.pre_commit(records([1], ["b"]), partition=1, upsert_by="id", lock_timeout_s=self.lock_timeout_s)
        keyed.sink().abort(lost)
        keyed.sink().commit(keyed.pre_commit(records([1], ["a"]), Round(2, 0), upsert_by="id"))
        assert keyed.rows() == [(1, "a")]

    def test_keys_that_the_table_or_the_records_lack_are_refused_before_anything_is_written(self, place: Any) -> None:
        place.create("id int, value varchar(9), UNIQUE (id, value)")
        sink, schema = place.sink(upsert_by="id"), pa.record_batch(records([1], ["a"])).schema
        with pytest.raises(ConfigurationError, match="no primary key or unique index on exactly") as refused:
            sink.validate(schema)
        assert refused.value.option == "upsert_by"
        place.create("id int PRIMARY KEY, value varchar(9)")
        sink.validate(schema)
        place.create("id int DEFAULT 1 PRIMARY KEY, value varchar(9)")
        with pytest.raises(SchemaMismatch):
            sink.validate(pa.schema([("value", pa.string())]))

    def test_another_unique_index_is_refused_that_would_decide_too(self, place: Any) -> None:
        place.create("id int PRIMARY KEY, value varchar(9), CONSTRAINT by_value UNIQUE (value)")
        sink, schema = place.sink(upsert_by="id"), pa.record_batch(records([1], ["a"])).schema
        with pytest.raises(ConfigurationError, match="another unique index, by_value"):
            sink.validate(schema)

    @pytest.mark.parametrize("act", ["write", "delete"])
    def test_a_record_without_a_key_is_refused_with_its_place_and_can_be_left_out(self, act: str, place: Any) -> None:
        """No two nulls are equal in a unique index, so it would be added with each batch."""
        place.create("id int, value varchar(9), UNIQUE (id, value)")
        some = {"id": pa.array([1, None, 2], pa.int32()), "value": ["a", "b", "c"]}
        task = Participant({"orders": place.sink(upsert_by="id,value")}, ROUND, partition=0)
        with pytest.raises(RecordRefused) as refused, task:
            getattr(task, act)("orders", pa.record_batch(some))
        assert (refused.value.record, refused.value.column) == (1, "id")
        if act == "write":
            vote, left_out = place.vote_without_bad(some, upsert_by="id,value")
            place.sink().commit(vote)
            assert (left_out, place.values()) == ([1], ["a", "c"])

    def test_a_delete_asks_nothing_of_the_other_columns(self, place: Any) -> None:
        place.create("id int PRIMARY KEY, value varchar(9) NOT NULL CHECK (value <> '')")
        place.ask("INSERT INTO {} VALUES (1, 'a'), (2, 'b')")
        place.sink().commit(place.deleted(records([1], [""]), upsert_by="id"))
        assert place.rows() == [(2, "b")]


def records(ids: list[int], values: list[str]) -> dict[str, Any]:
    return {"id": pa.array(ids, pa.int32()), "value": values}


class ColumnsContract:
    """What is refused before anything is written.

    Attributes:
        misfits: types of a column, each with Arrow types of which it may not keep each value.
        generated: definitions of a column ``amount`` that the server computes.
        altered: a type of a column, the Arrow type that it keeps, and a narrower type.
    """

    misfits: ClassVar[Mapping[str, Sequence[pa.DataType]]]
    generated: ClassVar[Sequence[str]]
    altered: ClassVar[Sequence[tuple[str, pa.DataType, str]]]
    alter = "ALTER TABLE {} ALTER value TYPE"

    def test_a_type_that_does_not_fit_is_refused_and_the_column_named(self, place: Any) -> None:
        sink, taken = place.sink(), []
        for column, types in self.misfits.items():
            place.create(f"amount {column}")
            for type_ in types:
                try:
                    sink.validate(pa.schema([("amount", type_)]))
                except SchemaMismatch as error:
                    assert "column 'amount' has the Arrow type" in error.message  # noqa: PT017
                else:
                    taken.append((column, type_))
        assert taken == []

    def test_a_column_that_the_records_or_the_table_lack_is_named(self, place: Any) -> None:
        sink, schema = place.sink(), pa.schema([("amount", pa.int32())])
        for columns in ("value text", *self.generated, "amount int, day date NOT NULL"):
            place.create(columns)
            with pytest.raises(SchemaMismatch, match="'day'" if "day" in columns else "'amount'"):
                sink.validate(schema)

    def test_a_table_that_is_not_there_is_refused(self, place: Any) -> None:
        with pytest.raises(ConfigurationError, match="does not exist"):
            place.sink(table=place.table.replace("orders", "nowhere")).validate(pa.schema({"value": pa.string()}))

    @pytest.mark.parametrize("upsert_by", ["", "id"])
    def test_a_type_that_was_changed_since_it_was_validated_is_refused_by_the_task(
        self, upsert_by: str, place: Any
    ) -> None:
        for column, type_, changed in self.altered:
            place.create(f"id int PRIMARY KEY, value {column}")
            batch = pa.record_batch({"id": pa.array([1], pa.int32()), "value": pa.array([None], type_)})
            sink = place.sink(upsert_by=upsert_by)
            sink.validate(batch.schema)
            place.ask(f"{self.alter} {changed}")
            with pytest.raises(SchemaMismatch, match="column 'value' has the Arrow type"):
                place.vote(batch, sink=sink)
        assert place.prepared() == []

    def test_a_key_that_exists_fails_the_batch_without_the_value(self, place: Any) -> None:
        place.create("value varchar(9) PRIMARY KEY")
        place.ask("INSERT INTO {} VALUES ('secret')")
        for write in (place.pre_commit, lambda values: place.vote_without_bad({"value": values})):
            with pytest.raises(RoundAborted, match="'upsert_by', records replace rows") as aborted:
                write(["a", "secret"])
            assert "secret" not in str(aborted.value)
        assert place.prepared() == []
        assert place.values() == ["secret"]


class ChecksContract:
    """What a sink finds out about its server before the first batch."""

    def test_a_table_passes_and_the_server_is_as_it_was(self, place: Any) -> None:
        place.create("id int PRIMARY KEY, value text NOT NULL, two int GENERATED ALWAYS AS (2) STORED")
        for upsert_by in ("", "id"):
            assert failed(checked(place, upsert_by=upsert_by)) == []
        schema = place.table.partition(".")[0]
        tables = place.ask("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", schema)
        assert tables == [("orders",)]  # and no marker table
        assert place.prepared() == []
        assert place.ask("SELECT * FROM {}") == []

    @pytest.mark.variants
    @pytest.mark.parametrize("upsert_by", ["", "value"])
    def test_a_right_that_is_missing_is_found_by_trying(self, upsert_by: str, place: Any) -> None:
        place.create("value varchar(50) PRIMARY KEY")
        place.sink().close()  # creates the marker table
        with place.user(makes_tables=bool(upsert_by)) as (location, grant):
            own = {**place.as_reached(location), "upsert_by": upsert_by}
            grant("SELECT ON {}")
            assert "orders" in "".join(failed(checked(place, **own)))
            grant(f"INSERT{', UPDATE' if upsert_by else ''} ON {{}}")
            grant("SELECT ON {markers}")
            [advice] = failed(checked(place, **own))
            assert "twopc_committed" in advice
            assert "the sink's README lists" in advice
            grant("INSERT, DELETE ON {markers}")
            assert failed(checked(place, **own)) == []
        assert place.prepared() == []

    def test_a_table_that_is_not_there_or_has_no_key_is_reported(self, place: Any) -> None:
        for options in ({"table": place.table.replace("orders", "nowhere")}, {"upsert_by": "value"}):
            with pytest.raises(ConfigurationError):
                checked(place, **options)

    def test_prepared_transactions_are_counted(self, place: Any) -> None:
        place.pre_commit(["a"])
        [advice] = [
            each.found for each in checked(place) if each.check == PREPARED and each.result is CheckStatus.WARNING
        ]
        assert "they hold" in advice


def checked(place: Any, **options: Any) -> list[CheckResult]:
    sink = place.unbound(**options)
    sink.bind("orders", "doctor")
    found = list(sink.check())
    sink.close()
    return found


def failed(found: Sequence[CheckResult]) -> list[str]:
    return [each.found for each in found if each.result is CheckStatus.FAILED]


PREPARED = "prepared transactions"


def warned(found: Sequence[CheckResult]) -> list[CheckResult]:
    """Return the warnings, without that of transactions that other tests have prepared on the same server."""
    return [each for each in found if each.result is CheckStatus.WARNING and each.check != PREPARED]


@pytest.mark.crash
class KillContract:
    """Processes are killed with SIGKILL, and others settle what they left (invariants 2, 4 and 5)."""

    @staticmethod
    def written(place: Any, when: str = AFTER, **options: str) -> Any:
        return killed_writer(place.backend, {**place.options, **options}, when, place.prefix)

    @pytest.mark.parametrize("options", [{}, pytest.param({"upsert_by": "value"}, marks=pytest.mark.long)])
    def test_what_a_writer_pre_committed_before_its_kill_outlives_the_server_and_is_committed_by_another_process(
        self, options: dict[str, str], own_place: Any
    ) -> None:
        self.outlives(own_place, **options)

    def outlives(self, place: Any, **options: str) -> None:
        place.create("value varchar(50) PRIMARY KEY")
        committable = self.written(place, **options)
        assert committable is not None
        self.restart(place)
        assert place.values() == []
        sink = place.sink()
        assert sink.seal([committable], age_s=0) == [committable]
        for _ in range(2):
            sink.commit(committable)
        assert place.values() == sorted(VALUES)
        schema = place.table.partition(".")[0]
        tables = place.ask("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", schema)
        assert sorted(tables) == [("orders",), ("twopc_committed",)]
        self.restart(place)
        place.sink().commit(committable)
        assert place.values() == sorted(VALUES)

    @staticmethod
    def restart(place: Any) -> None:
        place.server.kill()
        place.server.start()
        place.unbound().close()  # the connections of this process are lost with it

    @pytest.mark.long
    @pytest.mark.parametrize("when", [BEFORE, AFTER])
    def test_what_a_killed_writer_left_undecided_is_rolled_back(self, when: str, place: Any) -> None:
        place.create("value varchar(50) PRIMARY KEY")
        self.written(place, when)
        sink = place.sink()
        found = list(sink.recover())
        assert len(found) == (when == AFTER)  # the server rolls back by itself what was not pre-committed
        for each in found:
            sink.abort(each)
        assert list(sink.recover()) == []
        place.sink().commit(place.pre_commit(VALUES, Round(2, 0)))  # waits for the rows that the writer has locked
        assert place.values() == sorted(VALUES)


def schema_of(kept: Sequence[tuple[str, pa.DataType]]) -> pa.Schema:
    """Return the columns c0, c1 and so on of these Arrow types, beside ``value``."""
    return pa.schema([("value", pa.string()), *((f"c{number}", type_) for number, (_, type_) in enumerate(kept))])


class AppendContract(SinkContract):
    """The contract of every sink.

    Attributes:
        columns: the columns of the table.
        kept: columns as the server declares them, each with an Arrow type of which it keeps or refuses every value.
        client: what reads the table.
    """

    columns: ClassVar[Mapping[str, str]]
    kept: ClassVar[Sequence[tuple[str, pa.DataType]]]
    client: ClassVar[str]
    upsert_by = ""
    finds_lost_batches = True

    @pytest.fixture(autouse=True)
    def _place(self, place: Any) -> None:
        self.place = place
        place.create(", ".join(f"{name} {kind}" for name, kind in self.columns.items()))

    def make_sink(self) -> PreparedSink[Any, Any]:
        made: PreparedSink[Any, Any] = self.place.unbound(upsert_by=self.upsert_by)
        return made

    def visible(self) -> list[str]:
        found: list[str] = self.place.values()
        return found

    def leftovers(self) -> list[str]:
        found: list[str] = self.place.prepared()
        return found

    @contextmanager
    def silent_sink(self) -> Iterator[PreparedSink[Any, Any]]:
        yield self.place.unbound(**self.place.as_reached(self.place.reach(host="127.0.0.1", port=1)))

    def with_bad_records(self) -> pa.RecordBatch:
        return pa.record_batch({"value": ["a", "b", "c" * 256, "d", "e" * 300, "f" * 1000, "g"]})

    def visible_records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.place.ask("SELECT * FROM {}")]

    def types_taken(self) -> pa.Schema:
        drawn = ", ".join(f"c{number} {self.declared(column)} NULL" for number, (column, _) in enumerate(self.kept))
        key = f", PRIMARY KEY ({self.upsert_by})" if self.upsert_by else ""
        self.place.create(f"value {self.columns['value']}, {drawn}{key}")
        return schema_of(self.kept)

    def declared(self, column: str) -> str:
        """A type of ``kept``, as this test's table declares it."""
        return column

    def asked(self, column: str, type_: pa.DataType) -> str:  # for subclasses
        """SQL for a column, ``{}``, of a type of ``kept``."""
        return "{}"

    def shown(self, type_: pa.DataType, value: Any) -> Any:  # for subclasses
        """A value that the client shows, as one of an Arrow type."""
        return value

    def readers(self) -> dict[str, Any]:
        return {self.client: self._drawn_records}

    def _drawn_records(self) -> list[dict[str, Any]]:
        schema = schema_of(self.kept)
        asked = ["value", *(self.asked(*pair).format(f"c{number}") for number, pair in enumerate(self.kept))]
        return [
            {
                field.name: None if value is None else self.shown(field.type, value)
                for field, value in zip(schema, row, strict=True)
            }
            for row in self.place.ask(f"SELECT {', '.join(asked)} FROM {{}}")  # noqa: S608  # our own names
        ]


class KeyedContract(KeyedSinkContract):
    kills = 12
    key = "varchar(190)"

    @pytest.fixture(autouse=True)
    def _place(self, place: Any) -> None:
        self.place = place
        place.create(f"id {self.key} PRIMARY KEY, value text")

    def make_sink(self) -> PreparedSink[Any, Any]:
        made: PreparedSink[Any, Any] = self.place.unbound(upsert_by="id")
        return made

    def rows(self) -> list[tuple[str, str | None]]:
        return [(key, value) for key, value in self.place.ask("SELECT id, value FROM {}")]
