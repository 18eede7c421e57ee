"""The commit log on its stores: fencing, lost replies, zombies and pruning."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.commit_log import CommitLog
from tests.support.memory_log import MemoryLog
from twopc import Committable, Round
from twopc.errors import ConfigurationError, CorruptLog, Fenced, InDoubt, LogMismatch, Retriable
from twopc.log import commit_log, steps
from twopc.log.commit_log import on_store, read_tail
from twopc.log.entries import Decision, opened
from twopc.log.entry_json import serialise
from twopc.log.steps import ENTRIES_KEPT, STARTS_KEPT
from twopc.log.store import LogStore, open_store


def decision(batch_id: int, incarnation: int = 1) -> Decision:
    return Decision(Round(incarnation, batch_id), {"a": (Committable(f"t{batch_id}", {}, 1),)})


@pytest.fixture
def memory() -> LogStore:
    return MemoryLog()


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    return open_store(f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"{tmp_path}/log")


def exists() -> None:
    raise FileExistsError


@dataclass
class Faults:
    """A store on which something happens before or after the effect of the next calls of an operation."""

    behind: LogStore
    before: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    after: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    put: list[bytes] = field(default_factory=list)
    url: str = "faults://log"

    def _call(self, operation: str, effect: Callable[[], Any], slot: int | None = None) -> Any:
        self.calls.append(operation if slot is None else f"{operation} {slot}")
        self._at(self.before, operation)
        result = effect()
        self._at(self.after, operation)
        return result

    def _at(self, plan: dict[str, list[Callable[[], None]]], operation: str) -> None:
        if plan.get(operation):
            plan[operation].pop(0)()

    def slots(self) -> Any:
        return self._call("slots", self.behind.slots)

    def read(self, slot: int) -> Any:
        return self._call("read", lambda: self.behind.read(slot), slot)

    def put_if_absent(self, slot: int, data: bytes) -> None:
        self.put.append(data)
        self._call("put", lambda: self.behind.put_if_absent(slot, data), slot)

    def delete(self, slot: int) -> None:
        self._call("delete", lambda: self.behind.delete(slot), slot)

    def post(self, data: bytes) -> None:
        self.behind.post(data)

    def posted(self) -> bytes:
        return self.behind.posted()


@pytest.fixture
def faults(memory: LogStore) -> Faults:
    return Faults(memory)


@pytest.fixture
def log(faults: Faults) -> CommitLog:
    """A log that was opened on a store with faults."""
    return CommitLog.open(faults, "query")


def test_a_decision_that_is_too_long_is_not_written_and_the_log_goes_on(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CommitLog.open(store, "query")
    monkeypatch.setattr("twopc.log.entry_json.LONGEST_DECISION", 100)
    with pytest.raises(ConfigurationError, match="too many transactions or files"):
        log.decide(decision(0))
    monkeypatch.undo()
    assert read_tail(store) == (0, log.tail)
    log.decide(decision(0))


def times_out() -> None:
    raise TimeoutError("no reply")


def refuses() -> None:
    raise ConfigurationError("the right to write was taken away meanwhile")


def works() -> None:
    pass


def remove(store: LogStore) -> None:
    for slot in store.slots():
        store.delete(slot)


class ClientError(Exception):
    """Clients of object stores raise errors that are no OSError."""


def client_fails() -> None:
    raise ClientError("no reply")


# The order of entries. --------------------------------------------------------------------------------------------


def test_a_log_is_opened_decided_and_closed_in_ascending_slots(store: LogStore) -> None:
    log = CommitLog.open(store, "query")
    log.decide(decision(0))
    log.decide(decision(1))
    log.close()
    assert store.slots() == [0, 1, 2, 3]
    assert read_tail(store) == (3, log.tail)


def test_a_new_incarnation_finds_what_the_last_one_decided(store: LogStore) -> None:
    CommitLog.open(store, "query").decide(decision(0))
    log = CommitLog.open(store, "query")
    assert (log.incarnation, log.tail.decided, log.tail.unresolved) == (2, 0, (decision(0),))


def test_a_log_of_another_query_is_refused_and_unchanged(store: LogStore) -> None:
    CommitLog.open(store, "theirs")
    with pytest.raises(LogMismatch):
        CommitLog.open(store, "ours")
    assert store.slots() == [0]


def test_a_corrupt_tail_is_refused_and_unchanged(store: LogStore) -> None:
    CommitLog.open(store, "query")
    store.put_if_absent(1, b"{}")
    with pytest.raises(CorruptLog, match=r"00000000000000000001\.json"):
        CommitLog.open(store, "query")
    assert store.slots() == [0, 1]


def test_a_tail_pruned_between_listing_and_reading_is_looked_for_again(memory: LogStore) -> None:
    log = CommitLog.open(memory, "query")
    log.decide(decision(0))
    faults = Faults(memory, after={"slots": [lambda: log.decide(decision(1)), lambda: None]})
    faults.before["read"] = [lambda: memory.delete(1)]
    assert read_tail(faults) == (2, log.tail)


# Two coordinators. ------------------------------------------------------------------------------------------------


def test_the_older_of_two_is_fenced_at_decide_at_close_and_at_verify(store: LogStore) -> None:
    older = CommitLog.open(store, "query")
    older.verify()
    newer = CommitLog.open(store, "query")
    before = store.slots()
    with pytest.raises(Fenced, match=r"incarnation 1 of query query"):
        older.decide(decision(0))
    with pytest.raises(Fenced):
        older.close()
    with pytest.raises(Fenced):
        older.verify()
    assert store.slots() == before
    assert older.tail.decided is None
    newer.verify()
    newer.decide(decision(0, 2))


def test_the_older_of_two_stays_fenced_after_the_newer_one_has_stopped(store: LogStore) -> None:
    older = CommitLog.open(store, "query")
    CommitLog.open(store, "query").close()
    with pytest.raises(Fenced):
        older.verify()
    with pytest.raises(Fenced):
        older.decide(decision(0))


def test_a_log_that_was_deleted_fences_who_used_it(store: LogStore) -> None:
    log = CommitLog.open(store, "query")
    store.delete(0)
    with pytest.raises(Fenced):
        log.verify()


def test_who_loses_the_race_for_a_slot_opens_behind_the_winner(memory: LogStore) -> None:
    winners: list[CommitLog] = []
    faults = Faults(memory, before={"put": [lambda: winners.append(CommitLog.open(memory, "query"))]})
    log = CommitLog.open(faults, "query")
    assert (winners[0].incarnation, log.incarnation) == (1, 2)
    assert log.tail.log_id == winners[0].tail.log_id


# An append without a reply. ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "puts"),
    [
        ([], [times_out], 3),  # the first request was written after all, though it is put again
        ([times_out], [], 3),
        ([times_out], [exists], 3),  # of the second the reply is lost: the client repeats it, and meets its own
    ],
    ids=["lost reply", "lost request", "put twice by the client"],
)
def test_an_entry_that_was_put_again_is_the_coordinators_own(
    before: list[Callable[[], None]],
    after: list[Callable[[], None]],
    puts: int,
    memory: LogStore,
    faults: Faults,
    log: CommitLog,
) -> None:
    faults.before["put"], faults.after["put"] = [*before], [*after]
    log.decide(decision(0))
    assert len(faults.put) == puts
    assert read_tail(memory) == (1, log.tail)
    assert log.tail.decided == 0
    log.decide(decision(1))


def test_an_open_without_a_reply_is_settled_in_the_same_way(memory: LogStore) -> None:
    log = CommitLog.open(Faults(memory, after={"put": [times_out]}), "query")
    assert (log.incarnation, memory.slots()) == (1, [0])
    log = CommitLog.open(Faults(memory, before={"put": [times_out]}), "query")
    assert (log.incarnation, memory.slots()) == (2, [0, 1])


def test_two_lost_requests_are_in_doubt(memory: LogStore, faults: Faults, log: CommitLog) -> None:
    faults.before["put"] = [times_out, times_out]
    with pytest.raises(InDoubt, match=r"00000000000000000001\.json \(TimeoutError: no reply\).*Start again"):
        log.decide(decision(0))
    assert faults.calls.count("put 1") == 2
    assert memory.slots() == [0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"put": [works, refuses]}, {"put": [times_out]}),  # a lost reply, and a refused repeat
        ({"put": [works, times_out]}, {"put": [times_out]}),  # a lost reply, and a lost request
        *(({"read": [fails]}, {"put": [times_out]}) for fails in (times_out, client_fails)),  # it can't be read back
        *(({"read": [fails]}, {}) for fails in (times_out, client_fails)),  # nor its place be checked
    ],
)
def test_an_append_that_can_not_be_settled_is_in_doubt_though_the_entry_is_there(
    before: dict[str, list[Callable[[], None]]],
    after: dict[str, list[Callable[[], None]]],
    memory: LogStore,
    faults: Faults,
    log: CommitLog,
) -> None:
    for plan, given in ((faults.before, before), (faults.after, after)):
        plan.update({operation: [*calls] for operation, calls in given.items()})
    with pytest.raises(InDoubt):
        log.decide(decision(0))
    assert CommitLog.open(memory, "query").tail.decided == 0


@pytest.mark.parametrize("fails", [times_out, client_fails])
def test_a_first_entry_whose_place_cannot_be_checked_is_in_doubt(memory: LogStore, fails: Callable[[], None]) -> None:
    faults = Faults(memory, before={"slots": [lambda: None, fails]})
    with pytest.raises(InDoubt):
        CommitLog.open(faults, "query")


@pytest.mark.parametrize(("operation", "works_before"), [("delete", 0), ("slots", 1)])
def test_an_entry_that_does_not_count_and_may_still_be_the_newest_is_in_doubt(
    operation: str, works_before: int, memory: LogStore, faults: Faults, log: CommitLog
) -> None:
    """The next start takes it for the tail, so nobody may say that its batch will never be committed."""
    log.decide(decision(0))
    memory.delete(1)
    faults.before[operation] = [*[works] * works_before, times_out]
    with pytest.raises(InDoubt, match="whether the entry was or will be written is not known"):
        log.decide(decision(1))
    assert CommitLog.open(memory, "query").tail.decided == 1


def test_a_lost_request_whose_slot_a_newer_coordinator_took_is_fenced_not_in_doubt(
    memory: LogStore, faults: Faults, log: CommitLog
) -> None:
    def newer_opens() -> None:
        CommitLog.open(memory, "query")
        times_out()

    faults.before["put"] = [newer_opens]
    with pytest.raises(Fenced):
        log.decide(decision(0))
    assert CommitLog.open(memory, "query").tail.decided is None


def test_a_request_in_doubt_that_lands_late_has_no_effect_once_a_newer_one_has_opened(
    memory: LogStore, faults: Faults, log: CommitLog
) -> None:
    faults.before["put"] = [times_out, times_out]
    with pytest.raises(InDoubt):
        log.decide(decision(0))
    newer = CommitLog.open(memory, "query")
    with pytest.raises(FileExistsError):
        memory.put_if_absent(1, b"the request that was delayed")
    newer.verify()


# A zombie that sleeps on a slot. ----------------------------------------------------------------------------------


def run_until_pruned(store: LogStore, slot: int) -> CommitLog:
    log = CommitLog.open(store, "query")
    batch = 0 if log.tail.decided is None else log.tail.decided + 1
    while store.slots()[0] <= slot:
        log.decide(decision(batch, log.incarnation))
        batch += 1
    return log


def test_a_zombie_that_slept_on_slot_0_has_not_opened(memory: LogStore) -> None:
    newer: list[CommitLog] = []
    zombie = Faults(memory, before={"put": [lambda: newer.append(run_until_pruned(memory, 0))]})
    log = CommitLog.open(zombie, "query")
    assert zombie.calls.count("put 0") == 1
    assert log.incarnation == newer[0].incarnation + 1
    assert log.tail.log_id == newer[0].tail.log_id
    assert read_tail(memory) == (log.view.slot, log.tail)


@pytest.mark.parametrize("operation", ["decide", "close"])
@pytest.mark.parametrize("slot", [1, 2, ENTRIES_KEPT - 1, ENTRIES_KEPT])
def test_a_zombie_that_slept_on_a_pruned_slot_has_not_appended_and_misleads_nobody(
    memory: LogStore, slot: int, operation: str
) -> None:
    zombie = CommitLog.open(memory, "query")
    for batch in range(slot - 1):
        zombie.decide(decision(batch))
    newer = run_until_pruned(memory, slot)
    with pytest.raises(Fenced):
        zombie.decide(decision(slot - 1)) if operation == "decide" else zombie.close()
    assert zombie.view.slot == slot - 1
    newer.verify()
    assert read_tail(memory) == (newer.view.slot, newer.tail)
    assert CommitLog.open(memory, "query").tail.decided == newer.tail.decided


def test_a_zombie_is_not_fooled_by_another_that_refilled_the_slot_before_it(memory: LogStore) -> None:
    first = CommitLog.open(memory, "query")  # sleeps on slot 1
    run_until_pruned(memory, 1)
    memory.put_if_absent(0, serialise(opened(None, "query")))  # another zombie, which slept on slot 0
    with pytest.raises(Fenced):
        first.decide(decision(0))
    assert first.tail.decided is None


def test_a_zombie_that_opens_on_a_pruned_slot_opens_again_behind_the_tail(memory: LogStore) -> None:
    CommitLog.open(memory, "query")
    newer: list[CommitLog] = []
    zombie = Faults(memory, before={"put": [lambda: newer.append(run_until_pruned(memory, 1))]})
    log = CommitLog.open(zombie, "query")
    assert log.incarnation == newer[0].incarnation + 1
    assert log.tail.decided == newer[0].tail.decided


def test_a_slot_pruned_while_the_zombie_writes_is_noticed_because_it_looks_afterwards(
    memory: LogStore, faults: Faults, log: CommitLog
) -> None:
    faults.before["put"] = [lambda: (run_until_pruned(memory, 1), None)[1]]
    with pytest.raises(Fenced):
        log.decide(decision(0))
    assert faults.calls[-4:] == ["put 1", "read 0", "slots", "slots"]


def test_what_a_zombie_left_in_a_slot_that_was_pruned_before_it_was_read_misleads_nobody(memory: LogStore) -> None:
    zombie = CommitLog.open(memory, "query")
    CommitLog.open(memory, "query")
    newer: list[CommitLog] = []

    def meanwhile() -> None:
        newer.append(run_until_pruned(memory, 1))
        with pytest.raises(Fenced):
            zombie.decide(decision(0))

    log = CommitLog.open(Faults(memory, after={"slots": [meanwhile]}), "query")
    assert (log.incarnation, log.tail.decided) == (newer[0].incarnation + 1, newer[0].tail.decided)


def test_a_put_that_lands_when_its_slot_is_long_pruned_does_not_wake_a_zombie(memory: LogStore) -> None:
    store = Faults(memory, before={"put": [lambda: None, times_out]})
    zombie = CommitLog.open(store, "query")
    zombie.decide(decision(0))
    run_until_pruned(memory, 2)
    memory.put_if_absent(1, store.put[1])
    with pytest.raises(Fenced):
        zombie.decide(decision(1))


# Pruning. ---------------------------------------------------------------------------------------------------------


def test_pruning_keeps_the_tail_and_what_people_may_want_to_read_behind_it(store: LogStore) -> None:
    log = CommitLog.open(store, "query")
    for batch in range(5 * ENTRIES_KEPT):
        log.decide(decision(batch))
        slots = store.slots()
        assert slots[-1] == log.view.slot
        assert log.view.slot - 1 in slots
        assert slots == list(range(slots[0], slots[-1] + 1))
        assert min(log.view.slot + 1, ENTRIES_KEPT) <= len(slots) <= 2 * ENTRIES_KEPT


def test_pruning_goes_oldest_first_and_stops_at_the_first_that_fails(
    memory: LogStore, faults: Faults, log: CommitLog
) -> None:
    for batch in range(2 * ENTRIES_KEPT - 1):
        log.decide(decision(batch))
    faults.before["delete"] = [works, works, times_out]
    log.decide(decision(2 * ENTRIES_KEPT - 1))
    assert [call for call in faults.calls if call.startswith("delete")] == ["delete 0", "delete 1", "delete 2"]
    assert memory.slots()[0] == 2


@pytest.mark.parametrize("operation", ["slots", "delete"])
@pytest.mark.parametrize("fails", [times_out, client_fails])
def test_a_prune_that_fails_does_not_disturb_the_decision(
    memory: LogStore, faults: Faults, log: CommitLog, operation: str, fails: Callable[[], None]
) -> None:
    for batch in range(2 * ENTRIES_KEPT - 1):
        log.decide(decision(batch))
    faults.before[operation] = [fails]
    log.decide(decision(2 * ENTRIES_KEPT - 1))
    assert read_tail(memory) == (2 * ENTRIES_KEPT, log.tail)


@pytest.mark.parametrize("batches", [0, 1, 2, 6, 30])
def test_a_log_of_short_runs_does_not_grow_without_bound(memory: LogStore, batches: int) -> None:
    """An availableNow query that writes a few batches a run: whatever their number, something prunes."""
    batch = 0
    for _ in range(6 * ENTRIES_KEPT):
        log = CommitLog.open(memory, "query")
        for _ in range(batches):
            log.decide(decision(batch))
            batch += 1
        log.close()
        if batch > 6 * ENTRIES_KEPT:
            break
    assert len(memory.slots()) <= 2 * ENTRIES_KEPT + 1


def test_a_query_that_is_refused_and_started_again_keeps_what_its_repair_needs(memory: LogStore) -> None:
    log = CommitLog.open(memory, "query")
    for batch in range(6):
        log.decide(decision(batch), reads=batch)
    for _ in range(5 * ENTRIES_KEPT):
        CommitLog.open(memory, "query")
    kept = [on_store(memory, steps.read_decision(batch)) for batch in range(6)]
    assert [entry.reads if entry else None for entry in kept] == [*range(6)]
    for _ in range(STARTS_KEPT * ENTRIES_KEPT):
        CommitLog.open(memory, "query")
    assert len(memory.slots()) == STARTS_KEPT * ENTRIES_KEPT + 1


def test_an_incarnation_goes_on_in_another_process_until_a_newer_one_opens(store: LogStore) -> None:
    opened_here = CommitLog.open(store, "query")
    log_id = opened_here.tail.log_id
    elsewhere = CommitLog.resume(store, log_id, 1)
    elsewhere.decide(decision(0))
    assert CommitLog.resume(store, log_id, 1).tail.decided == 0  # also behind its own entries
    CommitLog.open(store, "query")
    with pytest.raises(Fenced, match="incarnation 1 can't go on"):
        CommitLog.resume(store, log_id, 1)
    with pytest.raises(Fenced):
        elsewhere.decide(decision(1))


def test_a_log_that_was_removed_or_replaced_lets_no_incarnation_go_on(store: LogStore) -> None:
    log_id = CommitLog.open(store, "query").tail.log_id
    store.delete(0)
    with pytest.raises(Fenced, match="or the log was removed or replaced"):
        CommitLog.resume(store, log_id, 1)
    CommitLog.open(store, "query")
    with pytest.raises(Fenced, match="or the log was removed or replaced"):
        CommitLog.resume(store, log_id, 1)


def test_a_driver_whose_log_was_removed_begins_it_again_with_its_next_entry(store: LogStore) -> None:
    log = CommitLog.open(store, "query")
    log.decide(decision(0))
    remove(store)
    log.decide(decision(1))
    assert read_tail(store) == (2, log.tail)
    log.decide(decision(2))
    assert CommitLog.open(store, "query").tail.decided == 2


@pytest.mark.parametrize("recorded", [CommitLog.complete, CommitLog.close])
@pytest.mark.parametrize("when", ["before", "while it is recorded"])
def test_a_log_that_was_removed_does_not_come_back_for_a_rest_or_a_stop(
    store: LogStore, recorded: Callable[[CommitLog], None], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next query there would be refused, as the log belongs to another."""
    log = CommitLog.open(store, "query")
    log.decide(decision(0))
    if when == "before":
        remove(store)
    else:
        monkeypatch.setattr(log, "verify", lambda: remove(store))
    with pytest.raises(Fenced, match="has removed entries"):
        recorded(log)
    assert store.slots() == []


