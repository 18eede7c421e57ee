"""Copies of what participants wrote, kept until their batch is known to be complete.

A target that gives up on a transaction after its decision (Kafka, when a time-out runs out) would take the records with
it. From the copy they are written again, in a new transaction, and the decision is amended to name that one. A copy is
an Arrow IPC stream, named by the exact transactional id of the attempt that wrote it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from twopc.durable_files import make_folder, names_in, sync_folder
from twopc.places import canonical, parsed_place
from twopc.transactional_ids import TransactionId

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX = ".arrow"


class DamagedCopy(Exception):
    """A copy does not have the records that were written to it: its store has lost some."""


@dataclass(frozen=True, slots=True)
class ReplayCopies:
    """A folder of copies at any URL that fsspec opens. A value: it travels to the participants with its sink.

    Attributes:
        url: the folder.
        storage_options: what fsspec's client takes, such as ``endpoint_url``. What is not given comes from fsspec's
            configuration where the participant runs, which is the place for credentials.
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", canonical(*parsed_place("the folder of replay copies", self.url)))

    def create(self, transaction_id: TransactionId, schema: pa.Schema) -> ReplayCopy:
        """Begin the copy of one transaction's records."""
        return ReplayCopy(self, f"{transaction_id.exact}{_SUFFIX}", schema)

    def read(self, name: str) -> Iterator[pa.RecordBatch]:
        """The records of a copy, as they were written. A copy may end too early and look whole: count them.

        Raises:
            FileNotFoundError: there is none.
            DamagedCopy: it can't be read.
        """
        import pyarrow as pa

        fs, path = self._locate(name)
        try:
            with fs.open(path, "rb") as file, pa.ipc.open_stream(file) as stream:
                yield from stream
        except FileNotFoundError:
            raise
        except (pa.ArrowInvalid, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # not Arrow's, but the store's
                raise
            raise DamagedCopy(str(error)) from error

    def names(self) -> list[tuple[str, str]]:
        """Every copy that is there: (name, exact transactional id)."""
        fs, folder = self._open()
        names = [name for name in names_in(fs, folder) if name.endswith(_SUFFIX)]
        return sorted((name, name.removesuffix(_SUFFIX)) for name in names)

    def remove(self, name: str) -> None:
        """Remove a copy, or do nothing where there is none."""
        fs, path = self._locate(name)
        with contextlib.suppress(FileNotFoundError):
            fs.rm_file(path)

    def _locate(self, name: str) -> tuple[Any, str]:
        fs, folder = self._open()
        return fs, f"{folder.rstrip('/')}/{name}"

    def _open(self) -> tuple[Any, str]:
        """A file system that keeps no listings: the sweep must see the copies of other processes."""
        fs, folder = url_to_fs(self.url, **{**self.storage_options, "use_listings_cache": False})
        return fs, folder


class ReplayCopy:
    """A copy that is being written."""

    def __init__(self, replay_copies: ReplayCopies, name: str, schema: pa.Schema) -> None:
        import pyarrow as pa

        self.name = name
        self._replay_copies = replay_copies
        fs, self._path = replay_copies._locate(name)  # noqa: SLF001  # the other half of one module
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
        """Remove what there is of it. Where the store does not let it, the coordinator's sweep does."""
        with contextlib.suppress(Exception):
            self._file.close()
        with contextlib.suppress(Exception):
            self._replay_copies.remove(self.name)
