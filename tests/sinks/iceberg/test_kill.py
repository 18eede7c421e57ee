"""Servers are killed with SIGKILL at any request (invariants 2, 4 and 5); the contract kills processes."""

from pathlib import Path

import pytest

from tests.sinks.iceberg.conftest import place_on_s3
from tests.support.restarted_query import RestartedQuery
from tests.support.struck_server import KILLED, STRIKES, StruckServer, Way, go_server, strike_requests

pytestmark = [pytest.mark.crash, pytest.mark.long]


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
        place.close()
