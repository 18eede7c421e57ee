"""What the storm counts in logs, and what it finds that readers must not show."""

import pytest

from tests.campaigns.storm.contents import SKIPPED
from tests.campaigns.storm.readers import compared

BATCHES = {0: [0, 1], 1: [2, 3, 4]}


def test_whole_batches_are_spotless() -> None:
    shown = {0: [1, 0], 1: [4, 2, 3]}
    assert compared(shown, BATCHES, 5) == {"shown": 2, "torn": 0, "lost": 0, "doubled": 0}


def test_a_part_of_a_batch_is_torn_and_its_rest_lost() -> None:
    assert compared({0: [0, 1], 1: [2, 4]}, BATCHES, 5) == {"shown": 2, "torn": 1, "lost": 1, "doubled": 0}


def test_a_batch_that_is_not_shown_is_lost() -> None:
    assert compared({0: [0, 1]}, BATCHES, 5) == {"shown": 1, "torn": 0, "lost": 3, "doubled": 0}


def test_a_record_that_is_shown_twice_is_doubled() -> None:
    assert compared({0: [0, 1], 1: [2, 3, 4, 4, 0]}, BATCHES, 5) == {"shown": 2, "torn": 1, "lost": 0, "doubled": 2}


@pytest.mark.parametrize("kind", ["Set", "HashSet"])
def test_partitions_whose_marker_was_left_out_are_found_in_the_brokers_log(kind: str) -> None:
    line = (
        f"Couldn't find leader endpoint for partitions {kind}(target-0, target-2) while trying to send transaction"
        " markers for storm, these partitions are likely deleted already and hence can be skipped"
    )
    assert SKIPPED.findall(line) == ["target-0, target-2"]
