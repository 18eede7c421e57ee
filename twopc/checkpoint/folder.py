"""A checkpoint folder, through fsspec, on a disk or in any other store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twopc.checkpoint.offsets import Reads, by_source, parse
from twopc.checkpoint.source_files import COMPACT, files_read, number, stands_for_files, with_files
from twopc.errors import ConfigurationError, Retriable
from twopc.stores.disk import LocalFolder, make_folder, sync_folder
from twopc.stores.errors import TEMPORARY
from twopc.stores.places import canonical, file_system, parsed_place, split
from twopc.stores.remote import meaning, names_in
from twopc.transaction import JsonValue

_BLOCK_BYTES = 1024 * 1024


def url(location: str) -> str:
    """Return a location in fsspec's spelling, which differs from Hadoop's file:/data."""
    return canonical(*split(location))


class CheckpointFolder:
    """Reads and writes whole files. Paths are relative to the folder, such as ``offsets/7``."""

    def __init__(self, location: str) -> None:
        self.url = canonical(*parsed_place("the checkpoint", location)).rstrip("/")
        self._fs: Any
        try:
            self._fs, self._root = file_system(self.url)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"the client for {location!r} can't be created ({type(error).__name__}: {error}). Is fsspec's package"
                " for that store installed?"
            ) from error

    # Reading. -------------------------------------------------------------------------------------------------------

    def query_id(self) -> str:
        """Return the query's id, which Spark writes once, before the first batch.

        Raises:
            ConfigurationError: the id can't be read.
            Retriable: the store does not respond.
        """
        try:
            return str(json.loads(self.text("metadata"))["id"])
        except Exception as error:
            raise self._unreadable(
                error,
                f"the query's id can't be read from {self.url}/metadata",
                "Is this the query's checkpoint folder, and can Python read it? Stores other than disks need fsspec's"
                " package.",
            ) from error

    def newest(self) -> tuple[int, Reads]:
        """Return the newest batch that Spark has planned, and what it reads. Raises the same errors as ``query_id``."""
        try:
            batch_id = self.numbers("offsets")[-1]
            return batch_id, self.reads(batch_id)
        except Exception as error:
            raise self._unreadable(
                error,
                f"{self.url}/offsets does not say what the batch reads",
                "Python must be able to read the checkpoint folder.",
            ) from error

    def _unreadable(self, error: Exception, what: str, advice: str) -> ConfigurationError | Retriable:
        text = f"{what} ({type(error).__name__}: {error})"
        if meaning(self._fs, error).errno in TEMPORARY:
            return Retriable(text)
        return ConfigurationError(f"{text}. {advice}")

    def numbers(self, name: str, suffix: str = "") -> list[int]:
        """Return the numbers of the files in a folder, such as ``offsets``, in ascending order."""
        names = (name.removesuffix(suffix) for name in self.names(name) if name.endswith(suffix))
        return sorted(int(name) for name in names if name.isdecimal())

    def names(self, name: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""
        path = self._path(name)
        self._fs.invalidate_cache(path)
        return names_in(self._fs, path)

    def size(self, path: str) -> int | None:
        try:
            return int(self._fs.size(self._path(path)))
        except FileNotFoundError:
            return None

    def text(self, path: str, start: int = 0) -> str:
        data: bytes = self._fs.cat_file(self._path(path), start=start or None)
        return data.decode(errors="replace" if start else "strict")

    def sha256(self, path: str) -> str:
        digest = hashlib.sha256()
        with self._fs.open(self._path(path), "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
        return digest.hexdigest()

    def reads(self, batch_id: int) -> Reads:
        """Return what a planned batch reads. Raises FileNotFoundError if it is not planned, and ValueError if its entry
        is cut off."""
        entry = parse(self.text(f"offsets/{batch_id}"))
        before = parse(self.text(f"offsets/{batch_id - 1}")) if batch_id and stands_for_files(entry) else {}
        if stands_for_files(entry) and isinstance(entry["sources"], list):
            folders = self.source_folders(entry["sources"])
            if folders != [str(n) for n in range(len(folders))]:
                entry["folders"] = before["folders"] = folders
        return with_files(entry, files_read(self, batch_id, by_source(entry), by_source(before)))

    def source_folders(self, offsets: Sequence[JsonValue]) -> list[str]:
        """Return the folder of each source of the newest batch: its number among the plan's distinct sources, because a
        plan may list a source twice. A file source's offset is the number of the newest file in its folder, which
        identifies the folder."""
        newest = {int(name): self._newest_file(name) for name in self.names("sources") if name.isdecimal()}
        folders: list[int] = []
        taken: dict[int, int] = {}
        for place, offset in enumerate(offsets):
            last, folder = number(offset), place
            if last is not None:
                fitting = [n for n in range(place, -1, -1) if newest.get(n) == last and n not in taken]
                twice = [n for n, other in taken.items() if other == last]
                folder = next(iter([*fitting, *twice]), place)
                taken[folder] = last
            folders.append(folder)
        return [str(folder) for folder in folders]

    def _newest_file(self, source: str) -> int | None:
        numbers = self.numbers(f"sources/{source}") + self.numbers(f"sources/{source}", COMPACT)
        return max(numbers, default=None)

    # Writing. -------------------------------------------------------------------------------------------------------

    def write(self, path: str, data: bytes) -> None:
        """Create or replace a file. On a disk and in an object store, it is whole and durable or not there at all."""
        if not self._is_disk():
            self._fs.pipe_file(self._path(path), data)
            return
        file = Path(self._path(path))
        make_folder(file.parent)
        self._remove_checksum(file)
        folder = LocalFolder(file.parent)
        folder.replace(file.name, data)
        folder.sync(file.name)

    def remove(self, path: str) -> None:
        """Remove a file."""
        if not self._is_disk():
            self._fs.rm_file(self._path(path))
            return
        file = Path(self._path(path))
        file.unlink()
        self._remove_checksum(file)
        sync_folder(file.parent)

    def data(self, path: str) -> bytes:
        """Return the whole file. Raises FileNotFoundError."""
        data: bytes = self._fs.cat_file(self._path(path))
        return data

    def _remove_checksum(self, file: Path) -> None:
        """Remove the checksum that Hadoop keeps beside each file on a disk. Hadoop refuses to read a file that does not
        match its checksum."""
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    def _is_disk(self) -> bool:
        protocol = self._fs.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"
