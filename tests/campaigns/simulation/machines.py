"""Machines, with the files in which names are leased: the part of ``twopc_kafka.leases`` that touches a machine.

A lock belongs to its process, which holds it while it sleeps and loses it when it dies. Writes are visible at once. A
power cut loses them: the model assumes the worst case, that nothing of the last lease has reached the disk.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from typing import Any

from tests.campaigns.simulation.world import Actor, Fault, Op, World


def _no_room() -> Exception:
    return OSError(errno.ENOSPC, "no room for a lease")


SAVE = Op("machine: record the use of a name", _no_room, Fault.MACHINE_POWER_CUT, changes=True)


class File:
    """A file that records the use of a name."""

    __slots__ = ("before", "content", "holder", "is_locked")

    def __init__(self) -> None:
        self.content = b""
        self.before = b""
        self.holder: Actor | None = None
        self.is_locked = False


class Forgotten(dict[str, Any]):
    """Replaces ``leases._searched``: each attempt is the first of its process."""

    def __setitem__(self, pool: str, searched: Any) -> None:
        pass


class Machines:
    """All machines, by number. Replaces ``leases.open_slot`` and ``leases._boot``."""

    world: World

    def enter(self, world: World) -> None:
        """Start with new machines in ``world``."""
        self.world = world
        self._files: defaultdict[int, dict[tuple[str, int], File]] = defaultdict(dict)
        self._boots: defaultdict[int, int] = defaultdict(int)

    @property
    def _here(self) -> int:
        return 0 if self.world.current is None else self.world.current.machine

    def boot(self) -> str:
        return f"{self._here}.{self._boots[self._here]}"

    def open_slot(self, pool: str, number: int) -> Slot | None:
        file = self._files[self._here].setdefault((pool, number), File())
        if file.is_locked and file.holder is not None and not file.holder.dead:
            return None
        file.is_locked, file.holder = True, self.world.current
        return Slot(self.world, file)

    def power_cut(self, machine: int) -> None:
        """Cut the power of one machine, whose processes are dead already."""
        self._boots[machine] += 1
        for file in self._files[machine].values():
            file.content, file.is_locked = file.before, False

    def power_cuts(self) -> None:
        """Cut the power of every machine."""
        for machine in self._files:
            self.power_cut(machine)


class Slot:
    """A locked file that records the use of a name; replaces ``leases.Slot``."""

    __slots__ = ("_file", "_is_first", "_world")

    def __init__(self, world: World, file: File) -> None:
        self._world, self._file = world, file
        self._is_first = True

    def read(self) -> bytes:
        return self._file.content

    def write(self, data: bytes) -> None:
        self._world.step(SAVE, self._write, data)

    def _write(self, data: bytes) -> None:
        if self._is_first:
            self._is_first = False
            self._file.before = self._file.content
        self._file.content = data

    def close(self) -> None:
        self._file.is_locked = False
