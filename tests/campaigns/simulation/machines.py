"""Machines with the files in which names are leased: as much of ``twopc.leases`` as touches a machine.

A lock is its process's, which holds it while it sleeps and loses it with its death. What is written is seen at once,
and is gone with a power cut: the worst is taken, that nothing of the last lease has reached the disk.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from typing import Any

from tests.campaigns.simulation.world import Actor, Fault, Op, World


def _no_room() -> Exception:
    return OSError(errno.ENOSPC, "no room for a lease")


SAVE = Op("machine: write the use of a name", _no_room, Fault.MACHINE_POWER_CUT, changes=True)


class File:
    """The use of a name."""

    __slots__ = ("before", "content", "holder", "is_locked")

    def __init__(self) -> None:
        self.content = b""
        self.before = b""
        self.holder: Actor | None = None
        self.is_locked = False


class Forgotten(dict[str, Any]):
    """Stands in for ``leases._searched``: each attempt is the first of its process."""

    def __setitem__(self, pool: str, searched: Any) -> None:
        pass


class Machines:
    """All of them, by number. They stand in for ``leases.open_slot`` and ``leases._boot``."""

    world: World

    def enter(self, world: World) -> None:
        """They are new, and of that world."""
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
        """Its processes are dead."""
        self._boots[machine] += 1
        for file in self._files[machine].values():
            file.content, file.is_locked = file.before, False

    def power_cuts(self) -> None:
        """Everywhere."""
        for machine in self._files:
            self.power_cut(machine)


class Slot:
    """A file of names, locked: a ``leases.Slot``."""

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
