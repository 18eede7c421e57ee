"""The log or the checkpoint is lost, restored from a backup, or loses entries to a lifecycle rule. The query goes on
exactly, or stops before it writes anything, with an error that says what to do."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.memory_log import MemoryLog
from tests.support.phase_one import writes
from twopc import Coordinator, Round, Vote
from twopc.errors import CorruptLog, Fenced, LogMismatch
from twopc.log.history import read_history
from twopc.log.store import open_store
from twopc.testing import MemorySink, MemoryTarget


class Query:
    """A query that writes each batch's number, and its log in memory."""

    def __init__(self) -> None:
        self.target = MemoryTarget()
        self.log = MemoryLog()

    def driver(self, owner: str = "query") -> Coordinator:
        self.sink = MemorySink(self.target)
        return Coordinator({"orders": self.sink}, self.log, owner=owner)

    def run_new(self, *batch_ids: int, owner: str = "query") -> None:
        """Run batches by a driver of their own, which is then stopped."""
        with self.driver(owner) as driver:
            self.run(driver, *batch_ids)

    def run(self, driver: Coordinator, *batch_ids: int) -> None:
        for batch_id in batch_ids:
            driver.run(batch_id, self.phase_one, reads={"from": batch_id})

    def phase_one(self, round: Round) -> Iterator[Vote]:
        return writes({"orders": self.sink}, {"value": [round.batch_id]})(round)

    def written(self) -> list[int]:
        return [row["value"] for row in self.target.visible]


@pytest.fixture
def query() -> Query:
    return Query()


def remove(log: MemoryLog, which: Callable[[list[int]], list[int]]) -> None:
    for slot in which(log.slots()):
        log.delete(slot)


@pytest.mark.advice("and its commit log at … is empty")
def test_a_log_that_was_lost_stops_the_query_until_it_is_restored(query: Query) -> None:
    query.run_new(0, 1)
    lost, query.log.entries = query.log.entries, {}
    with pytest.raises(LogMismatch, match=r"at memory is empty. Nothing was written.*restore"):
        query.run_new(2)
    assert query.written() == [0, 1]
    query.log.entries = lost
    query.run_new(2)
    assert query.written() == [0, 1, 2]


@pytest.mark.advice("The checkpoint and the log are not of the same age")
def test_an_older_log_stops_the_query_until_the_newest_is_restored(query: Query) -> None:
    query.run_new(0)
    backup = dict(query.log.entries)
    query.run_new(1, 2)
    newest, query.log.entries = query.log.entries, backup
    with pytest.raises(LogMismatch, match=r"not of the same age: restore the log"):
        query.run_new(3)
    assert query.written() == [0, 1, 2]
    query.log.entries = newest
    query.run_new(3)
    assert query.written() == [0, 1, 2, 3]


@pytest.mark.advice("The checkpoint and the log are not of the same age")
def test_a_query_that_is_started_anew_writes_again_what_it_reads_again(query: Query) -> None:
    query.run_new(0, 1)
    anew = "start both anew: what the query reads again is then written again"
    with pytest.raises(LogMismatch, match=anew):
        query.run_new(5)
    query.log = MemoryLog()
    query.run_new(0, owner="anew")
    assert query.written() == [0, 1, 0]


def test_an_older_log_that_is_restored_under_its_driver_stops_it(query: Query) -> None:
    driver = query.driver()
    query.run(driver, 0)
    backup = dict(query.log.entries)
    query.run(driver, 1, 2)
    query.log.entries = dict(backup)
    with pytest.raises(Fenced, match=r"its own newest entry is gone from the log.*restore the newest entries"):
        query.run(driver, 3)
    assert query.log.entries == backup
    assert query.written() == [0, 1, 2]


def test_a_log_that_is_emptied_under_its_driver_is_begun_again_by_its_next_decision(query: Query) -> None:
    driver = query.driver()
    query.run(driver, 0, 1)
    query.log.entries = {}
    query.run(driver, 2)
    query.run(query.driver(), 3)
    assert query.written() == [0, 1, 2, 3]


def test_a_checkpoint_that_was_lost_is_another_query_to_its_log(query: Query) -> None:
    query.run_new(0, 1)
    with pytest.raises(LogMismatch, match=r"belongs to query query, and this is query new.*old checkpoint back"):
        query.run(query.driver("new"), 0)
    assert query.written() == [0, 1]


def test_an_older_checkpoint_passes_through_decided_batches_and_plans_no_other_ones(query: Query) -> None:
    query.run_new(0, 1, 2)
    with query.driver() as driver:
        query.run(driver, 1, 2)
        with pytest.raises(LogMismatch, match=r"comes again with other input.*twopc checkpoint repair"):
            driver.run(2, query.phase_one, reads={"from": 7})
    assert query.written() == [0, 1, 2]


@pytest.mark.parametrize(
    "rule",
    [lambda slots: slots[:3], lambda slots: slots[2:4], lambda slots: slots[:-1]],
    ids=["oldest", "middle", "all"],
)
@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_query_needs_only_the_newest_entry(
    query: Query, rule: Callable[[list[int]], list[int]], is_stopped: bool
) -> None:
    driver = query.driver()
    query.run(driver, 0, 1, 2, 3)
    if is_stopped:
        driver.close()
        driver = query.driver()
    remove(query.log, rule)
    query.run(driver, 4, 5)
    assert query.written() == [0, 1, 2, 3, 4, 5]


def test_a_query_whose_newest_entries_a_rule_removes_stops(query: Query) -> None:
    query.run_new(0, 1, 2, 3)
    remove(query.log, lambda slots: slots[-3:])
    with pytest.raises(LogMismatch, match=r"restore the log that was replaced"):
        query.run_new(4)
    assert query.written() == [0, 1, 2, 3]


def test_a_driver_whose_newest_entry_a_rule_removes_stops(query: Query) -> None:
    driver = query.driver()
    query.run(driver, 0, 1)
    remove(query.log, lambda slots: slots[-1:])
    with pytest.raises(Fenced, match="its own newest entry is gone from the log"):
        query.run(driver, 2)
    assert query.written() == [0, 1]


@pytest.mark.advice("entries are missing in between")
def test_the_command_names_the_gap_that_a_rule_has_left_and_what_still_works(tmp_path: Path) -> None:
    sink = MemorySink(MemoryTarget())
    with Coordinator({"orders": sink}, str(tmp_path), owner="query") as driver:
        for batch_id in range(4):
            driver.run(batch_id, lambda _: [])
    open_store(str(tmp_path)).delete(2)
    with pytest.raises(CorruptLog, match=r"1 entries are missing in between.*so it can be started"):
        read_history(str(tmp_path))
    for slot in (0, 1):
        open_store(str(tmp_path)).delete(slot)
    assert read_history(str(tmp_path)).tail.decided == 3
