"""Copies of what participants wrote, kept until their batch is known to be complete.

A target that gives up on a transaction after its decision (Kafka, when a time-out runs out) would take the records with
it. From the copy they are written again, in a new transaction, and the decision is amended to name that one. A copy is
an Arrow IPC stream, named by the exact transactional id of the attempt that wrote it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from twopc.log_store import make_folder, sync_folder
from twopc.transactional_ids import TransactionId

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX = ".arrow"


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder of copies at any URL that fsspec opens. A value: it travels to the participants with its sink."""

    url: str

    def create(self, transaction_id: TransactionId, schema: pa.Schema) -> StagedCopy:
        """Begin the copy of one transaction's records."""
        return StagedCopy(self, f"{transaction_id.exact}{_SUFFIX}", schema)

    def read(self, name: str) -> Iterator[pa.RecordBatch]:
        """The records of a copy, as they were written. Raises FileNotFoundError."""
        import pyarrow as pa

        fs, path = self._locate(name)
        with fs.open(path, "rb") as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def names(self) -> list[tuple[str, str]]:
        """Every copy that is there: (name, exact transactional id)."""
        fs, folder = url_to_fs(self.url)
        if not fs.isdir(folder):
            return []
        names = (path.rstrip("/").rsplit("/", 1)[-1] for path in fs.ls(folder, detail=False, refresh=True))
        return sorted((name, name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX))

    def remove(self, name: str) -> None:
        """Remove a copy, or do nothing where there is none."""
        fs, path = self._locate(name)
        with contextlib.suppress(FileNotFoundError):
            fs.rm_file(path)

    def _locate(self, name: str) -> tuple[Any, str]:
        fs, folder = url_to_fs(self.url)
        return fs, f"{folder.rstrip('/')}/{name}"


class StagedCopy:
    """A copy that is being written."""

    def __init__(self, stage: Stage, name: str, schema: pa.Schema) -> None:
        import pyarrow as pa

        self.name = name
        self._stage = stage
        fs, self._path = stage._locate(name)  # noqa: SLF001  # the other half of one module
        self._is_local = isinstance(fs, LocalFileSystem)
        if self._is_local:
            make_folder(Path(self._path).parent)
        self._file = fs.open(self._path, "wb")
        self._stream = pa.ipc.new_stream(self._file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the records that were handed to the sink."""
        self._stream.write_batch(batch)

    def finish(self) -> str:
        """Make the copy durable.

        Returns:
            Its name, which goes into the committable.
        """
        self._stream.close()
        self._file.flush()
        if self._is_local:
            os.fsync(self._file.fileno())
        self._file.close()
        if self._is_local:
            sync_folder(Path(self._path).parent)
        return self.name

    def discard(self) -> None:
        """Remove what there is of it."""
        with contextlib.suppress(Exception):
            self._file.close()
        self._stage.remove(self.name)
