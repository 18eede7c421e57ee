"""Access to a table's folder: its files through fsspec, its log through delta-rs, both with the same options."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import fsspec
import pyarrow as pa

from twopc.errors import ConfigurationError
from twopc.stores.disk import LocalFolder, SyncedFile
from twopc.stores.places import LOCAL, canonical, parsed_place
from twopc.stores.remote import ObjectFolder
from twopc.threads import call_at_once
from twopc_delta.stores import STORES, Store

NOTES = "_twopc"
"""The folder of notes, inside the table's folder. Delta's readers find files only through the log, and VACUUM skips
folders whose names start with an underscore."""

_BLOCK_BYTES = 8 * 1024 * 1024
"""How much of a file is buffered before a part is uploaded. s3fs's default is 50 MiB per open file."""

_SHORTEST_SECRET = 4  # masking a shorter value would garble messages

_READ_AS_URL = {True: re.compile("%"), False: re.compile(r"[%#?\x00-\x1f]|//|(?:^|/)\.\.?(?=/|$)")}
"""Parts of a path that delta-rs interprets or drops as in a URL, on a disk (True) and in a store (False). With such a
path, delta-rs would read the log of another folder than the sink writes to."""

_REQUESTS_AT_ONCE = 32
_REMOVED_AT_ONCE = 8  # files of a disk
LONGEST_NAME_ON_DISKS = 255
_LONGEST_KEY_BYTES = 1024
_FILE = "/" + "x" * 255
"""Room for the name of a file, and of folders with short values."""

_KEYS_PER_DELETION = 1000  # the limit of S3's DeleteObjects
_PATTERN = frozenset("*?[")
"""Characters that make fsspec treat a path as a pattern when it removes several files."""

ResultT = TypeVar("ResultT")
WorkT = TypeVar("WorkT")


