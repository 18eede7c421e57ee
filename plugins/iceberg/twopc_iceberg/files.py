"""Durable writes, listing and removal of a table's files, at any location that the sink supports.

An object store keeps what it has acknowledged. A local disk does so only after ``fsync``, which pyiceberg does not
call. The sink's catalogs also write the table's metadata with ``DurableFileIO``: otherwise a power cut could leave a
catalog that points to an empty metadata file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType
from pyiceberg.io.pyarrow import BUFFER_SIZE, ONE_MEGABYTE, PyArrowFile, PyArrowFileIO

from twopc.stores.disk import SyncedFile, sync_folder
from twopc.threads import call_at_once

LOCAL = "file"
S3 = ("s3", "s3a", "s3n")
SUPPORTED = (LOCAL, *S3)
"""The URI schemes with which the sink is tested."""

ASIDE = ".aside"
"""The suffix of the temporary file that a write to disk renames into place."""

_CANNOT_BE = (errno.ENAMETOOLONG, errno.ENOTDIR)
"""Errors for a file whose name the disk does not accept. A note may name such a file, because the note is written
before the task fails to create the file."""

AT_ONCE = 16
"""How many requests to an object store run concurrently. They mostly wait."""


class DurableFile(PyArrowFile):
    """A file that is durable once its stream is closed.

    Attributes:
        stream: the stream that the last ``create`` returned.
        local: its path on a disk; None in a store.
    """

    stream: Any = None
    local: Path | None = None

    def create(self, overwrite: bool = False) -> Any:
        self.stream = SyncedFile(self.local, "wb") if self.local else super().create(overwrite)
        return self.stream


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's file access through pyarrow, with writes that survive a power cut."""

    def new_output(self, location: str) -> DurableFile:
        filesystem, path = self._located(location)
        found = DurableFile(location, path, filesystem, int(self.properties.get(BUFFER_SIZE, ONE_MEGABYTE)))
        found.local = Path(path) if isinstance(filesystem, pa.fs.LocalFileSystem) else None
        return found

    def names_in(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; none if the folder does not exist."""
        filesystem, path = self._located(folder)
        found = filesystem.get_file_info(FileSelector(path, allow_not_found=True))
        return [info.base_name for info in found if info.type == FileType.File]

    def read(self, location: str) -> bytes:
        """Return the whole file. Raises FileNotFoundError."""
        with self.new_input(location).open() as stream:
            return stream.read()

    def create(self, location: str, data: bytes) -> None:
        """Write a file."""
        with self.new_output(location).create(overwrite=True) as stream:
            stream.write(data)

    def write(self, location: str, data: bytes) -> None:
        """Create or replace a file. A crash leaves either the old or the new file, also on a local disk."""
        if self.scheme(location) != LOCAL:
            self.create(location, data)
            return
        self.create(location + ASIDE, data)
        _, path = self._located(location)
        Path(path + ASIDE).replace(path)
        sync_folder(Path(path).parent)

    def write_same(self, location: str, data: bytes) -> None:
        """Create a file whose name determines its content, even while other processes do the same.

        On a disk, all processes write the same bytes into one temporary file, without truncating it. So it is complete
        as soon as one of them has finished, and is renamed once. The next process reuses the temporary file that a
        killed process has left.
        """
        if self.scheme(location) != LOCAL:
            self.write(location, data)
            return
        path = Path(self._located(location)[1])
        aside = path.with_name(path.name + ASIDE)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            aside.replace(path)
        except FileNotFoundError:
            if not path.exists():
                raise
        sync_folder(path.parent)

    def written(self, location: str) -> list[str]:
        """Return the locations at which ``write`` may leave a file, including after a crash."""
        return [location + ASIDE, location] if self.scheme(location) == LOCAL else [location]

    def remove(self, locations: Iterable[str]) -> None:
        """Remove files, ignoring missing ones. Once this returns, the removal survives a power cut."""
        remote, paths = list[str](), list[str]()
        for location in locations:
            scheme, _, path = self.parse_location(location, self.properties)
            if scheme == LOCAL:
                paths.append(path)
            else:
                remote.append(location)
        self.at_once(lambda location: _remove(self.delete, location), remote)
        for path in paths:
            _remove(os.unlink, path)
        for folder in sorted({os.path.dirname(path) for path in paths}):  # noqa: PTH120  # a third of pathlib's time
            if os.path.isdir(folder):  # noqa: PTH112
                sync_folder(Path(folder))

    def first_changed(self, lengths: Mapping[str, int]) -> str | None:
        """Return the first file that is missing or has another length than given; None if there is none."""
        found = zip(lengths.items(), self.at_once(self._length, list(lengths)), strict=True)
        return next((location for (location, wanted), length in found if length != wanted), None)

    def _length(self, location: str) -> int | None:
        scheme, _, path = self.parse_location(location, self.properties)
        try:
            return Path(path).stat().st_size if scheme == LOCAL else len(self.new_input(location))
        except FileNotFoundError:
            return None

    def at_once(self, call: Callable[[str], Any], locations: Sequence[str]) -> list[Any]:
        """Return the result of ``call`` for each location. Calls to an object store run on threads."""
        is_local = locations and self.scheme(locations[0]) == LOCAL
        return call_at_once(call, locations, 1 if is_local else AT_ONCE)

    def scheme(self, location: str) -> str:
        return self.parse_location(location, self.properties)[0]

    def _located(self, location: str) -> tuple[Any, str]:
        scheme, netloc, path = self.parse_location(location, self.properties)
        return self.fs_by_scheme(scheme, netloc), path


def _remove(remove: Callable[[str], None], name: str) -> None:
    try:
        remove(name)
    except OSError as error:
        if not isinstance(error, FileNotFoundError) and error.errno not in _CANNOT_BE:
            raise


IO_CLASS = f"{__name__}.{DurableFileIO.__name__}"
"""The name of the class, for the catalog's property ``py-io-impl``."""


def io_of(properties: Mapping[str, Any]) -> DurableFileIO:
    """Return access to a table's files. ``properties`` are the properties for file access that came with the table,
    such as credentials."""
    return DurableFileIO({name: value for name, value in properties.items() if isinstance(value, str)})
