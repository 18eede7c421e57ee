"""What is logged of calls that get no answer."""

import logging
from collections.abc import Callable, Iterator

import pytest

from twopc.errors import Retriable
from twopc.events import CallRetried
from twopc.retry import Waits, until_answered


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The log, line by line, as it grows."""

    class Lines(list[str]):
        def __iter__(self) -> Iterator[str]:
            return iter(caplog.messages)

    with caplog.at_level(logging.WARNING, "twopc.retry"):
        yield Lines()


def retried(what: str, waited_s: float) -> CallRetried:
    return CallRetried(what, 1, 1.0, "away", waited_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time by which lines are due, in seconds."""
    now_s = [0.0]
    monkeypatch.setattr("twopc.retry.time.monotonic", lambda: now_s[0])

    def at(second: float) -> None:
        now_s[0] = second

    return at


def test_calls_of_one_batch_and_sink_are_told_in_one_line_with_their_number_and_age(
    lines: list[str], clock: Callable[[float], None]
) -> None:
    waits = Waits()
    for second in (0.5, 1.0, 1.5, 2.0):
        clock(second)
        for what in ("commit of a", "commit of b", "commit of c"):
            waits.log("commits", retried(what, second))
    assert list(lines) == [
        "commits: no answer to 3 calls for 1 s (away), again in 1.0 s",
        "commits: no answer to 3 calls for 2 s (away), again in 1.0 s",
    ]


def test_lines_of_a_long_wait_are_a_minute_apart(lines: list[str], clock: Callable[[float], None]) -> None:
    waits = Waits()
    for second in range(301):
        clock(second)
        waits.log("a look", retried("a look", float(second)))
    ages = [int(line.split(" for ")[1].split(" s")[0]) for line in lines]
    assert ages == [1, 2, 4, 8, 16, 32, 64, 124, 184, 244]


def test_a_call_that_began_later_is_told_though_an_earlier_one_had_waited_for_long(
    lines: list[str], clock: Callable[[float], None]
) -> None:
    waits = Waits()
    for second in range(400):
        clock(second)
        if second < 200:
            waits.log("commits", retried("commit of a", float(second)))
        if second == 200:
            waits.end("commits", "commit of a")
        if second >= 190:
            waits.log("commits", retried("commit of b", float(second - 190)))
    assert [line.partition(" (")[0] for line in lines if " b:" in line] == [
        "commit of b: no answer for 54 s",
        "commit of b: no answer for 108 s",
        "commit of b: no answer for 168 s",
    ]


def test_what_has_ended_is_counted_no_more_and_a_later_wait_begins_anew(
    lines: list[str], clock: Callable[[float], None]
) -> None:
    waits = Waits()
    for what in ("a", "b"):
        waits.log("both", retried(what, 0.1))
    waits.end("both", "a")
    waits.log("both", retried("b", 4.0))
    waits.end("both", "b")
    waits.log("both", retried("b", 1.0))
    assert [line.partition(" (")[0] for line in lines] == ["b: no answer for 4 s", "b: no answer for 1 s"]


def test_the_longest_wait_is_of_a_call_that_still_waits(clock: Callable[[float], None]) -> None:
    waits = Waits()
    clock(10.0)
    waits.log("commits", retried("commit of a", 8.0))
    waits.log("commits", retried("commit of b", 0.1))
    assert waits.longest_s == 8.0
    waits.end("commits", "commit of a")
    clock(11.0)
    assert waits.longest_s == pytest.approx(1.1)
    waits.end("commits", "commit of b")
    assert waits.longest_s == 0.0


def test_a_short_wait_is_not_logged(lines: list[str]) -> None:
    answers = [Retriable("busy")] * 3

    def busy() -> str:
        if answers:
            raise answers.pop()
        return "done"

    assert until_answered("a look", busy) == "done"
    assert list(lines) == []


def test_who_gives_up_when_told_is_not_kept_by_another_try() -> None:
    waits, tries = Waits(), []

    def away() -> None:
        tries.append("away")
        raise Retriable("away")

    with pytest.raises(Retriable, match="away"):
        until_answered("a look", away, waits=waits, tell=lambda _: waits.given_up.set())
    assert tries == ["away"]


def test_who_gives_up_gets_the_last_error() -> None:
    waits = Waits()

    def away() -> None:
        waits.given_up.set()
        raise Retriable("away")

    with pytest.raises(Retriable, match="away"):
        until_answered("a look", away, waits=waits)
