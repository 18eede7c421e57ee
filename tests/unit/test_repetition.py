"""A failure that no table knows may be tried again, but not for ever: the third start in a row calls an operator."""

import errno
import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from tests.support.memory_log import MemoryLog
from tests.support.raising import raising
from tests.unit.test_coordinator import World, fails, run, sink
from twopc import Coordinator, Vote
from twopc.errors import (
    Fenced,
    InDoubt,
    OperatorRequired,
    Refused,
    RepeatedFailure,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)
from twopc.events import CallRetried
from twopc.failures import identity
from twopc.log.commit_log import read_tail
from twopc.log.entries import Entry
from twopc.log.entry_json import parse, serialise
from twopc.repetition import FAILED_STARTS_AT_MOST, MINUTES_AT_MOST

DEFECT = ValueError("row 7: no plan for 'x'")


class Query(World):
    """A query whose every start is another process."""

    def __init__(self) -> None:
        super().__init__()
        self.log = self.store = MemoryLog()

    def fails(self, error: BaseException, batch_id: int = 0) -> BaseException:
        """Start the query, let its batch fail, and return what the start ends with."""
        with pytest.raises(type(error) if not isinstance(error, Exception) else Exception) as ended:
            self.coordinator().run(batch_id, raising(error))
        return ended.value

    def kinds(self, *errors: BaseException) -> list[type[BaseException]]:
        return [type(self.fails(error)) for error in errors]

    @property
    def tail(self) -> Entry:
        newest = read_tail(self.store)
        assert newest
        return newest[1]


@pytest.fixture
def query() -> Query:
    return Query()


def test_the_third_start_that_fails_in_the_same_way_stops_for_an_operator(query: Query) -> None:
    assert query.kinds(DEFECT, DEFECT) == [RoundAborted, RoundAborted]
    began = query.tail.repetition
    assert began
    stopped = query.fails(DEFECT)
    assert isinstance(stopped, RepeatedFailure)
    assert stopped.message == (
        f"batch 0 fails again and again: 3 times in this way since {began.since}. Nothing was decided in between. The"
        " newest failure (ValueError): row 7: no plan for 'x'. The batch is not decided, and nothing of it is visible."
        " Correct its cause and start again."
    )
    assert stopped.batch_id == 0
    assert query.open() == query.visible("a") == []


@pytest.mark.advice("again and again")
def test_a_query_whose_cause_is_corrected_goes_on_and_one_that_fails_on_stops_again(query: Query) -> None:
    assert query.kinds(*[DEFECT] * 4)[2:] == [RepeatedFailure, RepeatedFailure]
    run(query.coordinator(), 0)
    assert query.visible("a") == ["0-0", "0-1"]


def test_a_decision_clears_what_was_counted(query: Query) -> None:
    query.kinds(DEFECT, DEFECT)
    run(query.coordinator(), 0)
    assert query.tail.repetition is None
    assert [type(query.fails(DEFECT, 1)) for _ in range(3)] == [RoundAborted, RoundAborted, RepeatedFailure]


def aborted(message: str, cause: Exception | None = None) -> RoundAborted:
    error = RoundAborted(message)
    error.__cause__ = cause
    return error


