"""Each commit tries another value of a parameter, and some commit tries each."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.turns import take_turns


class Test:
    """A test of a table, whose marks are those that pytest would find."""

    __test__ = False

    def __init__(self, name: str, table: int, *marks: pytest.MarkDecorator) -> None:
        self.nodeid = f"test_upserts.py::{name}[table{table}]"
        self.callspec = SimpleNamespace(indices={"table": table})
        self.marks = [mark.mark for mark in (pytest.mark.in_turn("table"), *marks)]

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [mark for mark in self.marks if mark.name == name]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next(iter(self.iter_markers(name)), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.mark)


def in_the_gate(commit: int, name: str) -> list[int]:
    tests = [Test(name, table) for table in (0, 1, 3)]
    take_turns(cast("Any", [*tests, Test(name, 2, pytest.mark.long)]), commit)
    return [test.callspec.indices["table"] for test in tests if not test.get_closest_marker("long")]


@pytest.mark.parametrize("name", ["test_a", "test_b"])
def test_successive_commits_try_every_value_that_is_not_long_and_each_commit_one(name: str) -> None:
    assert sorted(in_the_gate(commit, name) for commit in (7, 8, 9)) == [[0], [1], [3]]
