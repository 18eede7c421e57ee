"""The files of a table's log: entries, which are created by put-if-absent, and checkpoints."""

from __future__ import annotations

import functools
import os
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from twopc.stores.disk import LocalFolder, put_in_place, sync_folder
from twopc.stores.errors import Unusable
from twopc.stores.remote import ObjectFolder, names_in
from twopc_delta.entry import Entry
from twopc_delta.storage import Storage

_LOG = "_delta_log"
_LAST_CHECKPOINT = "_last_checkpoint"
_SIDECARS = "_sidecars"
_ENTRY = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.")
_NO_VERSION = ":"
"""A name that sorts after all names that begin with a digit. Later names belong to folders, which readers of the log do
not list."""

_PART = re.compile(r"([0-9]{20})\.checkpoint\.[0-9]{10}\.([0-9]{10})\.parquet")
"""A part of a checkpoint: the version, and the number of parts."""


class LogFiles:
    """The log of the table in one folder."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._folder = Path(storage.path) / _LOG  # used on a disk only
        self._on_disk = LocalFolder(self._folder)

    @functools.cached_property
    def _at_store(self) -> ObjectFolder:
        return ObjectFolder(self._storage.filesystem, f"{self._storage.path}/{_LOG}")

    def entry(self, version: int) -> bytes | None:
        """Return an entry; None if it does not exist."""
        return self._read(_entry_name(version))

    def has(self, version: int) -> bool:
        """Return whether the entry exists."""
        return self._storage.size_bytes(f"{_LOG}/{_entry_name(version)}") is not None

    def put(self, version: int, data: bytes) -> None:
        """Create an entry durably and atomically.

        Raises:
            FileExistsError: the log already has an entry of this version. It may be the entry with ``data``, if the
                client has repeated a request.
            OSError: the outcome is unknown.
        """
        with self._storage.meaning():
            if self._storage.is_local:
                self._put_on_disk(version, data)
            else:
                self._at_store.put_if_absent(_entry_name(version), data)

    def try_put(self) -> None:
        """Check that entries can be created by put-if-absent, with a hidden name that readers of the log ignore. Remove
        files that killed writers have left. Raises the errors of ``LocalFolder.try_put_if_absent``."""
        with self._storage.meaning():
            folder = self._on_disk if self._storage.is_local else self._at_store
            folder.names()
            folder.try_put_if_absent()
            if not self._storage.is_local:
                self._try_listing()

    def _try_listing(self) -> None:
        """Check that the store lists names in order, starting after a given one.

        Raises:
            Unusable: the store lists names in another way, so the sink would miss newer entries.
        """
        tag = uuid.uuid4().hex
        probes = [f".{tag}.{number}.probe" for number in range(6)]
        try:
            for name in reversed(probes):
                self._at_store.replace(name, b"")
            if self._listed_after(probes[2], 3)[0] != probes[3:]:
                raise Unusable(
                    "its server does not list names in order, from a given one on, as readers of Delta's log need it."
                    " Directory buckets (S3 Express One Zone) and Storj do not: use a general purpose bucket"
                )
        finally:
            self._storage.remove_all([f"{_LOG}/{name}" for name in probes])

    def _put_on_disk(self, version: int, data: bytes) -> None:
        """Write an entry under a temporary name, and move it into place. The temporary file is in the same folder,
        because another folder may be on another mount."""
        aside = self._folder / f".{uuid.uuid4().hex}.aside"
        try:
            with aside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            put_in_place(aside, self._folder / _entry_name(version))
        finally:
            aside.unlink(missing_ok=True)
        self._on_disk.sync(_LOG)

    def withdraw(self, version: int, data: bytes) -> None:
        """Remove the entry ``data`` of ``version`` if it follows a gap: its predecessor is missing, and no checkpoint
        covers the missing entry. An entry of that version with other content is kept."""
        names = self._names()
        if _entry_name(version - 1) in names or max(map(_of_checkpoint, names), default=-1) >= version - 1:
            return
        if self.entry(version) == data:
            self._storage.remove(f"{_LOG}/{_entry_name(version)}")

    def newest_after(self, version: int) -> int | None:
        """Return the newest version of the log. None if an entry after ``version`` is missing, for example behind a
        checkpoint, or if one listing does not return all of these entries."""
        names = self._names_after(_entry_name(version))
        if names is None:
            return None
        entries = _versions(names)
        newest = max(entries, default=version)
        is_whole = len(entries) == newest - version and max(map(_of_checkpoint, names), default=-1) <= newest
        return newest if is_whole else None

    def _names_after(self, name: str) -> list[str] | None:
        """Return the names in the log that sort after ``name`` and begin with a digit; None if the store does not
        return all of them in one listing."""
        if self._storage.is_local:
            return [each for each in os.listdir(self._folder) if name < each < _NO_VERSION]  # noqa: PTH208
        names, is_truncated = self._listed_after(name)
        if is_truncated and (not names or names[-1] < _NO_VERSION):
            return None
        return [each for each in names if name < each < _NO_VERSION]

    def _listed_after(self, name: str, limit: int = 1000) -> tuple[list[str], bool]:
        """Return the names in the log after ``name`` that one listing of the store returns, and whether there are
        more."""
        store, folder = self._storage.store, f"{self._storage.path}/{_LOG}"
        assert store is not None
        with self._storage.meaning():
            return store.listed(self._storage.filesystem, folder, name, limit)

    def last_checkpoint(self) -> int:
        """Return the version of the newest checkpoint, as recorded in ``_last_checkpoint``; 0 if there is no valid
        record."""
        try:
            return int(orjson.loads(self._read(_LAST_CHECKPOINT) or b"")["version"])
        except (ValueError, KeyError, TypeError):
            return 0

    def has_part_of_a_checkpoint(self) -> bool:
        """Return whether a checkpoint lacks parts because its writer was killed."""
        return bool(_torn_checkpoints(self._names()))

    def _names(self) -> list[str]:
        if self._storage.is_local:
            return os.listdir(self._folder)  # noqa: PTH208  # as at a store
        with self._storage.meaning():
            return names_in(self._storage.filesystem, f"{self._storage.path}/{_LOG}")

    def _read(self, name: str) -> bytes | None:
        with self._storage.meaning():
            try:
                if self._storage.is_local:
                    return (self._folder / name).read_bytes()
                return bytes(self._storage.filesystem.cat_file(f"{self._storage.path}/{_LOG}/{name}"))
            except FileNotFoundError:
                return None

    def after_checkpoint(self) -> tuple[list[int], int]:
        """Return the versions after the newest complete checkpoint, newest first, and the version of that checkpoint;
        -1 if there is none."""
        return _after_checkpoint(self._names())

    def added_by_checkpoint(self, version: int) -> Iterator[dict[str, Any]]:
        """Yield the ``add`` action of each data file that a checkpoint lists.

        Raises:
            ValueError: a file of the checkpoint is missing or can't be read.
        """
        names = [name for name in self._names() if _of_checkpoint(name) == version]
        by_uuid = [name for name in names if not _PART.fullmatch(name) and not name.endswith(".checkpoint.parquet")]
        for name in by_uuid[:1] or names:  # each checkpoint named by a UUID covers the whole table
            added, others = self._added(name)
            yield from added
            for other in others:
                yield from self._added(f"{_SIDECARS}/{other}")[0]

    def _added(self, name: str) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the ``add`` actions in one file of a checkpoint, and the names of its sidecars."""
        if (data := self._read(name)) is None:
            raise ValueError(f"its log lacks {name}")
        if name.endswith(".json"):
            rows = [orjson.loads(line) for line in data.splitlines() if line.strip()]
        else:
            file = pq.ParquetFile(pa.BufferReader(data))
            known = [column for column in ("add", "sidecar") if column in file.schema_arrow.names]
            rows = file.read(known).to_pylist(maps_as_pydicts="strict")
        added = [row["add"] for row in rows if row.get("add")]
        return added, [row["sidecar"]["path"] for row in rows if row.get("sidecar")]

    def damaged_checkpoint(self) -> tuple[dict[str, str], bool]:
        """Return the unreadable files of the newest checkpoint, each with the reason, and whether the log is complete
        without them. ``_last_checkpoint`` counts as unreadable if it names a version without a readable checkpoint."""
        names = self._names()
        _, newest = _after_checkpoint(names)
        files = [name for name in names if _of_checkpoint(name) == newest >= 0]
        damaged = {name: why for name in files if (why := self._why_unreadable(name))}
        left = [name for name in names if name not in damaged]
        if _LAST_CHECKPOINT in names:
            noted = self.last_checkpoint()
            if noted < 0 or noted not in map(_of_checkpoint, left):
                damaged[_LAST_CHECKPOINT] = f"it names version {noted}, which has no readable checkpoint"
        versions, checkpoint = _after_checkpoint(left)
        return damaged, len(versions) == max(versions, default=checkpoint) - checkpoint

    def _why_unreadable(self, name: str) -> str | None:
        """Return why a file of a checkpoint can't be read; None if it can. Reads only the footer of a Parquet file,
        since a checkpoint has as many rows as the table has files."""
        try:
            if name.endswith(".json"):
                Entry.of(self._read(name) or b"")
            else:
                with (
                    self._storage.meaning(),
                    self._storage.filesystem.open(f"{self._storage.path}/{_LOG}/{name}") as file,
                ):
                    pq.read_metadata(file)
        except FileNotFoundError:
            return None  # removed since
        except (ValueError, OSError) as error:  # ArrowInvalid is a ValueError
            if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
                raise  # an error of the store, not of Arrow
            return " ".join(str(error).split()) or "it is empty"
        return None

    def sync(self, newest: int, oldest: int) -> None:
        """Make the entries from ``newest`` down to ``oldest`` survive a power cut, because other writers do not sync
        their entries. If a sync of the folder fails, all later syncs through this object fail, too: the kernel reports
        only once that a name did not reach the disk."""
        if not self._storage.is_local:
            return
        for version in range(newest, oldest - 1, -1):
            try:
                with (self._folder / _entry_name(version)).open("rb") as entry:
                    os.fsync(entry.fileno())
            except FileNotFoundError:  # older entries were cleaned up behind a checkpoint
                break
        self._on_disk.sync(_LOG)

    def sync_checkpoint(self, version: int) -> None:
        """Make a checkpoint survive a power cut, before the entries that it covers are removed."""
        if not self._storage.is_local:
            return
        log = self._folder
        for path in [*log.glob(f"{version:020d}.checkpoint*"), *log.glob(f"{_SIDECARS}/*"), log / _LAST_CHECKPOINT]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(log)


def _after_checkpoint(names: Iterable[str]) -> tuple[list[int], int]:
    names = [*names]
    checkpoint = max({*map(_of_checkpoint, names)} - _torn_checkpoints(names), default=-1)
    return sorted((each for each in _versions(names) if each > checkpoint), reverse=True), checkpoint


def _versions(names: Iterable[str]) -> list[int]:
    """Return the versions of the entries among ``names``."""
    return [int(found[1]) for found in map(_ENTRY.fullmatch, names) if found]


def _of_checkpoint(name: str) -> int:
    """Return the version of a checkpoint's file; -1 for any other file."""
    found = _CHECKPOINT.match(name)
    return int(found[1]) if found else -1


def _torn_checkpoints(names: Iterable[str]) -> set[int]:
    """Return the versions of checkpoints that lack parts."""
    parts: dict[tuple[int, int], int] = defaultdict(int)
    for found in filter(None, map(_PART.fullmatch, names)):
        parts[int(found[1]), int(found[2])] += 1
    return {version for (version, of), count in parts.items() if count != of}


def _entry_name(version: int) -> str:
    return f"{version:020d}.json"