@pytest.fixture
def minutes(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The clock: each ``next`` is a minute later."""

    def at(minute: int) -> int:
        monkeypatch.setattr("twopc.log.entries.time.time", lambda: 60 * minute)
        return minute

    return map(at, itertools.count(1))


@pytest.mark.parametrize(
    "passing",
    [
        Retriable("the broker restarts"),
        TimeoutError("no answer"),
        ConnectionResetError("reset by peer"),
        OSError(errno.ENOSPC, "disk full"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        aborted("could not look at the table", Retriable("the broker restarts")),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_outage_and_an_interrupt_are_repeated_without_end_and_told(
    query: Query, passing: BaseException, minutes: Iterator[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert RepeatedFailure not in [type(query.fails(passing)) for _ in itertools.islice(minutes, MINUTES_AT_MOST)]
    told = [each.message for each in caplog.records if each.levelname == "ERROR"]
    assert [f"{MINUTES_AT_MOST} times in this way" in each for each in told] == [True] * isinstance(passing, Exception)
    assert query.kinds(DEFECT, passing, DEFECT, passing, DEFECT)[-1] is RepeatedFailure


@pytest.mark.parametrize("ends_at", [2, 30])
def test_a_round_that_is_aborted_for_an_hour_stops_for_an_operator(
    query: Query, minutes: Iterator[int], ends_at: int
) -> None:
    lost = (RoundAborted(f"the worker on {'x' * number} was lost") for number in itertools.count())  # in any words
    for _ in itertools.islice(minutes, ends_at):
        assert query.kinds(next(lost), next(lost)) == [RoundAborted, RoundAborted]  # both within a minute
    run(query.coordinator(), 0)
    ends = [type(query.fails(next(lost), 1)) for _ in itertools.islice(minutes, MINUTES_AT_MOST + 1)]
    assert ends == [*[RoundAborted] * (MINUTES_AT_MOST - 1), RepeatedFailure, RepeatedFailure]


def test_an_answer_that_ends_the_query_counts_within_a_round(query: Query) -> None:
    assert query.kinds(*[OperatorRequired("the server refuses")] * 3) == [RoundAborted, RoundAborted, RepeatedFailure]


def test_a_refusal_stops_as_it_did(query: Query) -> None:
    assert query.kinds(*[Refused("no column 'x'")] * 4) == [Refused] * 4


def test_failures_that_alternate_are_counted_each(query: Query) -> None:
    other = ValueError("no plan for 'y'")
    assert RepeatedFailure not in query.kinds(DEFECT, other, DEFECT, other)
    assert "3 times in this way" in str(stopped := query.fails(DEFECT))
    assert "and 5 times in all" in str(stopped)
    run(query.coordinator(), 0)
    assert [type(query.fails(each, 1)) for each in (DEFECT, other, DEFECT)] == [RoundAborted] * 3


def test_failures_of_which_none_is_like_another_stop_too(query: Query) -> None:
    ends = query.kinds(*(ValueError(f"no plan for {way!r}") for way in "abcdefghij"))
    assert ends == [*[RoundAborted] * (FAILED_STARTS_AT_MOST - 1), *[RepeatedFailure] * 3]
    assert len(serialise(query.tail)) < 4096


def test_failures_of_which_none_is_like_another_stop_too_where_each_start_aborts_a_round_before(query: Query) -> None:
    ends = []
    for way in "abcdefgh":
        coordinator = query.coordinator()
        with pytest.raises(RoundAborted, match="the worker was lost"):
            coordinator.run(0, raising(RoundAborted("the worker was lost")))
        with pytest.raises(Exception, match="no plan for") as ended:
            coordinator.run(0, raising(ValueError(f"no plan for {way!r}")))
        ends.append(ended.type)
    assert ends == [*[RoundAborted] * (FAILED_STARTS_AT_MOST - 1), RepeatedFailure]


def test_another_failure_is_counted_anew_and_other_numbers_are_the_same_failure(query: Query) -> None:
    assert RepeatedFailure not in query.kinds(DEFECT, DEFECT)
    assert query.kinds(ValueError("Row 8, at 0x7f00: no\nplan for 'x'")) == [RoundAborted]
    assert query.kinds(ValueError("row 1, at 0x7fab: no plan for 'x'")) == [RoundAborted]
    assert query.kinds(ValueError("row 123, at 0x1: no plan for 'x'")) == [RepeatedFailure]


def test_another_host_or_another_object_is_the_same_failure(query: Query) -> None:
    told = "Lost task 0.{n} in stage 3.0 (TID {n}) ({host} executor {n}): object {object} refused"
    tried = [(1, "worker-a.example", "3f2a9c1d4e5f"), (2, "worker-b.example", "9b1e7d2f6a0c"), (3, "driver", "tmp_4xq")]
    failures = [ValueError(told.format(n=n, host=host, object=name)) for n, host, name in tried]
    assert query.kinds(*failures)[-1] is RepeatedFailure


@pytest.mark.parametrize("part", ["x", "(", "x("])
def test_a_failure_that_quotes_a_long_text_is_recognized_at_once(part: str) -> None:
    began_s = time.process_time()
    assert identity(ValueError(part * 100_000))
    assert time.process_time() - began_s < 5  # by the square of its length, more


def test_java_may_come_to_the_same_failure_in_another_way(query: Query) -> None:
    failures = [ValueError(f"no plan\n\tat org.x.A{way}.run(A.java:1)\n\t... {way} more") for way in ("a", "b", "c")]
    assert query.kinds(*failures)[-1] is RepeatedFailure


def test_the_log_holds_no_words_of_a_failure_and_no_field_without_one(query: Query) -> None:
    query.kinds(ValueError("password=hunter2"), DEFECT)
    assert not any(b"hunter2" in data for data in [*query.store.entries.values(), query.store.notice])
    run(query.coordinator(), 0)
    fields = [set(json.loads(data)) for data in query.store.entries.values()]
    assert ["repetition" in each for each in fields] == [False, True, True, False]


def test_an_entry_keeps_its_repetition(query: Query) -> None:
    query.kinds(DEFECT, KeyError("other"), DEFECT)
    assert query.tail.repetition
    assert query.tail.repetition.others
    assert parse(serialise(query.tail), "entry") == query.tail


@pytest.mark.parametrize("damaged", [b"", b"null", b"[]", b'{"entry_id": ', b'{"repetition": 1}', b"\xff", None])
def test_a_damaged_note_costs_one_start(query: Query, damaged: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    query.kinds(DEFECT, DEFECT)
    with monkeypatch.context() as patch:
        patch.setattr(query.store, "posted", raising(OSError("away")) if damaged is None else lambda: damaged)
        assert query.kinds(DEFECT) == [RoundAborted]
    assert query.kinds(DEFECT) == [RepeatedFailure]


def test_a_note_that_cannot_be_left_costs_one_start(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(query.store, "post", raising(OSError("away")))
        query.kinds(DEFECT)
    assert query.kinds(DEFECT, DEFECT, DEFECT) == [RoundAborted, RoundAborted, RepeatedFailure]


def test_a_start_that_waits_for_a_target_keeps_what_was_counted(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    run(query.coordinator("a"), 0)
    monkeypatch.setattr(CallRetried, "needs_operator", True)

    def start() -> type[BaseException]:
        coordinator = query.coordinator("a")
        away = fails(Retriable("the broker restarts"), times=1)
        sink(coordinator, "a").validate = lambda _: away()
        coordinator.validate({"a": pa.schema([])})
        with pytest.raises(Exception, match="no plan") as ended:
            coordinator.run(1, raising(DEFECT))
        return ended.type

    assert [start() for _ in range(3)] == [RoundAborted, RoundAborted, RepeatedFailure]


def test_a_fenced_driver_does_not_count_and_leaves_the_note_of_the_newer_one(query: Query) -> None:
    older = query.coordinator()
    older.recover()
    query.fails(DEFECT)
    note = query.store.notice
    with pytest.raises(Fenced):
        older.run(0, raising(ValueError("no plan for 'y'")))
    assert query.store.notice == note


def test_an_older_driver_that_still_waits_leaves_the_note_of_a_newer_one(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = query.coordinator()
    tail, notices = older.recover(), older._performer.notices
    event = CallRetried("commit of x", 20, 1.0, "no leader", 75.0)
    notices.post(tail, event)
    query.fails(DEFECT)
    note = query.store.notice
    notices.post(tail, event)
    assert query.store.notice == note
    notices.withdraw()
    assert query.store.notice == note
    monkeypatch.setattr(query.store, "posted", raising(OSError("away")))
    notices.post(tail, event)
    assert query.store.notice == note


@pytest.mark.parametrize("backup", [0, 1])
def test_a_note_that_a_removed_or_a_restored_log_has_left_is_replaced(query: Query, backup: int) -> None:
    query.kinds(DEFECT, DEFECT, DEFECT)
    query.store.entries = dict([*query.store.entries.items()][:backup])
    assert query.kinds(DEFECT, DEFECT, DEFECT) == [RoundAborted, RoundAborted, RepeatedFailure]


def unanswered(query: Query, kind: str, monkeypatch: pytest.MonkeyPatch, *, lands: bool = False) -> None:
    """Have the store give no answer to appends of a kind."""
    put = query.store.put_if_absent

    def put_if_absent(slot: int, data: bytes) -> None:
        if f'"kind": "{kind}"'.encode() in data:
            if lands:
                query.store.entries.setdefault(slot, data)
            raise TimeoutError("no answer")
        put(slot, data)

    monkeypatch.setattr(query.store, "put_if_absent", put_if_absent)


@pytest.mark.parametrize(("kind", "lands"), [("decide", False), ("open", False), ("open", True)])
def test_an_append_that_stays_in_doubt_for_an_hour_stops_for_an_operator(
    query: Query, minutes: Iterator[int], kind: str, lands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.coordinator().recover()

    def start() -> Exception:
        with pytest.raises(TwoPhaseCommitError) as ended:
            run(query.coordinator(), 0)
        return ended.value

    with monkeypatch.context() as patched:
        unanswered(query, kind, patched, lands=lands)
        ends = [start() for _ in itertools.islice(minutes, MINUTES_AT_MOST)]
    assert [type(end) for end in ends] == [*[InDoubt] * (MINUTES_AT_MOST - 1), RepeatedFailure]
    assert "Whether the batch is decided is not known" in str(ends[-1])
    assert "No decision is known since. The newest" in str(ends[-1])
    assert ".." not in str(ends[-1])
    run(query.coordinator(), 0)
    assert query.visible("a") == ["0-0", "0-1"]


def test_a_decision_that_is_there_after_all_calls_no_operator(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twopc.repetition.MINUTES_AT_MOST", 1)
    with monkeypatch.context() as patched:
        unanswered(query, "decide", patched, lands=True)
        with pytest.raises(InDoubt):
            run(query.coordinator(), 0)
    run(query.coordinator(), 0)
    assert query.visible("a") == ["0-0", "0-1"]


def test_a_driver_that_is_fenced_while_its_last_failure_is_counted_says_so(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.kinds(DEFECT, DEFECT)
    older = query.coordinator()
    older.recover()
    post = query.store.post

    def overtaken(data: bytes) -> None:
        monkeypatch.setattr(query.store, "post", post)
        query.coordinator().recover()
        post(data)

    monkeypatch.setattr(query.store, "post", overtaken)
    with pytest.raises(Fenced):
        older.run(0, raising(DEFECT))


def test_a_committed_batch_that_is_not_evaluated_again_is_not_called_rolled_back(query: Query) -> None:
    run(query.coordinator(), 0)
    lost = RoundAborted("the executor was lost")
    with pytest.raises(Retriable, match="batch 0 is decided and committed"):
        query.coordinator().run(0, raising(AssertionError()), already_decided=raising(lost))


def test_a_batch_that_cannot_be_evaluated_again_stops_for_an_operator(query: Query) -> None:
    run(query.coordinator(), 0)

    def start() -> BaseException:
        with pytest.raises(Exception, match="no plan") as ended:
            query.coordinator().run(0, raising(AssertionError()), already_decided=raising(DEFECT))
        return ended.value

    ends = [start() for _ in range(3)]
    assert [type(end) for end in ends] == [ValueError, ValueError, RepeatedFailure]
    assert "The batch is decided." in str(ends[-1])


def ended(start: Callable[[Coordinator], object], prepare: Callable[[Coordinator], object], query: Query) -> Exception:
    coordinator = query.coordinator("a")
    prepare(coordinator)
    with pytest.raises(Exception, match="broken") as raised:
        start(coordinator)
    return raised.value


def broken(call: str) -> Callable[[Coordinator], object]:
    return lambda coordinator: sink(coordinator, "a").during.update({call: raising(KeyError("broken"))})


def test_a_start_that_fails_before_its_first_batch_counts(query: Query) -> None:
    outcomes = [ended(Coordinator.recover, broken("open"), query) for _ in range(3)]
    assert [type(each) for each in outcomes] == [KeyError, KeyError, RepeatedFailure]
    assert "this query fails again and again" in str(outcomes[-1])


@pytest.mark.parametrize("at_batch", [False, True])
def test_a_clean_stop_ends_what_failed_before_a_batch_and_not_what_fails_a_batch(query: Query, at_batch: bool) -> None:
    def fails() -> type[BaseException]:
        return type(query.fails(DEFECT) if at_batch else ended(Coordinator.recover, broken("open"), query))

    assert RepeatedFailure not in [fails(), fails()]
    with query.coordinator("a") as resolving:  # it comes to no step of the query
        resolving.recover()
    assert query.tail.repetition
    with query.coordinator("a") as coordinator:
        coordinator.recover()
        with coordinator.failures_counted():
            pass
    assert [fails(), fails(), fails()].index(RepeatedFailure) == (0 if at_batch else 2)


def test_failures_of_one_start_count_once_a_minute(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, at_s = query.coordinator(), 1000
    monkeypatch.setattr("twopc.log.entries.time.time", lambda: at_s)

    def fails() -> type[BaseException]:
        with pytest.raises(Exception, match="no plan") as raised:
            coordinator.run(0, raising(DEFECT))
        return raised.type

    assert [fails() for _ in range(5)] == [RoundAborted] * 5
    at_s += 60
    assert [fails() for _ in range(5)] == [RoundAborted] * 5
    at_s += 59
    assert fails() is RoundAborted
    at_s -= 3600  # the clock is set back
    assert fails() is RepeatedFailure


def test_a_schema_that_cannot_be_looked_at_counts_once_there_is_a_log(query: Query) -> None:
    run(query.coordinator("a"), 0)

    def prepare(coordinator: Coordinator) -> None:
        sink(coordinator, "a").validate = raising(KeyError("broken"))

    def start(coordinator: Coordinator) -> None:
        coordinator.validate({"a": pa.schema([])})

    assert [type(ended(start, prepare, query)) for _ in range(3)] == [KeyError, KeyError, RepeatedFailure]


def test_a_decided_batch_that_fails_again_and_again_is_called_decided(query: Query) -> None:
    outcomes = [ended(lambda one: run(one, 0), broken("commit"), query) for _ in range(4)]
    assert [isinstance(each, OperatorRequired) for each in outcomes] == [False, False, True, True]
    assert "The batch is decided." in str(outcomes[-1])
    run(query.coordinator("a"), 1)
    assert query.visible("a") == ["0-0", "0-1", "1-0", "1-1"]


def failing_between_batches(coordinator: Coordinator, error: Exception = DEFECT) -> None:
    with coordinator.failures_counted():
        raise error


def stopped_cleanly(coordinator: Coordinator, error: Exception = DEFECT) -> None:
    with coordinator:
        coordinator.recover()
        with coordinator.failures_counted():
            pass
        failing_between_batches(coordinator, error)


def test_a_failure_between_batches_leaves_no_committed_batch_unresolved(query: Query) -> None:
    with pytest.raises(ValueError, match="no plan"), query.ran(0, 1) as coordinator:
        failing_between_batches(coordinator)
    assert (query.tail.kind, query.tail.unresolved) == ("close", ())
    assert query.tail.repetition
    assert query.tail.repetition.starts == 1


def test_a_failure_between_batches_leaves_the_coordinator_open_though_the_log_was_away(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = query.ran(0)
    with monkeypatch.context() as away:
        away.setattr(query.store, "slots", raising(ConnectionError("away")))
        with pytest.raises(ValueError, match="no plan"):
            failing_between_batches(coordinator)
    assert query.tail.unresolved
    coordinator.rest()
    assert (query.tail.kind, query.tail.unresolved) == ("complete", ())


def test_a_failure_between_batches_counts_although_each_start_ends_cleanly(query: Query) -> None:
    ends = []
    for _ in range(3):
        with pytest.raises(Exception, match="no plan") as ended:
            stopped_cleanly(query.coordinator())
        ends.append(ended.type)
    assert ends == [ValueError, ValueError, RepeatedFailure]


def test_what_passes_between_batches_counts_although_each_start_ends_cleanly(
    query: Query, minutes: Iterator[int]
) -> None:
    ends = []
    for _ in itertools.islice(minutes, MINUTES_AT_MOST):
        with pytest.raises(TwoPhaseCommitError) as ended:
            stopped_cleanly(query.coordinator(), RoundAborted("an executor was lost"))
        ends.append(ended.type)
    assert [each is RepeatedFailure for each in ends] == [False] * (MINUTES_AT_MOST - 1) + [True]


def test_the_error_of_a_block_does_not_wait_for_a_target_that_is_away(query: Query) -> None:
    coordinator = query.ran(0)
    sink(coordinator, "a").during["recover"] = raising(Retriable("the target is away"))
    with pytest.raises(ValueError, match="no plan"), coordinator:
        raise DEFECT


def test_a_failure_after_another_coordinator_has_stopped_cleanly_counts(query: Query) -> None:
    coordinator = query.ran(0)
    with query.coordinator() as resolving:
        resolving.recover()
    with pytest.raises(Fenced):
        run(coordinator, 1)
    ends = []
    for start in range(3):
        coordinator._turns.start = str(start)
        with pytest.raises(Exception, match="no plan") as ended:
            failing_between_batches(coordinator)
        ends.append(ended.type)
    assert ends == [ValueError, ValueError, RepeatedFailure]


def test_a_failure_between_batches_keeps_what_it_was_raised_for(query: Query) -> None:
    def plan() -> None:
        try:
            raise OperatorRequired("the table is gone")
        except OperatorRequired:
            raise ValueError("no plan")  # noqa: B904

    with pytest.raises(ValueError, match="no plan") as failed, query.ran(0).failures_counted():
        plan()
    assert isinstance(failed.value.__context__, OperatorRequired)
    assert not failed.value.__suppress_context__


def test_a_failure_between_batches_whose_record_stays_in_doubt_says_so(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = query.ran(0)
    unanswered(query, "complete", monkeypatch, lands=True)
    with pytest.raises(InDoubt) as ended:
        failing_between_batches(coordinator)
    assert ended.value.__cause__ is DEFECT


def test_a_failure_amid_a_batch_is_the_batchs(query: Query) -> None:
    coordinator = query.coordinator()

    def phase_one(_: object) -> list[Vote]:
        failing_between_batches(coordinator)
        return []

    with pytest.raises(RoundAborted, match="no plan"):
        coordinator.run(0, phase_one)
    assert query.kinds(DEFECT, DEFECT) == [RoundAborted, RepeatedFailure]


def test_a_round_of_none_is_not_called_rolled_back_and_counts_like_one(query: Query, minutes: Iterator[int]) -> None:
    lost, ends = RoundAborted("the executor was lost"), []
    for _ in itertools.islice(minutes, MINUTES_AT_MOST):
        coordinator = query.coordinator()
        coordinator.recover()
        with pytest.raises(TwoPhaseCommitError, match="the executor was lost") as ended:
            failing_between_batches(coordinator, lost)
        ends.append(ended.value)
    assert {each.kind for each in ends[:-1]} == {"Retriable"}
    assert isinstance(ends[-1], RepeatedFailure)


def test_a_driver_that_was_fenced_counts_nothing_afterwards(query: Query) -> None:
    older = query.ran(0)
    query.coordinator().recover()
    for _ in range(4):
        with pytest.raises(Fenced):
            failing_between_batches(older)
    assert not query.store.notice


def test_a_driver_that_was_fenced_tells_what_it_fails_at_later(query: Query) -> None:
    older = query.ran(0)
    query.coordinator().recover()
    with pytest.raises(Fenced):
        run(older, 1)
    for _ in range(4):
        with pytest.raises(ValueError, match="no plan"):
            failing_between_batches(older)
    assert not query.store.notice


def test_a_notice_that_could_not_be_withdrawn_is_withdrawn_by_the_next_call(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices = query.ran(0)._performer.notices
    notices.post(query.tail, CallRetried("commit of x", 20, 1.0, "no leader", 75.0))
    with monkeypatch.context() as away:
        away.setattr(query.store, "posted", raising(OSError("away")))
        notices.withdraw()
    assert query.store.notice
    notices.withdraw()
    assert not query.store.notice


def test_a_wait_amid_which_the_note_cannot_be_read_keeps_it(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    assert query.kinds(DEFECT, DEFECT)
    notices, note, tail = query.coordinator()._performer.notices, query.store.notice, query.tail
    monkeypatch.setattr(query.store, "posted", raising(OSError("away")))
    notices.post(tail, CallRetried("commit of x", 20, 1.0, "no leader", 75.0))
    assert query.store.notice == note
    notices.withdraw()
    assert query.store.notice == note
