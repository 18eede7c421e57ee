"""Files of a table, at any location that the sink supports: written to survive a power cut, listed, removed.

Object stores keep what they have acknowledged. A local disk does so only after ``fsync``, which pyiceberg does not
call. Catalogs that the sink loads write the table's metadata with ``DurableFileIO``, too: else a power cut could leave
a catalog that names an empty metadata file.
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
"""Schemes of locations that the sink is tested with."""

ASIDE = ".aside"
"""The end of the name under which a file of a disk is written before it replaces the file."""

_CANNOT_BE = (errno.ENAMETOOLONG, errno.ENOTDIR)
"""A file of such a name can't exist: its creation failed, and its note stayed."""

AT_ONCE = 16
"""Requests to an object store at a time. Each mostly waits."""


class DurableFile(PyArrowFile):
    """A file that is on the disk when its stream is closed.

    Attributes:
        stream: the stream of the last ``create``.
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
        """Return the names of the files in a folder; none where there is no folder."""
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
        """Create or replace a file. On a local disk, a crash leaves the old file or the new one."""
        if self.scheme(location) != LOCAL:
            self.create(location, data)
            return
        self.create(location + ASIDE, data)
        _, path = self._located(location)
        Path(path + ASIDE).replace(path)
        sync_folder(Path(path).parent)

    def write_same(self, location: str, data: bytes) -> None:
        """Create a file whose content follows from its name, whoever else does so at the same time.

        On a disk, all write the same bytes into one file aside, which none truncates. So it is whole as soon as one of
        them has written it, and is moved once. A killed process leaves nothing that the next one does not use.
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
        """Return the locations at which ``write`` may have left something, even if its process was killed."""
        return [location + ASIDE, location] if self.scheme(location) == LOCAL else [location]

    def remove(self, locations: Iterable[str]) -> None:
        """Remove files, or do nothing for those that are gone. On return, they stay gone after a power cut."""
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
        """Return the first of the files that is gone or has another length; None if there is none."""
        found = zip(lengths.items(), self.at_once(self._length, list(lengths)), strict=True)
        return next((location for (location, wanted), length in found if length != wanted), None)

    def _length(self, location: str) -> int | None:
        scheme, _, path = self.parse_location(location, self.properties)
        try:
            return Path(path).stat().st_size if scheme == LOCAL else len(self.new_input(location))
        except FileNotFoundError:
            return None

    def at_once(self, call: Callable[[str], Any], locations: Sequence[str]) -> list[Any]:
        """Return the result of ``call`` for each location; in threads if a request to a store takes long."""
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
"""The class as catalogs are told it."""


def io_of(properties: Mapping[str, Any]) -> DurableFileIO:
    """Return access to files with the properties of a table's own, such as its credentials."""
    return DurableFileIO({name: value for name, value in properties.items() if isinstance(value, str)})
