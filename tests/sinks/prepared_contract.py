"""What every sink of a database keeps that prepares a transaction under a name, by what the server reports of it
(invariants 2, 5 and 6). A sink's own module subclasses ``PreparedContract``, beside the fixtures ``place`` and
``own_place``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import twopc
from twopc import Coordinator, Participant, Round
from twopc.errors import ConfigurationError, CorruptLog, OutcomeUnknown, Retriable, RoundAborted, TransactionLost
from twopc.events import CallRetried, Event, PhaseEntered
from twopc.participant import Vote
from twopc.phases import Phase


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

    def test_a_transaction_that_was_rolled_back_by_hand_is_lost_and_reported_with_its_records(self, place: Any) -> None:
        place.sink().commit(place.pre_commit(["before"], Round(1, 0)))
        committable = place.pre_commit(["a", "b"], Round(1, 1))
        place.by_hand("ROLLBACK", committable)
        with pytest.raises(TransactionLost, match=r"\(2 records\).*is not prepared and has no marker"):
            place.sink().commit(committable)

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
        assert place.ask("SELECT batch_id FROM {markers}") == [(2,)]

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
            for partition in range(3):
                with Participant({"orders": sink}, round, partition=partition) as participant:
                    participant.write("orders", pa.record_batch({"value": [f"{round.batch_id}-{partition}"]}))
                    yield participant.pre_commit()

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
