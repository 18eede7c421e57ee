"""Processes are killed with SIGKILL, and others settle what they left (invariants 2, 4 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.killed_writer import BEFORE, VALUES, killed_writer

if TYPE_CHECKING:
    from tests.sinks.iceberg.conftest import Place

pytestmark = pytest.mark.crash


def test_what_a_writer_pre_committed_before_its_kill_is_committed_by_another_process(place: Place) -> None:
    committable = killed_writer("iceberg", place.options)
    assert committable is not None
    assert place.values() == []
    sink = place.sink()
    batch = sink.seal([committable], age_s=0)
    for _ in range(2):
        place.sink().commit_batch(7, batch)
    assert place.values() == sorted(VALUES)


@pytest.mark.parametrize("when", [BEFORE, "after pre-commit"])
def test_what_a_killed_writer_left_undecided_is_found_and_removed(when: str, place: Place) -> None:
    before = place.files()
    killed_writer("iceberg", place.options, when)
    sink = place.sink()
    [found] = sink.recover()
    sink.abort(found)
    assert list(sink.recover()) == []
    assert place.values() == []
    assert place.files() == before
