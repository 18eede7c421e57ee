"""Stores for a commit log's entries. The protocol rests on one of their operations: put-if-absent."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from twopc import registry
from twopc.checks import CheckResult
from twopc.errors import DESCRIBED_BY, ConfigurationError, OperatorRequired, Retriable
from twopc.log.entry_json import ENTRY_SUFFIX, LONGEST_ENTRY, entry_name
from twopc.options import did_you_mean
from twopc.stores.disk import LocalFolder
from twopc.stores.errors import REFUSING, TEMPORARY, Unusable
from twopc.stores.folder import Folder
from twopc.stores.mounts import Mount, mount_of
from twopc.stores.places import LOCAL, canonical, file_system, parsed_place
from twopc.stores.remote import KEEP_A_LOG, ObjectFolder, RenamingFolder, folder_at_store, meaning

logger = logging.getLogger(__name__)

_NOTICE = "notice.json"


@runtime_checkable
class LogStore(Protocol):
    """A store of numbered entries."""

    url: str

    def slots(self) -> list[int]:
        """Return the numbers of the existing entries, ascending; none if there is no log."""

    def read(self, slot: int) -> bytes:
        """Return the whole entry. Raises FileNotFoundError."""

    def put_if_absent(self, slot: int, data: bytes) -> None:
        """Create the entry: durable and complete, or not at all.

        Raises:
            FileExistsError: the slot contains an entry. That may be this very entry, if the store's client repeats a
                lost request.
            ConfigurationError: the store can't keep a log; the entry was not written.
            Exception: any other error; the outcome is unknown.
        """

    def delete(self, slot: int) -> None:
        """Remove the entry, or do nothing if there is none."""

    def post(self, data: bytes) -> None:
        """Replace the single notice beside the entries. No decision depends on it."""

    def posted(self) -> bytes:
        """Return the notice; empty if there is none."""


@runtime_checkable
class CheckedLogStore(Protocol):
    """A log store that ``twopc doctor`` can check. Every store that comes with twopc implements this."""

    def check(self) -> Iterator[CheckResult]:
        """Check the store, with or without a log in it. Try what can be tried, and leave no trace.

        Raises:
            ConfigurationError: the store can't keep a log.
            Exception: any other error; the store does not answer.
        """


@runtime_checkable
class ReplicatedLogStore(Protocol):
    """A log store whose server may still answer reads after another one has replaced it."""

    def require_current(self) -> None:
        """Check that the server may still change the log, without changing an entry. Raises Exception: the server may
        no longer change the log, or does not answer."""


def _slot(name: str) -> int | None:
    stem = name.removesuffix(ENTRY_SUFFIX)
    return int(stem) if name.endswith(ENTRY_SUFFIX) and len(stem) == 20 and stem.isdecimal() else None


_HOW_TO_GIVE_THEM = f"{DESCRIBED_BY}open_store shows how to give them"


def open_store(url: str | os.PathLike[str], **storage_options: Any) -> LogStore:
    """Return the store for ``url``: a path or ``file://``, an object store (``s3://``, ``gs://``, ``abfs://``), HDFS
    (``webhdfs://``), ``memory://`` for this process alone, or a scheme that a plugin adds (``postgresql://``). Makes no
    request and writes nothing.

    A log's store must create a file only where there is none, whole or not at all, and list it at once. twopc needs
    permission to create, read, list and delete entries there. Pass options and credentials here, in the environment
    (``FSSPEC_S3_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``), or in a file in ``~/.config/fsspec``, which the ``twopc``
    command reads, too::

        log = twopc.open_store("s3://bucket/twopc-log", endpoint_url="https://minio.internal:9000")

    Args:
        url: the log's folder, as a path or URL.
        storage_options: options of the store's client, such as ``endpoint_url`` or credentials. They are only passed to
            the client. Other options come from fsspec's configuration, or from the client's own.

    Raises:
        ConfigurationError: the store is of an unsupported kind, its client is not installed or does not take the
            options, or the URL contains a password.
    """
    protocol, path = parsed_place("the commit log", url)
    if protocol in KEEP_A_LOG:
        return ObjectStore(canonical(protocol, path), storage_options)
    if protocol not in LOCAL:
        return _of_plugin(str(protocol), os.fspath(url), storage_options)
    if storage_options:
        raise ConfigurationError(f"the log at {url!r} is on a disk, which takes no {', '.join(storage_options)}")
    folder = Path(path).absolute()
    return LocalStore(str(folder) if protocol is None else os.fspath(url), folder)


def _of_plugin(scheme: str, url: str, storage_options: Mapping[str, Any]) -> LogStore:
    found = registry.find(registry.LOG_STORES, scheme, "log stores")
    if found is None:
        names = registry.names(registry.LOG_STORES)
        installed = ", ".join(f"{name}://" for name in names) or "none"
        raise ConfigurationError(
            f"a commit log can't be kept at {scheme}://, which is not known to create a file only where there is"
            f" none, in one step, as file, {', '.join(sorted(KEEP_A_LOG))} do. Keep the log at one of these,"
            f" or in a store that a plugin brings (installed here: {installed}; twopc-postgres brings postgresql://);"
            " the sinks may be elsewhere."  # the rest of such a URL may hold a password
            f"{did_you_mean(scheme, [*names, 'postgresql'])}"
        )
    make = registry.load(found, "twopc_log_store", f"the log store for {scheme}://")
    if not callable(make):
        raise ConfigurationError(
            f"the log store for {scheme}:// ({registry.origin(found)}) gives {make!r}: its module needs a hook"
            " implementation twopc_log_store() that returns the store's class"
        )
    try:
        store = make(url, **storage_options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the log store for {scheme}:// ({registry.origin(found)}) does not take this URL, or these options:"
            f" {', '.join(storage_options) or 'none'} ({type(error).__name__})"  # its text may hold a secret
        ) from None
    if not isinstance(store, LogStore):
        raise ConfigurationError(
            f"the log store for {scheme}:// ({registry.origin(found)}) is a {type(store).__name__}, which lacks methods"
            " or the attribute url of twopc.log.store.LogStore"
        )
    return store


def store_of(log: str | os.PathLike[str] | LogStore) -> LogStore:
    """Return ``log`` itself, or the store for a path or URL. Raises the same errors as ``open_store``."""
    given: Any = log
    return given if hasattr(given, "put_if_absent") else open_store(given)


class _FolderStore(ABC):
    """A folder of entries, with the notice beside them."""

    url: str
    _folder: Folder

    @abstractmethod
    def _reading(self) -> contextlib.AbstractContextManager[None]:
        """Map the errors of a read."""

    @abstractmethod
    def _writing(self) -> contextlib.AbstractContextManager[None]:
        """Map the errors of a write."""

    def slots(self) -> list[int]:
        with self._reading():
            return sorted(slot for slot in map(_slot, self._folder.names()) if slot is not None)

    def read(self, slot: int) -> bytes:
        with self._reading():
            return self._folder.read(entry_name(slot))

    def put_if_absent(self, slot: int, data: bytes) -> None:
        with self._writing():
            self._folder.put_if_absent(entry_name(slot), data)

    def delete(self, slot: int) -> None:
        self._folder.remove(entry_name(slot))

    def post(self, data: bytes) -> None:
        with self._writing():
            self._folder.replace(_NOTICE, data)

    def posted(self) -> bytes:
        try:
            with self._reading():
                return self._folder.read(_NOTICE)
        except FileNotFoundError:
            return b""

    def try_put_if_absent(self) -> None:
        """Try to create a file that is not an entry, twice, and leave the folder as it was.

        Raises:
            ConfigurationError: the store can't keep a log, or this process may not write there.
            OSError: the store does not answer.
        """
        with self._writing():
            self._folder.try_put_if_absent()

    def check(self) -> Iterator[CheckResult]:
        self.try_put_if_absent()
        yield CheckResult.passed(PUT_IF_ABSENT, TRIED)


class LocalStore(_FolderStore):
    """A folder on a disk. An entry is never partially written."""

    _folder: LocalFolder

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = LocalFolder(folder)

    def read(self, slot: int) -> bytes:
        with self._reading():
            return self._folder.read(entry_name(slot), LONGEST_ENTRY + 1)  # a longer file may fill the memory

    @property
    def mount(self) -> Mount | None:
        """The filesystem that the folder is on, or None if unknown."""
        return mount_of(self._folder.path)

    def try_put_if_absent(self) -> None:
        try:
            self._folder.try_put_if_absent()
        except OSError as error:
            raise ConfigurationError(
                f"a commit log can't be kept at {self.url}: {error}. Name a folder that this user may write to,"
                f" {ON_WHICH_DISK}"
            ) from error

    def check(self) -> Iterator[CheckResult]:
        yield from super().check()
        if (mount := self.mount) is not None and mount.is_network:
            check = "visibility of new entries to other machines"
            if mount.may_be_late:
                yield CheckResult.warning(check, f"late on {mount}: {LATE_LISTINGS}", KEEP_LISTINGS_FRESH)
            else:
                yield CheckResult.passed(check)

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        return self._permitted("read")

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return self._permitted("written")

    @contextlib.contextmanager
    def _permitted(self, done: str) -> Iterator[None]:
        """Raise ConfigurationError if the disk refuses permanently."""
        try:
            yield
        except Unusable as error:
            raise ConfigurationError(
                f"the commit log at {self.url} can't be {done}: {error.strerror} ({error.filename}). Give this process,"
                f" which runs as user {os.geteuid()}, a folder that it may read and write, {ON_WHICH_DISK}"
            ) from error


class ObjectStore(_FolderStore):
    """A folder in an object store, on HDFS, or in this process's memory."""

    _folder: ObjectFolder | RenamingFolder

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self.url = url
        # A separate client without cached listings: a stale one would hide the entry that fences this coordinator.
        options = {**storage_options, "skip_instance_cache": True, "use_listings_cache": False}
        if url.startswith("s3"):
            options.setdefault("max_concurrency", 1)  # otherwise it requests the length before each read
        try:
            self._folder = folder_at_store(*file_system(url, **options))
        except (ImportError, TypeError, ValueError, KeyError) as error:
            raise ConfigurationError(
                f"the client for {url!r} can't be made ({type(error).__name__}: {error}). Is it installed (for S3:"
                " pip install 'twopc-core[s3]', for Google Cloud Storage: 'twopc-core[gcs]'), and does it take these"
                f" options? {_HOW_TO_GIVE_THEM}"
            ) from error
        except OSError as error:
            raise Retriable(f"the client for {url!r} can't be made at this moment ({error})") from error

    def require_current(self) -> None:
        with self._reading(), contextlib.suppress(FileNotFoundError):  # without a folder, no listing can be stale
            self._folder.sync("")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise ConfigurationError if the store can't put-if-absent."""
        try:
            yield
        except Unusable as error:
            raise ConfigurationError(
                f"a commit log can't be kept at {self.url}: {error}. No entry was written. Use a store that creates a"
                f" file only where there is none, or give it options: {_HOW_TO_GIVE_THEM}"
            ) from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Map the errors of a request that may be repeated.

        Raises:
            FileNotFoundError: unchanged.
            Retriable: the store is busy, or did not answer.
            ConfigurationError: this process may not read, or has no credentials.
            OperatorRequired: any other answer, which is not known to pass.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            number = meaning(self._folder.fs, error).errno
            what = f"({type(error).__name__}: {error})"
            if number in TEMPORARY:
                raise Retriable(
                    f"the store of the commit log at {self.url} gave no answer {what}. Is it up, and are the client's"
                    f" options right? {_HOW_TO_GIVE_THEM}"
                ) from error
            if number in REFUSING:
                raise ConfigurationError(
                    f"the store of the commit log at {self.url} does not let this process read it {what}. Check its"
                    f" credentials and permissions: {_HOW_TO_GIVE_THEM}"
                ) from error
            raise OperatorRequired(
                f"the store of the commit log at {self.url} refused a request {what}. It is not known to pass, so it is"
                " not repeated. Correct what the store names, and start again"
            ) from error


ON_WHICH_DISK = "on a disk with hard links; or keep the log at an object store or in PostgreSQL"

PUT_IF_ABSENT = "put-if-absent"
TRIED = "tried with an entry that was removed again"

LATE_LISTINGS = (
    "it may show what other machines write there a minute late, so a driver that still runs on one of them could roll"
    " back what a newer driver has decided"
)
KEEP_LISTINGS_FRESH = (
    "mount NFS or SMB with actimeo=0, have all drivers on one machine, or keep the log at an object store"
)


def warn_of_late_listings(store: LogStore) -> None:
    """Warn, once per store, if listings may be so late that a driver does not notice in time that it is fenced.

    Such a store is not refused. It is safe as long as drivers do not run on two machines at the same time.
    """
    if isinstance(store, LocalStore) and store.mount is not None and store.mount.may_be_late:
        _warn_once(f"the commit log at {store.url} is on {store.mount}: {LATE_LISTINGS}; {KEEP_LISTINGS_FRESH}")


@functools.lru_cache(maxsize=256)
def _warn_once(text: str) -> None:
    logger.warning(text)
