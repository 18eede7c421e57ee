"""Processes are killed with SIGKILL, and others settle what they left (invariants 2, 4 and 5)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.support.killed_writer import AFTER, BEFORE, VALUES, killed_writer

if TYPE_CHECKING:
    from tests.sinks.postgres.conftest import Place
    from twopc import Committable

pytestmark = pytest.mark.crash


def written(place: Place, when: str = AFTER, upsert_by: str = "") -> Committable | None:
    options = {"conninfo": place.server.conninfo, "table": place.table}
    return killed_writer("postgres", {**options, "upsert_by": upsert_by} if upsert_by else options, when, place.prefix)


@pytest.mark.parametrize("upsert_by", ["", pytest.param("value", marks=pytest.mark.long)])
def test_what_a_writer_pre_committed_before_its_kill_outlives_the_server_and_is_committed_by_another_process(
    upsert_by: str, own_place: Place
) -> None:
    own_place.create("value text PRIMARY KEY")
    committable = written(own_place, upsert_by=upsert_by)
    assert committable is not None
    own_place.server.kill()
    own_place.server.start()
    own_place.unbound().close()  # the connections of this process are lost with it
    assert own_place.values() == []
    sink = own_place.sink()
    assert sink.seal([committable], age_s=0) == [committable]
    for _ in range(2):
        sink.commit(committable)
    assert own_place.values() == sorted(VALUES)
    tables = own_place.ask("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", own_place.schema)
    assert tables == [("orders",), ("twopc_committed",)]


@pytest.mark.long
def test_what_a_killed_writer_left_undecided_is_found_and_rolled_back(place: Place) -> None:
    written(place)
    sink = place.sink()
    [found] = sink.recover()
    sink.abort(found)
    assert list(sink.recover()) == []
    assert place.values() == []


@pytest.mark.long
def test_what_a_killed_writer_had_not_pre_committed_the_server_rolls_back_by_itself(place: Place) -> None:
    written(place, BEFORE)
    deadline = time.monotonic() + 30
    writing = "SELECT count(*) FROM pg_locks WHERE relation = '{}'::regclass AND mode = 'RowExclusiveLock'"
    while place.ask(writing) != [(0,)]:
        assert time.monotonic() < deadline, "its session is still there"
        time.sleep(0.01)
    assert list(place.sink().recover()) == []
    assert place.values() == []
