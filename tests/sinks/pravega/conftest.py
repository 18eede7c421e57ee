"""What the tests of the Pravega sink share: a real cluster, and for each test a stream and names of its own."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.pravega_server import Admin, PravegaServer, why_not
from tests.support.sink_place import ROUND, SinkPlace, Written, from_log
from twopc import Committable, Round
from twopc_pravega import PravegaSink
from twopc_pravega.controller import State, Txn
from twopc_pravega.options import Stream


@dataclass(frozen=True)
class Place(SinkPlace[PravegaSink]):
    """A stream of one test.

    Attributes:
        prefix: what the names of the test's transactions start with.
    """

    server: PravegaServer
    stream: Stream
    prefix: str

    @property
    def admin(self) -> Admin:
        return self.server.admin

    @property
    def options(self) -> dict[str, Any]:
        return {**self.server.options, "stream": str(self.stream)}

    def unbound(self, **options: Any) -> PravegaSink:
        sink = PravegaSink({**self.options, **options})
        sink.prefix = self.prefix
        return sink

    def pre_commit(self, records: Written, round: Round = ROUND, partition: int = 0, **options: Any) -> Committable:
        """What a participant that is gone has pre-committed, read back from a log."""
        return from_log(self.vote(records, round, partition, self.sink(**options)))

    def values(self) -> list[str]:
        """The events that a reader sees, in the order of their segments."""
        return [event.decode() for events in self.admin.events(self.stream).values() for event in events]

    def state(self, committable: Committable) -> State:
        return self.admin.state(Txn.from_json(committable.handle))


@pytest.fixture(scope="session")
def pravega_server() -> Iterator[PravegaServer]:
    if why := why_not():
        pytest.skip(why)
    with PravegaServer() as server:
        yield server


def make_place(server: PravegaServer, segments: int = 2) -> Place:
    """A new stream."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    server.admin.create_scope(name)
    server.admin.create_stream(Stream(name, "orders"), segments)
    return Place(server, Stream(name, "orders"), name)


@pytest.fixture
def place(pravega_server: PravegaServer) -> Place:
    """A stream of two segments, on a cluster that runs."""
    pravega_server.start()
    return make_place(pravega_server)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The cluster takes 16 s to start and much of a machine, so these tests are among the long ones."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name != "test_options.py":
            item.add_marker(pytest.mark.long)
