"""The contract of a sink as tests. A plugin's author subclasses ``SinkContract`` and gives two methods."""

from __future__ import annotations

import json
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import tenacity

from twopc.errors import Retriable
from twopc.findings import Result
from twopc.participant import Participant
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable
from twopc.transactional_ids import Round

LOG_ID = "contract"
SINK = "sink"
FIRST_ROUND = Round(incarnation=1, batch_id=0)


class SinkContract(ABC):
    """What every sink must do, whatever its target. Collected by pytest in a subclass whose name starts with Test.

    Each test calls ``make_sink`` several times: the sinks share one target, as processes do, and a fresh sink stands
    for a process that knows nothing of the one that wrote.
    """

    picklable = True
    """Whether a sink can travel to another process. Only a target in memory can't."""

    @abstractmethod
    def make_sink(self) -> TwoPhaseCommitSink[Any]:
        """A new sink on the target of the current test."""

    @abstractmethod
    def visible(self) -> list[str]:
        """What a committed reader of the current test's target sees: the ``value`` of every record, in any order."""

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        """Records as the sink takes them; override where it needs other columns than ``value``."""
        return pa.record_batch({"value": pa.array(values)})

    def sink(self, log_id: str = LOG_ID) -> TwoPhaseCommitSink[Any]:
        """A new sink, bound as a coordinator binds it."""
        sink = self.make_sink()
        sink.bind(SINK, log_id)
        return sink

    def pre_committed(
        self, values: list[str], round: Round = FIRST_ROUND, partition: int = 0, log_id: str = LOG_ID
    ) -> Committable:
        """What a participant that is gone has pre-committed, sealed and read back from a log."""
        sink = self.sink(log_id)
        with Participant({SINK: sink}, round, partition) as participant:
            participant.write(SINK, self.record_batch(values))
            [committable] = participant.pre_commit().values()
        [sealed] = sink.seal([committable], age_s=0)
        return Committable.from_json(json.loads(json.dumps(sealed.to_json())))

    def becomes_visible(self, values: list[str]) -> bool:
        """Whether exactly ``values`` are visible. Override to wait where a target shows its commits late."""
        return sorted(self.visible()) == sorted(values)

    def commit(self, committable: Committable) -> None:
        """Commit as a coordinator does, from a process of its own: again where the target could not answer."""
        again = tenacity.retry_if_exception_type(Retriable)
        retrying = tenacity.Retrying(
            retry=again, wait=tenacity.wait_fixed(0.01), stop=tenacity.stop_after_delay(30), reraise=True
        )
        retrying(self.sink().commit, committable)

    # Before the decision. ---------------------------------------------------------------------------------------

    def test_what_is_written_and_pre_committed_is_not_visible(self) -> None:
        self.pre_committed(["a", "b"])
        assert self.visible() == []

    def test_a_committable_is_small_and_survives_a_round_trip_through_json(self) -> None:
        committable = self.pre_committed(["a"] * 1000)
        assert len(json.dumps(committable.to_json())) < 2000
        assert committable.records == 1000

    def test_a_sink_travels_to_a_participant(self) -> None:
        if self.picklable:
            twin = pickle.loads(pickle.dumps(self.sink()))  # noqa: S301  # our own bytes
            assert twin.transactional_ids == self.sink().transactional_ids

    # Commit. ----------------------------------------------------------------------------------------------------

    def test_another_process_commits_what_one_pre_committed(self) -> None:
        committable = self.pre_committed(["a", "b"])
        self.commit(committable)
        assert self.becomes_visible(["a", "b"])

    def test_a_repeated_commit_changes_nothing(self) -> None:
        committable = self.pre_committed(["a", "b"])
        for _ in range(3):
            self.commit(committable)
        assert self.becomes_visible(["a", "b"])

    def test_a_late_commit_of_an_old_transaction_leaves_a_newer_one_of_the_same_name_alone(self) -> None:
        first = self.pre_committed(["a"], Round(1, 0))
        self.commit(first)
        self.pre_committed(["b"], Round(9, 0))  # a later round, which may lease the same name
        self._ignoring_errors(lambda: self.commit(first))
        assert self.becomes_visible(["a"])

    # Abort. -----------------------------------------------------------------------------------------------------

    def test_an_aborted_transaction_never_becomes_visible_and_is_not_recovered(self) -> None:
        committable = self.pre_committed(["a"])
        for _ in range(2):
            self.sink().abort(committable)
        assert self.visible() == []
        assert list(self.sink().recover()) == []

    def test_an_abort_of_what_is_committed_takes_nothing_back(self) -> None:
        committable = self.pre_committed(["a"])
        self.commit(committable)
        self._ignoring_errors(lambda: self.sink().abort(committable))
        assert self.becomes_visible(["a"])

    def test_a_late_abort_of_an_old_transaction_leaves_a_newer_one_of_the_same_name_alone(self) -> None:
        first = self.pre_committed(["a"], Round(1, 0))
        self.sink().abort(first)
        second = self.pre_committed(["b"], Round(9, 0))
        self._ignoring_errors(lambda: self.sink().abort(first))
        self.commit(second)
        assert self.becomes_visible(["b"])

    def test_a_participant_that_fails_leaves_nothing_open(self) -> None:
        sink = self.sink()
        try:
            with Participant({SINK: sink}, Round(1, 0), partition=0) as participant:
                participant.write(SINK, self.record_batch(["a"]))
                raise RuntimeError("the task failed")
        except RuntimeError:
            pass
        assert list(self.sink().recover()) == []
        assert self.visible() == []

    # Recovery. --------------------------------------------------------------------------------------------------

    def test_recover_finds_what_is_open_whoever_began_it(self) -> None:
        committables = [self.pre_committed([f"{p}"], Round(1, 0), partition=p) for p in range(3)]
        found = list(self.sink().recover())
        assert len(found) == len(committables)
        for committable in committables:
            assert any(committable.is_same_transaction(open_) for open_ in found)

    def test_recover_finds_nothing_of_another_log(self) -> None:
        self.pre_committed(["a"], log_id="another")
        self.pre_committed(["b"], log_id=f"{LOG_ID}2")  # another key: a target may lock what is written
        assert list(self.sink().recover()) == []

    def test_what_recover_finds_can_be_aborted(self) -> None:
        self.pre_committed(["a"])
        sink = self.sink()
        for open_ in sink.recover():
            sink.abort(open_)
        assert list(self.sink().recover()) == []

    def test_recover_leaves_out_what_is_committed(self) -> None:
        self.commit(self.pre_committed(["a"]))
        assert list(self.sink().recover()) == []

    # Examination. -----------------------------------------------------------------------------------------------

    def test_an_examination_of_a_target_that_works_finds_no_fault_and_leaves_nothing(self) -> None:
        findings = list(self.sink().examine())
        assert [finding for finding in findings if finding.result is Result.FAILED] == []
        assert list(self.sink().recover()) == []
        assert self.visible() == []

    @staticmethod
    def _ignoring_errors(call: Callable[[], None]) -> None:
        """Only the effect counts: a target may refuse, or shrug."""
        try:
            call()
        except Exception:  # noqa: BLE001
            return
