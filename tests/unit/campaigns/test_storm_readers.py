"""The comparison finds what readers must not show."""

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