@dataclass(frozen=True)
class Storage:
    """The folder of one table.

    Attributes:
        url: a plain path for a local disk, otherwise a URL.
        options: the options for fsspec.
    """

    url: str
    options: Mapping[str, Any] = field(repr=False)

    @classmethod
    def at(cls, url: str, options: Mapping[str, Any]) -> Storage:
        """Return the folder at ``url``.

        Raises:
            ConfigurationError: the sink does not support the store or these options.
        """
        protocol, path = parsed_place("the table", url)
        if found := _READ_AS_URL[protocol in LOCAL].search(path):
            raise ConfigurationError(
                f"the path of the table has {found[0]!r} in it: delta-rs and fsspec would read it as two different"
                " folders. Write the path as it is, not percent-encoded; or move the table to a folder without it."
            )
        if protocol is None or protocol in LOCAL:
            if options:
                raise ConfigurationError(
                    "the option 'storage_options' of the delta sink is for object stores; a disk has none."
                )
            return cls(str(Path(path).absolute()), {})
        if (store := STORES.get(protocol)) is None:
            raise ConfigurationError(
                "the delta sink writes to local disks, S3, Azure and Google Cloud Storage."
                f" {protocol!r} was not tested: two commits could both win."
            )
        storage = cls(canonical(store.spelling(protocol), path.rstrip("/")), dict(options))
        storage.delta_options()
        return storage

    @property
    def is_local(self) -> bool:
        return self.store is None

    @functools.cached_property
    def store(self) -> Store | None:
        """The kind of object store; None for a local disk."""
        return STORES.get(self.url.partition("://")[0])

    @property
    def path(self) -> str:
        """The folder as a path of fsspec's file system."""
        return self.url if self.store is None else self.store.path_of(self._rest)

    @property
    def delta_url(self) -> str:
        """The folder as a URL of delta-rs."""
        return self.url if self.store is None else f"{self.store.protocols[0]}://{self.path}"

    @property
    def _rest(self) -> str:
        return self.url.partition("://")[2]

    @property
    def filesystem(self) -> Any:
        """The file system of fsspec. It caches no listings, because other processes write to the folder, too."""
        return fsspec.filesystem("file") if self.store is None else self.store.client(self.url, self.options)

    @property
    def longest_folder_bytes(self) -> int:
        """The maximum length of a partition folder's name. On S3, it is the limit for a key minus the table's path and
        the file's name."""
        return LONGEST_NAME_ON_DISKS if self.is_local else _LONGEST_KEY_BYTES - len(f"{self.path}{_FILE}".encode())

    def delta_options(self) -> dict[str, str]:
        """Return the options with delta-rs's names.

        Raises:
            ConfigurationError: an option has no counterpart, so tasks and driver would access different locations.
        """
        if self.store is None:
            return {}
        self.store.require_usable()
        return self.store.delta_options(self._rest, self.options)

    def without_secrets(self, text: str) -> str:
        """Return ``text`` without the values of credentials, which a server may repeat in an error."""
        for value in () if self.store is None else self.store.secrets_in(self._rest, self.options):
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, "***")
        return text

    # Files. ---------------------------------------------------------------------------------------------------

    def notes(self) -> LocalFolder | ObjectFolder:
        """Return the folder of notes."""
        if self.is_local:
            return LocalFolder(Path(self.path) / NOTES)
        return ObjectFolder(self.filesystem, f"{self.path}/{NOTES}")

    def content(self, folder: LocalFolder | ObjectFolder, name: str) -> bytes | None:
        """Return the content of a file in the folder of notes; None if it does not exist."""
        with self.meaning():
            try:
                return folder.read(name)
            except FileNotFoundError:
                return None

    @contextlib.contextmanager
    def meaning(self) -> Iterator[None]:
        """Convert errors of a store's client to OSErrors, as a disk would raise them."""
        try:
            yield
        except Exception as error:
            meant = None if self.store is None else self.store.meaning(error)
            if meant is None:
                raise
            raise OSError(meant.errno, self.without_secrets(str(meant.strerror))) from None

    def create(self, path: str) -> IO[bytes]:
        """Open a new file in the folder for writing. It is durable once closed."""
        if self.is_local:
            return SyncedFile(Path(self.path) / path)
        opened: IO[bytes] = self.filesystem.open(f"{self.path}/{path}", "wb", block_size=_BLOCK_BYTES)
        return opened

    def write(self, path: str, data: bytes) -> None:
        """Durably create a file in the folder."""
        with self.meaning():
            file = self.create(path)
            file.write(data)
            file.close()

    def open(self, path: str) -> Any:
        """Open a file in the folder for reading. On a disk, Arrow opens the file directly."""
        whole = f"{self.path}/{path}"
        return pa.OSFile(whole) if self.is_local else self.filesystem.open(whole, "rb")

    def read(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file in the folder. Raises FileNotFoundError."""
        with self.meaning():
            return bytes(self.filesystem.cat_file(f"{self.path}/{path}", start, start + length))

    def size_bytes(self, path: str) -> int | None:
        """Return the size of a file; None if it does not exist."""
        whole = f"{self.path}/{path}"
        with self.meaning():
            try:
                if self.is_local:
                    return os.stat(whole).st_size  # noqa: PTH116  # pathlib would take most of the time
                return int(self.filesystem.info(whole)["size"])
            except FileNotFoundError:
                return None

    def sizes_bytes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the sizes of many files in their order; None for missing ones."""
        if self.is_local:
            return [self.size_bytes(path) for path in paths]
        by_folder: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            by_folder[path.rpartition("/")[0]].append(path)
        listed: dict[str, int] = {}
        for found in self.at_once(lambda folder: self._listed(folder, by_folder[folder]), list(by_folder)):
            listed.update(found)
        unlisted = [path for path in paths if path not in listed]  # a listing may be stale, a request for one is not
        looked_at = dict(zip(unlisted, self.at_once(self.size_bytes, unlisted), strict=True))
        return [listed[path] if path in listed else looked_at[path] for path in paths]

    def _listed(self, folder: str, paths: Sequence[str]) -> dict[str, int]:
        """Return the sizes of several objects in one folder, as far as one listing of their common prefix returns the
        objects."""
        if len(paths) == 1:
            return {}
        prefix = os.path.commonprefix([path.rpartition("/")[2] for path in paths])  # noqa: RUF071  # not of folders
        with self.meaning():
            found = self.filesystem.find(f"{self.path}/{folder}".rstrip("/"), prefix=prefix, detail=True)
        return {name.removeprefix(f"{self.path}/"): int(info["size"]) for name, info in found.items()}

    def at_once(self, call: Callable[[WorkT], ResultT], work: Sequence[WorkT]) -> list[ResultT]:
        """Return the result of ``call`` for each element of ``work``. On a remote store, up to ``_REQUESTS_AT_ONCE``
        calls run concurrently."""
        return call_at_once(call, work, 1 if self.is_local else _REQUESTS_AT_ONCE)

    def remove(self, path: str) -> None:
        """Remove a file, ignoring a missing one."""
        with self.meaning(), contextlib.suppress(FileNotFoundError):
            if self.is_local:
                os.unlink(f"{self.path}/{path}")  # noqa: PTH108  # pathlib would take most of the time
            else:
                self.filesystem.rm_file(f"{self.path}/{path}")

    def remove_all(self, paths: Sequence[str]) -> None:
        """Remove many files, up to a thousand per request to a store, ignoring missing ones."""
        if len(paths) < 2:
            self._remove_each(paths)
        elif self.is_local:
            # A disk may take a millisecond to remove a file that was just synced, but removes others concurrently.
            shares = [paths[start::_REMOVED_AT_ONCE] for start in range(_REMOVED_AT_ONCE)]
            call_at_once(self._remove_each, shares, _REMOVED_AT_ONCE)
        elif self.store is not None and (not self.store.removes_many or _PATTERN & {*self.path}):
            self.at_once(self.remove, paths)
        else:
            for start in range(0, len(paths), _KEYS_PER_DELETION):
                self._remove_by_one_request(paths[start : start + _KEYS_PER_DELETION])

    def _remove_each(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.remove(path)

    def _remove_by_one_request(self, paths: Sequence[str]) -> None:
        try:
            with self.meaning():
                self.filesystem.rm([f"{self.path}/{path}" for path in paths])
        except (OSError, NotImplementedError):  # not every server supports such a request
            self.at_once(self.remove, paths)
