"""Processes are killed with SIGKILL, and others settle what they left (invariants 2, 4 and 5)."""

from pathlib import Path

import pytest

from tests.sinks.iceberg.conftest import Place, few, place_on_s3
from tests.support.killed_writer import BEFORE, VALUES, killed_writer
from tests.support.restarted_query import RestartedQuery
from tests.support.struck_server import KILLED, STRIKES, StruckServer, Way, go_server, strike_requests

pytestmark = [pytest.mark.crash, pytest.mark.long]


def test_what_a_writer_pre_committed_before_its_kill_is_committed_by_another_process(place: Place) -> None:
    committable = killed_writer("iceberg", place.options)
    assert committable is not None
    assert place.values() == []
    sink = place.sink()
    batch = sink.seal([committable], age_s=0)
    for _ in range(2):
        place.sink().commit_batch(7, batch)
    assert place.values() == sorted(VALUES)


@pytest.mark.parametrize("when", few([BEFORE], "after pre-commit"))
def test_what_a_killed_writer_left_undecided_is_found_and_removed(when: str, place: Place) -> None:
    before = place.files()
    killed_writer("iceberg", place.options, when)
    sink = place.sink()
    [found] = sink.recover()
    sink.abort(found)
    assert list(sink.recover()) == []
    assert place.values() == []
    assert place.files() == before


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("way", "lost"), STRIKES)
@pytest.mark.parametrize("name", KILLED)
def test_an_s3_server_that_is_killed_at_any_request_neither_loses_nor_doubles_a_record(
    name: str, way: Way, lost: int, tmp_path: Path
) -> None:
    with go_server(name, tmp_path / "s3") as server, StruckServer(server) as proxy:
        place = place_on_s3(server.storage_options, tmp_path, **{"s3.endpoint": proxy.url})
        place.create(properties={"commit.manifest.min-count-to-merge": "8"})
        query = RestartedQuery(place.unbound, tmp_path / "log")
        written = strike_requests(proxy, query, way, lost)
        assert place.values() == written
        assert list(place.sink("log").recover()) == []
        for catalog in place.catalogs:
            catalog.close()
