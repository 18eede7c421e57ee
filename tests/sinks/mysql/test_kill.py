"""Processes are killed with SIGKILL, and others settle what they left (invariants 2, 4 and 5)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.sinks.mysql.conftest import Place, new_place
from tests.support.killed_writer import AFTER, BEFORE, VALUES, killed_writer
from tests.support.mariadb_server import VERSIONS, MariaDbServer

if TYPE_CHECKING:
    from twopc import Committable

pytestmark = pytest.mark.crash


def written(place: Place, when: str = AFTER, upsert_by: str = "") -> Committable | None:
    options = {"url": place.server.url(place.database), "table": "orders"}
    return killed_writer("mysql", {**options, "upsert_by": upsert_by} if upsert_by else options, when, place.prefix)


@pytest.fixture(params=VERSIONS)
def server_of_version(request: pytest.FixtureRequest) -> Iterator[MariaDbServer]:
    with MariaDbServer(version=request.param, binlog=True) as server:
        yield server


def outlives(place: Place, upsert_by: str) -> None:
    place.create("value VARCHAR(50) PRIMARY KEY")
    committable = written(place, upsert_by=upsert_by)
    assert committable is not None
    place.server.kill()
    place.server.start()
    place.unbound().close()  # the connections of this process are lost with it
    assert place.values() == []
    sink = place.sink()
    assert sink.seal([committable], age_s=0) == [committable]
    for _ in range(2):
        sink.commit(committable)
    assert place.values() == sorted(VALUES)
    place.server.kill()
    place.server.start()
    place.unbound().close()
    place.sink().commit(committable)
    assert place.values() == sorted(VALUES)


@pytest.mark.parametrize("upsert_by", ["", pytest.param("value", marks=pytest.mark.long)])
def test_what_a_writer_pre_committed_before_its_kill_outlives_the_server_and_is_committed_by_another_process(
    upsert_by: str, own_place: Place
) -> None:
    outlives(own_place, upsert_by)


@pytest.mark.long
def test_it_also_does_so_with_a_binary_log(server_of_version: MariaDbServer) -> None:
    outlives(new_place(server_of_version), "")


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
    place.create("value VARCHAR(50) PRIMARY KEY")
    written(place, BEFORE)
    deadline = time.monotonic() + 30
    while place.ask("SELECT * FROM information_schema.innodb_trx"):
        assert time.monotonic() < deadline, "its session is still there"
        time.sleep(0.01)
    assert list(place.sink().recover()) == []
    assert place.values() == []
