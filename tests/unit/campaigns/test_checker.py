"""The checker finds what a reader must not see, and each kind of defect by its own count."""

from collections import Counter
from pathlib import Path

import pytest

from tests.campaigns.jepsen.campaign import Recovery, alone_in, recovered
from tests.campaigns.jepsen.checker import COUNTS, Found, Sent, check, check_together
from tests.campaigns.jepsen.flink import A_RANGE, difference_from_ranges
from tests.campaigns.jepsen.nemesis import KINDS, Fault, deck
from tests.campaigns.jepsen.progress import ahead
from tests.campaigns.jepsen.reader import Sighting
from tests.campaigns.jepsen.workload import TASKS, History, LoopCheckpoint, Record, Votes, size
from tests.support.spark_checkpoint import Loss

MOST = 5
BATCHES = 3
VOTED_AT = 10.0
SENT = Sent(
    BATCHES, [Votes(batch, (f"{batch}a", f"{batch}b", f"{batch}c"), VOTED_AT) for batch in range(BATCHES)], MOST
)


def seen(batches: int = BATCHES, at: float = VOTED_AT + 1) -> list[Sighting]:
    """What a reader should see: the tasks write to one partition, one after the other."""
    records = [
        Record(batch, task, number, f"{batch}{'abc'[task]}")
        for batch in range(batches)
        for task in range(TASKS)
        for number in range(size(batch, task, MOST))
    ]
    return [Sighting(0, offset, at, record) for offset, record in enumerate(records)]


def counts(found: Found) -> dict[str, int]:
    return {kind: found.counts[kind] for kind in COUNTS if found.counts[kind]}


def renumbered(sightings: list[Sighting]) -> list[Sighting]:
    return [sighting._replace(offset=offset) for offset, sighting in enumerate(sightings)]


def test_what_was_sent_is_right() -> None:
    found = check(SENT, seen(), is_ordered=True)
    assert not counts(found)
    assert found.records == SENT.records


def test_a_record_that_is_missing_is_lost_and_its_batch_torn() -> None:
    assert counts(check(SENT, seen()[1:], is_ordered=True)) == {"lost": 1, "torn": 1}


def test_a_batch_that_is_missing_is_lost_and_not_torn() -> None:
    of_last_batch = sum(size(BATCHES - 1, task, MOST) for task in range(TASKS))
    assert counts(check(SENT, seen(BATCHES - 1), is_ordered=True)) == {"lost": of_last_batch}


def test_a_batch_that_was_not_acknowledged_may_be_missing() -> None:
    sent = Sent(BATCHES - 1, SENT.votes, MOST)
    assert not counts(check(sent, seen(BATCHES - 1), is_ordered=True))


def test_a_part_of_a_batch_that_was_not_acknowledged_is_torn() -> None:
    sent = Sent(BATCHES - 1, SENT.votes, MOST)
    assert counts(check(sent, seen()[:-1], is_ordered=True)) == {"torn": 1}


def test_a_record_that_comes_twice_is_a_duplicate() -> None:
    once = seen()
    assert counts(check(SENT, renumbered([*once, once[-1]]), is_ordered=False)) == {"duplicates": 1}


def test_a_batch_of_two_attempts_is_doubled_and_torn() -> None:
    other = [each._replace(record=each.record._replace(attempt="2x")) for each in seen() if each.record.batch == 2]
    sent = Sent(BATCHES, [*SENT.votes, Votes(2, ("2x", "2x", "2x"), VOTED_AT)], MOST)
    found = check(sent, renumbered([*seen(), *other]), is_ordered=False)
    assert counts(found) == {"duplicates": len(other), "torn": 1}


def test_a_record_of_an_attempt_that_did_not_vote_is_an_aborted_read() -> None:
    lost_attempt = seen()[-1]._replace(record=seen()[-1].record._replace(attempt="gone"))
    assert counts(check(SENT, [*seen()[:-1], lost_attempt], is_ordered=True)) == {"aborted_reads": 1, "torn": 1}


def test_a_record_seen_before_its_batch_had_voted_is_an_aborted_read() -> None:
    assert counts(check(SENT, seen(at=VOTED_AT - 1), is_ordered=True)) == {"aborted_reads": SENT.records}


@pytest.mark.parametrize("places", [(0, 1), (0, -1)], ids=["within a task", "between batches"])
def test_records_that_changed_places_are_reordered(places: tuple[int, int]) -> None:
    swapped, (one, other) = seen(), places
    swapped[one], swapped[other] = swapped[other], swapped[one]
    assert counts(check(SENT, renumbered(swapped), is_ordered=True)).keys() == {"reordered"}


