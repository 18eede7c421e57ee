"""One task attempt: at most one transaction a sink, none for an empty partition, all rolled back on an exception."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.raising import raising
from twopc import Committable, Participant, Round, Transaction, TransactionId, Vote, participant
from twopc.errors import ConfigurationError, RecordRefused, Retriable, SchemaMismatch
from twopc.replay import ReplayCopies
from twopc.retry import until_answered
from twopc.testing import MemorySink, MemoryTarget
from twopc.transaction import Fingerprint

ROUND = Round(2, 7)
ROWS = pa.record_batch({"value": pa.array(["x", "y"])})
EMPTY = ROWS.slice(0, 0)


class Recorder(MemorySink):
    """A sink in memory that records its calls, and raises in the one it is told to."""

    def __init__(self, name: str, calls: list[str], fails_in: str = "") -> None:
        super().__init__(MemoryTarget())
        self.name, self.calls, self.fails_in = name, calls, fails_in
        self.bind(name, "log")

    def _call(self, what: str) -> None:
        self.calls.append(f"{what} {self.name}")
        if what == self.fails_in:
            raise OSError(f"{self.name} can't {what}")

    def begin(self, transaction_id: TransactionId) -> Transaction:
        self._call("begin")
        return super().begin(transaction_id)

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        self._call("write")
        super().write(transaction, batch)

    def pre_commit(self, transaction: Transaction) -> Committable:
        self._call("pre_commit")
        return super().pre_commit(transaction)

    def abort(self, committable: Committable) -> None:
        self._call("abort")
        super().abort(committable)


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def sinks(calls: list[str]) -> dict[str, Any]:
    return {name: Recorder(name, calls) for name in ("a", "b")}


def attempt(sinks: Mapping[str, Any], fails_with: BaseException | None = None) -> Vote:
    """Write to both sinks, fail there if told to, and vote."""
    with Participant(sinks, ROUND, partition=0) as participant:
        participant.write("a", ROWS)
        participant.write("b", ROWS)
        if fails_with:
            raise fails_with
        return participant.pre_commit()


def test_an_empty_partition_begins_nothing_and_votes_for_nothing(sinks: dict[str, Any], calls: list[str]) -> None:
    with Participant(sinks, ROUND, partition=0) as participant:
        participant.write("a", EMPTY)
        vote = participant.pre_commit()
    assert (vote, calls) == ({}, [])


def test_a_sink_that_is_written_to_has_one_transaction_and_no_other_sink_has(
    sinks: dict[str, Any], calls: list[str]
) -> None:
    with Participant(sinks, ROUND, partition=3) as participant:
        for batch in (EMPTY, ROWS, EMPTY, ROWS):
            participant.write("a", batch)
        vote = participant.pre_commit()
    assert calls == ["begin a", "write a", "write a", "pre_commit a"]
    assert list(vote) == ["a"]
    assert vote["a"].records == 4


def test_each_schema_is_validated_once_before_anything_of_it_is_written(calls: list[str]) -> None:
    class Choosy(Recorder):
        def validate(self, schema: pa.Schema) -> None:
            self.calls.append(f"validate {','.join(schema.names)}")
            if "headrs" in schema.names:
                raise SchemaMismatch("no column 'headrs'")

    sinks = {"a": Choosy("a", calls)}
    for _ in range(2):
        with Participant(sinks, ROUND, partition=0) as participant:
            participant.write("a", ROWS)
            participant.write("a", ROWS)
    assert calls == [
        *(f"validate {ROWS.schema.names[0]}", "begin a", "write a", "write a", "begin a", "write a", "write a")
    ]

    calls.clear()
    misspelt = pa.record_batch({"headrs": ["a"]})
    with pytest.raises(SchemaMismatch, match="headrs"), Participant(sinks, ROUND, partition=0) as participant:
        participant.write("a", misspelt)
    assert calls == ["validate headrs"]


def test_what_the_driver_has_validated_is_not_validated_again_where_the_sink_travels_to() -> None:
    class Counting(MemorySink):
        def validate(self, schema: pa.Schema) -> None:
            raise AssertionError("validated again")

    sink = Counting(MemoryTarget())
    sink._validated = ROWS.schema
    twin = Counting(MemoryTarget())
    twin.__dict__.update(sink.__getstate__())
    twin.bind("a", "log")
    with Participant({"a": twin}, ROUND, partition=0) as participant:
        participant.write("a", ROWS)


def test_each_sink_has_its_own_transaction_named_by_the_attempt(sinks: dict[str, Any]) -> None:
    with Participant(sinks, ROUND, partition=3, serial=99) as participant:
        participant.write("b", ROWS)
        participant.write("a", ROWS)
        vote = participant.pre_commit()
    assert {name: committable.transaction_id for name, committable in vote.items()} == {
        "a": "twopc.log.a.2.7.3.99.0",
        "b": "twopc.log.b.2.7.3.99.0",
    }


def test_leaving_without_an_exception_aborts_nothing(sinks: dict[str, Any], calls: list[str]) -> None:
    with Participant(sinks, ROUND, partition=0) as participant:
        participant.write("a", ROWS)
    assert "abort a" not in calls


def test_an_exception_aborts_every_transaction(sinks: dict[str, Any], calls: list[str]) -> None:
    with pytest.raises(ValueError, match="bad record"):
        attempt(sinks, fails_with=ValueError("bad record"))
    assert calls[-2:] == ["abort a", "abort b"]
    assert sinks["a"].target.open == sinks["b"].target.open == {}


@pytest.mark.parametrize("fails_in", ["begin", "write", "pre_commit"])
def test_when_the_second_sink_fails_the_first_is_rolled_back_though_it_may_be_pre_committed(
    fails_in: str, calls: list[str]
) -> None:
    sinks = {"a": Recorder("a", calls), "b": Recorder("b", calls, fails_in)}
    with pytest.raises(OSError, match=f"b can't {fails_in}"):
        attempt(sinks)
    assert "abort a" in calls
    assert sinks["a"].target.open == {}
    assert sinks["b"].target.open == {}


def test_an_abort_that_fails_hides_neither_the_first_error_nor_the_other_aborts(
    calls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    sinks = {"a": Recorder("a", calls, "abort"), "b": Recorder("b", calls)}
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="bad record"):
        attempt(sinks, fails_with=ValueError("bad record"))
    assert calls[-2:] == ["abort a", "abort b"]
    assert "could not discard twopc.log.a.2.7.0.0.0 of sink a" in caplog.text


def test_a_killed_task_aborts_nothing_because_it_may_be_dead_already(sinks: dict[str, Any], calls: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        attempt(sinks, fails_with=KeyboardInterrupt())
    assert "abort a" not in calls


def test_a_sink_that_no_coordinator_has_bound_says_so() -> None:
    with pytest.raises(ConfigurationError, match="pass it to a Coordinator"):
        Participant({"a": MemorySink(MemoryTarget())}, ROUND, partition=0).write("a", ROWS)


def refusing(monkeypatch: pytest.MonkeyPatch, step: str, record: int | None) -> None:
    monkeypatch.setattr(MemorySink, step, raising(RecordRefused("it is null", record=record)))


def test_a_record_that_a_sink_refuses_is_located_among_all_that_the_task_wrote_to_it(
    sinks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = Participant(sinks, ROUND, partition=4)
    for name in ("b", "a", "a", "a"):
        participant.write(name, ROWS)
    refusing(monkeypatch, "write", record=1)
    with pytest.raises(RecordRefused) as refused:
        participant.write("a", ROWS)
    assert (refused.value.sink, refused.value.task, refused.value.record) == ("a", 4, 7)


def test_a_record_that_is_refused_only_when_all_are_written_has_its_sink_and_its_task(
    sinks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, "pre_commit", record=None)
    participant = Participant(sinks, ROUND, partition=4)
    participant.write("b", ROWS)
    with pytest.raises(RecordRefused) as refused:
        participant.pre_commit()
    assert (refused.value.sink, refused.value.task, refused.value.record) == ("b", 4, None)


def test_a_sink_whose_target_does_not_answer_is_named_as_what_it_is(
    sinks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participant, "VALIDATE_PATIENCE_S", 0)
    monkeypatch.setattr(sinks["a"], "validate", raising(Retriable("nobody there")))
    asked: list[str] = []
    monkeypatch.setattr(participant, "until_answered", partial(noted_and_asked, asked))
    with (
        pytest.raises(Retriable, match=r"^could not look at what sink 'a' writes to: nobody there; see "),
        Participant({"a": sinks["a"]}, ROUND, partition=0) as attempt,
    ):
        attempt.write("a", ROWS)
    assert asked == ["look at what sink 'a' writes to"]


def noted_and_asked(asked: list[str], what: str, *arguments: Any, **patience: Any) -> None:
    asked.append(what)
    until_answered(what, *arguments, **patience)


# Bad records. -----------------------------------------------------------------------------------------------------


class Picky(Recorder):
    """Takes no record whose value begins with "bad"."""

    refuses_before_writing = True

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        for position, value in enumerate(batch["value"].to_pylist()):
            if value.startswith("bad"):
                raise RecordRefused("it is bad", record=position, column="value")
        super().write(transaction, batch)


def values(*given: str) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(given)})


def picky(calls: list[str]) -> tuple[Picky, Participant]:
    sink = Picky("a", calls)
    return sink, Participant({"a": sink}, ROUND, partition=5, max_bad_records=3)


def test_a_bad_record_is_left_out_and_told_and_the_others_are_written(calls: list[str]) -> None:
    sink, attempt = picky(calls)
    with attempt as participant:
        first = participant.write("a", values("w", "bad 1", "x", "bad 2"))
        second = participant.write("a", values("bad 3", "y"))
        vote = participant.pre_commit()
    assert [(each.record, each.reason) for each in (*first, *second)] == [
        (1, "column 'value': it is bad"),
        (3, "column 'value': it is bad"),
        (0, "column 'value': it is bad"),
    ]
    assert vote["a"].records == 3
    [written] = sink.target.open.values()
    assert [row["value"] for row in written] == ["w", "x", "y"]


def test_one_bad_record_too_many_fails_the_attempt_and_is_located(calls: list[str]) -> None:
    sink, attempt = picky(calls)

    def write_all() -> None:
        with attempt as participant:
            participant.write("a", values("w", "bad 1", "bad 2"))
            participant.write("a", values("x", "bad 3", "bad 4"))

    with pytest.raises(RecordRefused) as caught:
        write_all()
    assert "3 records of the batch were refused before, as many as its limit of bad records" in str(caught.value)
    assert (caught.value.sink, caught.value.task, caught.value.column) == ("a", 5, "value")
    assert sink.target.open == {}


def test_the_hashes_and_the_replay_copy_are_those_of_what_was_written(calls: list[str], tmp_path: Path) -> None:
    sink = Picky("a", calls)
    sink.may_time_out = True
    sink.replay_copies = ReplayCopies(str(tmp_path))
    with Participant({"a": sink}, ROUND, partition=5, max_bad_records=3) as participant:
        participant.write("a", values("w", "bad 1", "x"), pa.array([1, 10, 100]))
        participant.write("a", values("bad 2"), pa.array([1000]))
        vote = participant.pre_commit()
    assert vote["a"].fingerprint == Fingerprint(5, 101)
    assert vote["a"].replay_copy is not None
    [copied] = sink.replay_copies.read(vote["a"].replay_copy)
    assert copied["value"].to_pylist() == ["w", "x"]


def test_a_sink_that_does_not_leave_records_out_fails_the_attempt(calls: list[str]) -> None:
    sink = Recorder("a", calls, fails_in="write")
    with (
        pytest.raises(OSError, match="can't write"),
        Participant({"a": sink}, ROUND, partition=0, max_bad_records=3) as participant,
    ):
        participant.write("a", ROWS)


def test_a_refusal_that_names_no_record_fails_the_attempt(calls: list[str]) -> None:
    class Vague(Picky):
        def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
            raise RecordRefused("one of them is bad")

    with (
        pytest.raises(RecordRefused, match="one of them"),
        Participant({"a": Vague("a", calls)}, ROUND, partition=0, max_bad_records=3) as participant,
    ):
        participant.write("a", ROWS)


def test_many_bad_records_are_left_out_in_the_order_of_the_others_and_without_copies_of_the_batch(
    calls: list[str],
) -> None:
    class Backward(Picky):
        """Refuses the last bad record first."""

        def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
            texts.add(batch["value"].buffers()[2].address)
            given = batch["value"].to_pylist()
            if bad := [position for position, value in enumerate(given) if value.startswith("bad")]:
                raise RecordRefused("it is bad", record=bad[-1])
            Recorder.write(self, transaction, batch)

    texts = set[int]()
    sink = Backward("a", calls)
    given = [f"bad {number}" if number % 2 else f"{number}" for number in range(3000)]
    with Participant({"a": sink}, ROUND, partition=5, max_bad_records=1500) as participant:
        refused = participant.write("a", values(*given))
        participant.pre_commit()
    assert sorted(each.record for each in refused if each.record is not None) == [*range(1, 3000, 2)]
    [written] = sink.target.open.values()
    assert [row["value"] for row in written] == given[::2]
    assert len(texts) == 1


@pytest.mark.parametrize("position", [-1, 2])
def test_a_refusal_of_a_record_that_is_not_in_the_batch_fails_the_attempt(calls: list[str], position: int) -> None:
    class Astray(Picky):
        def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
            raise RecordRefused("it is bad", record=position)

    with (
        pytest.raises(RecordRefused, match="it is bad"),
        Participant({"a": Astray("a", calls)}, ROUND, partition=0, max_bad_records=3) as participant,
    ):
        participant.write("a", ROWS)


KEYED = pa.record_batch({"id": pa.array([1, 2, 3]), "value": pa.array(["a", "b", "c"])})


def test_a_delete_reaches_the_sink_with_the_key_alone_and_is_counted() -> None:
    target = MemoryTarget()
    sink = MemorySink(target, key=["id"])
    sink.bind("a", "log")
    with Participant({"a": sink}, ROUND, partition=0) as participant:
        participant.write("a", KEYED)
        vote = participant.pre_commit()
    sink.commit(vote["a"])
    with Participant({"a": sink}, Round(3, 7), partition=0) as participant:
        participant.write("a", KEYED.slice(0, 1))
        participant.delete("a", KEYED.slice(1, 1))
        vote = participant.pre_commit()
    assert vote["a"].records == 2
    assert [*target.deletes.values()] == [[{"id": 2}]]
    sink.commit(vote["a"])
    assert sorted(each["id"] for each in target.visible) == [1, 3]


def test_a_transaction_may_have_deletes_alone() -> None:
    sink = MemorySink(MemoryTarget(), key=["id"])
    sink.bind("a", "log")
    with Participant({"a": sink}, ROUND, partition=0) as participant:
        participant.delete("a", KEYED)
        assert participant.pre_commit()["a"].records == 3


def test_a_delete_that_a_sink_refuses_is_left_out() -> None:
    class Choosy(MemorySink):
        refuses_before_writing = True

        def delete(self, transaction: Transaction, keys: pa.RecordBatch) -> None:
            if 2 in keys.column("id").to_pylist():
                raise RecordRefused("two", record=keys.column("id").to_pylist().index(2))
            super().delete(transaction, keys)

    target = MemoryTarget()
    sink = Choosy(target, key=["id"])
    sink.bind("a", "log")
    with Participant({"a": sink}, ROUND, partition=0, max_bad_records=1) as participant:
        [refused] = participant.delete("a", KEYED)
        vote = participant.pre_commit()
    assert refused.record == 1
    assert vote["a"].records == 2
    assert [*target.deletes.values()] == [[{"id": 1}, {"id": 3}]]


def test_a_replay_copy_has_a_delete_as_a_record_of_its_key_and_nulls(tmp_path: Path) -> None:
    class Forgetful(MemorySink):
        may_time_out = True

    sink = Forgetful(MemoryTarget(), key=["id"])
    copies = ReplayCopies(str(tmp_path))
    sink.bind("a", "log", copies)
    with Participant({"a": sink}, ROUND, partition=0) as participant:
        participant.delete("a", KEYED.slice(0, 1))
        vote = participant.pre_commit()
    assert vote["a"].replay_copy is not None
    assert [batch.to_pylist() for batch in copies.read(vote["a"].replay_copy)] == [[{"id": 1, "value": None}]]


def test_a_delete_from_a_sink_without_a_key_is_refused_before_anything_is_begun() -> None:
    sink = MemorySink(MemoryTarget())
    sink.bind("a", "log")
    with Participant({"a": sink}, ROUND, partition=0) as participant:
        with pytest.raises(ConfigurationError, match="sink 'a' has no key, so nothing can be deleted from it"):
            participant.delete("a", KEYED)
        assert participant.pre_commit() == {}
