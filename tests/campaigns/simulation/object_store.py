"""A commit log on an object store: put-if-absent, read, list and delete. Replies may be lost, and puts may be late."""

from __future__ import annotations

from collections.abc import Callable

from tests.campaigns.simulation.world import Fault, Op, World


def _no_answer() -> Exception:
    return TimeoutError("the object store did not answer")


PUT = Op("store: put if absent", _no_answer, Fault.DELAYED, changes=True)
DELETE = Op("store: delete", _no_answer, Fault.DELAYED, changes=True)
READ = Op("store: read", _no_answer, changes=False)
LIST = Op("store: list", _no_answer, changes=False)
POST = Op("store: post a note", _no_answer, changes=True)


class ObjectStore:
    """A ``LogStore`` whose puts are durable. It outlives every coordinator."""

    url = "simulated://log"

    def __init__(self, world: World) -> None:
        self._world = world
        self.entries: dict[int, bytes] = {}
        self._note = b""
        self.on_put: Callable[[int, bytes], None] = lambda _slot, _data: None

    def slots(self) -> list[int]:
        return self._world.step(LIST, self._slots)

    def _slots(self) -> list[int]:
        return sorted(self.entries)

    def read(self, slot: int) -> bytes:
        return self._world.step(READ, self._read, slot)

    def _read(self, slot: int) -> bytes:
        try:
            return self.entries[slot]
        except KeyError:
            raise FileNotFoundError(slot) from None

    def put_if_absent(self, slot: int, data: bytes) -> None:
        self._world.step(PUT, self._put, slot, data)

    def _put(self, slot: int, data: bytes) -> None:
        if slot in self.entries:
            raise FileExistsError(slot)
        self.entries[slot] = data
        self.on_put(slot, data)

    def delete(self, slot: int) -> None:
        self._world.step(DELETE, self._delete, slot)

    def _delete(self, slot: int) -> None:
        self.entries.pop(slot, None)

    def post(self, data: bytes) -> None:
        self._world.step(POST, self._post, data)

    def _post(self, data: bytes) -> None:
        self._note = data

    def posted(self) -> bytes:
        return self._world.step(READ, lambda: self._note) if self._note else b""
