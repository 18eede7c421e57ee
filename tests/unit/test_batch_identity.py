"""A batch's identity: how two readings differ, and what a coordinator does with a batch that comes again."""

import logging
from typing import Any

import pytest

from tests.unit.test_coordinator import World, never, write_all
from twopc.errors import LogMismatch
from twopc.log.batch_identity import differences, shown
from twopc.log.steps import ENTRIES_KEPT
from twopc.transaction import JsonValue

AT_100: JsonValue = {"sources": [{"orders": {"0": 100, "1": 7}}], "watermark": 5}
AT_300: JsonValue = {"sources": [{"orders": {"0": 300, "1": 7}}], "watermark": 5}


@pytest.fixture
def world() -> World:
    return World()


def decide(world: World, batch_id: int, reads: JsonValue) -> None:
    coordinator = world.coordinator()
    coordinator.run(batch_id, write_all(coordinator), reads=reads)


@pytest.mark.parametrize(
    ("decided", "now", "text"),
    [
        (AT_300, AT_300, ""),
        (AT_300, AT_100, "sources.0.orders.0: decided 300, now 100 (-200)"),
        ({"a": {"0": 1}}, {"a": {"0": 1, "1": 2}}, "a.1: decided nothing, now 2"),
        ([1, 2], [1], "1: decided 2, now nothing"),
        ("-", {"a": 1}, "it: decided '-', now {'a': 1}"),
        ({"a": None}, {}, "a: decided None, now nothing"),
    ],
)
def test_a_difference_names_its_path_both_sides_and_how_far_apart_numbers_are(
    decided: JsonValue, now: JsonValue, text: str
) -> None:
    assert shown(list(differences(decided, now))) == text


def test_a_message_of_many_differences_counts_the_rest() -> None:
    found = list(differences({str(n): n for n in range(15)}, {}))
    assert len(found) == 15
    assert shown(found).endswith("; and 5 more")


def test_a_message_says_how_far_apart_the_partitions_of_a_topic_are_in_all() -> None:
    decided: JsonValue = {"sources": [{"orders": {"0": 100, "1": 7, "2": 5}}], "watermark": 5}
    now: JsonValue = {"sources": [{"orders": {"0": 90, "1": 47, "2": 5}}], "watermark": 6}
    assert shown(list(differences(decided, now))).endswith("now 6 (+1); sources.0.orders: +30 in all")


def test_a_decided_batch_that_comes_again_with_the_same_input_is_not_written_again(world: World) -> None:
    decide(world, 0, AT_300)
    assert world.coordinator().run(0, never, reads=AT_300).already_decided


def test_a_decided_batch_that_comes_again_with_other_input_is_refused_before_anything_is_written(world: World) -> None:
    decide(world, 0, AT_300)
    with pytest.raises(LogMismatch, match=r"batch 0 is decided .*sources\.0\.orders\.0: decided 300, now 100 \(-200\)"):
        world.coordinator().run(0, never, reads=AT_100)
    assert world.visible("a") == ["0-0", "0-1"]


def test_a_new_batch_that_follows_a_batch_with_other_input_than_was_decided_is_refused_before_it_is_written(
    world: World,
) -> None:
    decide(world, 0, AT_100)
    with pytest.raises(LogMismatch, match=r"follow a batch 0 .*sources\.0\.orders\.0: decided 100, now 300 \(\+200\)"):
        world.coordinator().run(1, never, reads=AT_300, follows=AT_300)
    assert world.visible("a") == ["0-0", "0-1"]


def test_a_new_batch_that_follows_the_decided_one_is_written(world: World) -> None:
    decide(world, 0, AT_100)
    coordinator = world.coordinator()
    assert not coordinator.run(1, write_all(coordinator), reads=AT_300, follows=AT_100).already_decided


