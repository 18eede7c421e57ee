"""Replay copies on the simulated disk. Keeps the contract of ``ReplayCopies``, which writes Arrow through fsspec."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.campaigns.simulation.disk import Disk, File, OperatingSystem
from tests.campaigns.simulation.records import Records
from twopc.stores.disk import sync_folder
from twopc.transactional_ids import TransactionId

SUFFIX = ".rows"


class SimulatedStage:
    """A folder of replay copies."""

    url = "simulated://stage"

    def __init__(self, disk: Disk, system: OperatingSystem) -> None:
        self._disk, self._system = disk, system
        self._folder = disk.path("stage")

    def create(self, transaction_id: TransactionId, schema: object) -> SimulatedCopy:
        name = f"{transaction_id.exact}{SUFFIX}"
        return SimulatedCopy(self, name, (self._folder / name).open("xb"))

    def read(self, name: str) -> Iterator[Records]:
        for row in (self._folder / name).read_bytes().decode().split():
            yield Records((row,))

    def names(self) -> list[tuple[str, str]]:
        return [(path.name, path.name.removesuffix(SUFFIX)) for path in self._folder.iterdir()]

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def finish(self, file: File) -> None:
        self._system.fsync(file.fileno())
        file.close()
        sync_folder(self._folder)  # type: ignore[arg-type]


class SimulatedCopy:
    """A replay copy that is being written."""

    def __init__(self, stage: SimulatedStage, name: str, file: File) -> None:
        self.name = name
        self._stage, self._file = stage, file

    def write(self, batch: Records) -> None:
        self._file.write("".join(f"{row}\n" for row in batch.rows).encode())

    def finish(self) -> str:
        self._stage.finish(self._file)
        return self.name

    def discard(self) -> None:
        with contextlib.suppress(Exception):
            self._stage.remove(self.name)