def test_a_reader_that_goes_back_is_reordered() -> None:
    twice = [*seen(), seen()[-1]]
    assert counts(check(SENT, twice, is_ordered=True)) == {"duplicates": 1, "reordered": 1}


def test_a_batch_that_one_target_system_lacks_is_torn() -> None:
    both = {"kafka": check(SENT, seen(), is_ordered=True), "files": check(SENT, seen(2), is_ordered=False)}
    assert counts(check_together(both)) == {"torn": 1}


def test_a_batch_whose_attempts_differ_between_target_systems_is_torn() -> None:
    sent = Sent(BATCHES, [*SENT.votes, Votes(2, ("2x", "2x", "2x"), VOTED_AT)], MOST)
    other = [
        each._replace(record=each.record._replace(attempt="2x")) if each.record.batch == 2 else each for each in seen()
    ]
    both = {"kafka": check(sent, seen(), is_ordered=True), "files": check(sent, other, is_ordered=False)}
    assert [counts(each) for each in both.values()] == [{}, {}]
    assert counts(check_together(both)) == {"torn": 1}


def test_gaps_and_repetitions_in_the_numbers_of_flink_are_found() -> None:
    """Each of the source's tasks begins at a multiple of ``A_RANGE``."""
    whole = [0, 1, 2, A_RANGE, A_RANGE + 1]
    assert difference_from_ranges(whole) == {"records": 5, "lost": 0, "duplicates": 0}
    assert difference_from_ranges([*whole, 1, A_RANGE]) == {"records": 5, "lost": 0, "duplicates": 2}
    assert difference_from_ranges([0, 2, A_RANGE + 1]) == {"records": 3, "lost": 2, "duplicates": 0}


def test_the_times_of_a_fault_that_struck_alone_are_kept_by_its_kind() -> None:
    one, other = Fault("cut", iter(()), "bridge"), Fault("kill", iter(()), "killed_broker")
    recoveries = [
        Recovery({"arrow": 1.0}, {"arrow": 2.0}, [one]),
        Recovery({"arrow": 9.0}, {"arrow": 9.0}, [one, other]),
        Recovery({"arrow": 3.0}, {"arrow": 4.0}, [one]),
    ]
    found = recovered(recoveries, "arrow")
    assert found["recovery_alone_s"] == {"bridge": {"times": 2, "median": 2.0, "longest": 3.0}}
    assert found["unavailable_alone_s"] == {"bridge": {"times": 2, "median": 3.0, "longest": 4.0}}
    assert found["recovery_s"]["times"] == 3


def test_a_deck_for_faults_alone_has_each_kind_once() -> None:
    assert Counter(deck(KINDS, alone=True)) == dict.fromkeys(KINDS, 1)
    assert Counter(deck(KINDS, alone=False)) == KINDS


def test_a_batch_that_the_group_has_passed_before_all_its_rows_were_there_is_ahead() -> None:
    rows = sum(size(0, task, MOST) for task in range(TASKS))
    assert ahead([f"0 {rows}"], MOST) == []
    assert ahead([f"0 {rows - 1}"], MOST) == [f"batch 0: {rows - 1} of {rows} rows"]


def test_the_checkpoint_of_a_loop_falls_back_and_its_history_does_not(tmp_path: Path) -> None:
    checkpoint, history = LoopCheckpoint(tmp_path), History(tmp_path)
    assert checkpoint.begin() == 0
    assert not checkpoint.lose(Loss.ONE_BATCH)
    for batch in range(300):
        history.done(batch)
        checkpoint.advance(batch + 1)
    assert checkpoint.lose(Loss.TWO_BATCHES)
    assert (checkpoint.begin(), history.next_batch()) == (298, 300)
    assert checkpoint.begin() == 300


def test_a_checkpoint_that_fell_back_is_not_repaired_by_a_driver_that_still_runs(tmp_path: Path) -> None:
    running = LoopCheckpoint(tmp_path)
    running.advance(10)
    assert LoopCheckpoint(tmp_path).lose(Loss.TWO_BATCHES)
    running.advance(11)
    assert LoopCheckpoint(tmp_path).begin() == 9


def test_a_folder_belongs_to_one_campaign_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "jepsen"
    with alone_in(folder), pytest.raises(SystemExit, match="another campaign runs"), alone_in(folder):
        pass
    with alone_in(folder):
        pass