def test_a_log_that_was_removed_and_begun_again_keeps_no_entry_of_the_driver_before(store: LogStore) -> None:
    zombie = CommitLog.open(store, "query")
    for batch in range(5):
        zombie.decide(decision(batch))
    remove(store)
    newer = CommitLog.open(store, "query")
    with pytest.raises(Fenced):
        zombie.decide(decision(5))
    newer.decide(decision(0))
    newer.verify()
    assert read_tail(store) == (1, newer.tail)


@pytest.mark.advice("lists other entries than it reads or lets this process create")
@pytest.mark.parametrize(
    ("operation", "answer"), [("read", lambda slot: MemoryLog().read(slot)), ("slots", list)], ids=["read", "list"]
)
def test_a_store_that_does_not_read_what_it_lists_or_list_what_it_has_is_reported_by_and_by(
    operation: str, answer: Any, memory: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "SETTLES_WITHIN_S", 0.05)
    CommitLog.open(memory, "query")
    with monkeypatch.context() as late:
        late.setattr(memory, operation, answer)
        with pytest.raises(Retriable, match=r"lists other entries than it reads .* actimeo=0; then start again"):
            CommitLog.open(memory, "query")
    assert CommitLog.open(memory, "query").tail.incarnation == 2


def test_of_two_processes_that_go_on_with_an_incarnation_one_decides(store: LogStore) -> None:
    log_id = CommitLog.open(store, "query").tail.log_id
    one, other = (CommitLog.resume(store, log_id, 1) for _ in range(2))
    one.decide(decision(0))
    with pytest.raises(Fenced):
        other.decide(decision(0))


