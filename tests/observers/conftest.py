"""A query whose first commit is not answered at once, and an observer that is registered for one test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import twopc
from tests.support.phase_one import writes
from twopc.errors import Retriable
from twopc.testing import MemorySink, MemoryTarget

Run = Callable[..., None]


class Sink(MemorySink):
    """A sink whose target system does not answer the first commit."""

    answers = False

    def commit(self, committable: twopc.Committable) -> None:
        if not self.answers:
            self.answers = True
            raise Retriable("busy")
        super().commit(committable)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run batches, of three records in one transaction, as one incarnation of a query that does not stop cleanly."""
    target = MemoryTarget()

    def start(*batch_ids: int, owner: str = "orders", leaves_open: bool = False) -> None:
        sinks = {"archive": Sink(target)}

        def phase_one(round: twopc.Round) -> Iterator[twopc.Vote]:
            yield from writes(sinks, {"value": [1, 2, 3]})(round)
            if leaves_open:
                sinks["archive"].begin(sinks["archive"].transactional_ids.allocate(round, 9))

        coordinator = twopc.Coordinator(sinks, str(tmp_path / owner), owner=owner, rest_interval_s=None)
        for batch_id in batch_ids:
            coordinator.run(batch_id, phase_one)

    return start


@pytest.fixture
def observe() -> Iterator[Callable[[object], None]]:
    registered: list[object] = []

    def register(observer: object) -> None:
        twopc.register_observer(observer)
        registered.append(observer)

    yield register
    for observer in registered:
        twopc.unregister_observer(observer)
        if hasattr(observer, "close"):
            observer.close()  # its thread ends
