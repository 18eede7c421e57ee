"""A commit log on an object store: put-if-absent, read, list and delete. Replies may be lost, and puts may be late."""

from __future__ import annotations

from collections.abc import Callable

from tests.campaigns.simulation.world import Fault, Op, World
from tests.support.memory_log import MemoryLog


def _no_answer() -> Exception:
    return TimeoutError("the object store did not answer")


PUT = Op("store: put if absent", _no_answer, Fault.DELAYED, changes=True)
DELETE = Op("store: delete", _no_answer, Fault.DELAYED, changes=True)
READ = Op("store: read", _no_answer, changes=False)
LIST = Op("store: list", _no_answer, changes=False)
POST = Op("store: post a note", _no_answer, changes=True)


class ObjectStore(MemoryLog):
    """A ``LogStore`` whose puts are durable. It outlives every coordinator."""

    url = "simulated://log"

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.on_put: Callable[[int, bytes], None] = lambda _slot, _data: None

    def slots(self) -> list[int]:
        return self._world.step(LIST, super().slots)

    def read(self, slot: int) -> bytes:
        return self._world.step(READ, super().read, slot)

    def put_if_absent(self, slot: int, data: bytes) -> None:
        self._world.step(PUT, self._put, slot, data)

    def _put(self, slot: int, data: bytes) -> None:
        super().put_if_absent(slot, data)
        self.on_put(slot, data)

    def delete(self, slot: int) -> None:
        self._world.step(DELETE, self._delete, slot)

    def _delete(self, slot: int) -> None:
        super().delete(slot)

    def post(self, data: bytes) -> None:
        self._world.step(POST, super().post, data)

    def posted(self) -> bytes:
        return self._world.step(READ, super().posted) if self.notice else b""