# Stores that contradict themselves. -------------------------------------------------------------------------------


@dataclass
class Gateway:
    """Something between a client and the store, which answers 404 in the store's place while it is broken."""

    behind: LogStore
    is_broken: bool = False
    loses_a_reply: bool = False
    url: str = "gateway://log"

    def slots(self) -> list[int]:
        return [] if self.is_broken else self.behind.slots()

    def read(self, slot: int) -> bytes:
        if self.is_broken:
            raise FileNotFoundError(slot)
        return self.behind.read(slot)

    def put_if_absent(self, slot: int, data: bytes) -> None:
        self.behind.put_if_absent(slot, data)
        if self.loses_a_reply:
            self.loses_a_reply = False
            raise TimeoutError("no reply")

    def delete(self, slot: int) -> None:
        self.behind.delete(slot)

    def post(self, data: bytes) -> None:
        self.behind.post(data)

    def posted(self) -> bytes:
        return self.behind.posted()


@pytest.mark.parametrize("loses_a_reply", [False, True])
def test_a_decision_that_the_store_confirms_and_does_not_show_is_in_doubt_and_stays(
    loses_a_reply: bool, memory: LogStore
) -> None:
    gateway = Gateway(memory)
    log = CommitLog.open(gateway, "query")
    gateway.is_broken, gateway.loses_a_reply = True, loses_a_reply
    with pytest.raises(InDoubt, match="shows neither it nor a newer one"):
        log.decide(decision(0))
    assert CommitLog.open(memory, "query").tail.decided == 0