def test_of_the_batch_before_only_what_is_told_is_compared(world: World) -> None:
    offsets: dict[str, JsonValue] = {"0": 100, "1": 7}
    decide(world, 0, {"sources": offsets, "files": ["a"]})
    with pytest.raises(LogMismatch, match=r"sources\.1: decided 7, now nothing"):
        world.coordinator().run(1, never, reads=AT_300, follows={"sources": {"0": 100}})
    coordinator = world.coordinator()
    assert not coordinator.run(1, write_all(coordinator), reads=AT_300, follows={"sources": offsets}).already_decided


@pytest.mark.parametrize("between", ["open", "complete", "close"])
def test_what_a_batch_read_is_known_however_many_entries_follow_its_decision(world: World, between: str) -> None:
    coordinator = world.coordinator()
    coordinator.run(0, write_all(coordinator), reads=AT_300)
    if between == "open":
        world.coordinator().recover()
    elif between == "complete":
        coordinator.rest()
    else:
        coordinator.close()
    newest = world.newest()
    assert (newest.kind, newest.reads) == (between, AT_300)
    with pytest.raises(LogMismatch):
        world.coordinator().run(0, never, reads=AT_100)


@pytest.mark.parametrize(("decided", "now"), [(None, AT_100), (AT_100, None)])
def test_input_that_one_side_does_not_tell_is_not_compared_with_a_warning(
    world: World, caplog: pytest.LogCaptureFixture, decided: Any, now: Any
) -> None:
    decide(world, 0, decided)
    with caplog.at_level(logging.WARNING):
        assert world.coordinator().run(0, never, reads=now).already_decided
    assert [record.getMessage() for record in caplog.records if "its number alone" in record.getMessage()]


def test_a_batch_whose_input_nobody_tells_is_known_by_its_number_without_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    decide(world, 0, None)
    assert world.coordinator().run(0, never).already_decided
    assert not caplog.records


# An earlier batch than the newest decided, of a checkpoint that is several batches behind. ---------------------------


def of_batch(batch_id: int) -> JsonValue:
    return {"sources": [{"orders": {"0": 100 * batch_id}}]}


def test_earlier_batches_that_come_again_with_the_same_input_are_known_one_by_one(world: World) -> None:
    for batch_id in range(3):
        decide(world, batch_id, of_batch(batch_id))
    coordinator = world.coordinator()
    for batch_id in (0, 1, 2):
        assert coordinator.run(batch_id, never, reads=of_batch(batch_id)).already_decided
    assert not coordinator.run(3, write_all(coordinator), reads=of_batch(3)).already_decided
    assert world.visible("a") == [f"{batch_id}-{n}" for batch_id in range(4) for n in range(2)]


def test_an_earlier_batch_with_other_input_is_refused(world: World) -> None:
    for batch_id in range(3):
        decide(world, batch_id, of_batch(batch_id))
    with pytest.raises(LogMismatch, match=r"batch 1 is decided .*decided 100, now 200 \(\+100\)"):
        world.coordinator().run(1, never, reads=of_batch(2))


@pytest.mark.parametrize(("decided", "now"), [(None, AT_100), (AT_100, None)])
def test_an_earlier_batch_is_never_known_by_its_number_alone(world: World, decided: JsonValue, now: JsonValue) -> None:
    decide(world, 0, decided)
    decide(world, 1, AT_300)
    with pytest.raises(LogMismatch, match=r"is at batch 0, .*twopc checkpoint repair"):
        world.coordinator().run(0, never, reads=now)


def test_an_earlier_batch_is_known_as_long_as_its_entry_is_kept(world: World) -> None:
    coordinator = world.coordinator()
    for batch_id in range(2 * ENTRIES_KEPT):
        coordinator.run(batch_id, write_all(coordinator), reads=of_batch(batch_id))
    assert coordinator.run(2 * ENTRIES_KEPT - 3, never, reads=of_batch(2 * ENTRIES_KEPT - 3)).already_decided
    with pytest.raises(LogMismatch, match="is at batch 0, "):
        coordinator.run(0, never, reads=of_batch(0))
