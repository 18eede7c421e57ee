"""Where a commit log's entries lie: few operations, of which one, put-if-absent, everything else rests on."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from fsspec.core import url_to_fs

from twopc.errors import ConfigurationError, Retriable
from twopc.log.mounts import Mount, mount_of
from twopc.places import LOCAL, canonical, parsed_place

logger = logging.getLogger(__name__)

_SUFFIX = ".json"
_ASIDE = ".aside"
_PROBE = ".probe"
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.EOPNOTSUPP, errno.ENAMETOOLONG)
"""What a file system answers for good. EPERM, to a hard link: this disk has none, link(2)."""
_NOTICE = "notice.json"
_ASIDE_LIVES_S = 3600
"""How long a writer may take from its first byte to its link. Then what it wrote aside counts as left behind."""

_CREATES_EXCLUSIVELY = frozenset(
    {
        "s3",  # If-None-Match: *, in S3FileSystem._pipe_file (s3fs 2024.12 and later)
        "s3a",
        "gs",  # ifGenerationMatch=0, in gcsfs.core.simple_upload (gcsfs 2026.10)
        "gcs",
        "abfs",  # If-None-Match: *, by upload_blob(overwrite=False) in AzureBlobFileSystem._pipe_file (adlfs 2026.8)
        "abfss",
        "az",
        "memory",  # looks first and writes then, so the lock below
    }
)
"""Protocols of fsspec whose ``pipe_file(..., mode="create")`` lets the store decide. The others look first and write
then (``AbstractFileSystem.pipe_file``), which two writers can do at the same moment."""


class LogStore(Protocol):
    """A folder of numbered entries."""

    url: str

    def slots(self) -> list[int]:
        """The numbers of the entries that are there now, ascending; none where there is no folder."""

    def read(self, slot: int) -> bytes:
        """The whole entry. Raises FileNotFoundError."""

    def put_if_absent(self, slot: int, data: bytes) -> None:
        """Create the entry, durable and whole or not at all.

        Raises:
            FileExistsError: there is one. It may be this very one, where the store's client repeats a lost request.
            ConfigurationError: the store can't keep a log; the entry was not written.
            Exception: any other is an unknown outcome.
        """

    def delete(self, slot: int) -> None:
        """Remove the entry, or do nothing where there is none."""

    def post(self, data: bytes) -> None:
        """Replace the one notice beside the entries, for people: nothing rests on it."""

    def posted(self) -> bytes:
        """The notice; empty where there is none."""


def entry_name(slot: int) -> str:
    """``00000000000000000042.json``: twenty digits, so that names sort as numbers do."""
    return f"{slot:020d}{_SUFFIX}"


def _slot(name: str) -> int | None:
    stem = name.removesuffix(_SUFFIX)
    return int(stem) if name.endswith(_SUFFIX) and len(stem) == 20 and stem.isdecimal() else None


def open_store(url: str | os.PathLike[str], **storage_options: Any) -> LocalStore | ObjectStore:
    """The store for ``url``: a path or ``file://``, an object store (``s3://``, ``gs://``, ``abfs://``), or ``memory://``
    for this process alone. Nothing is asked and nothing is written yet.

    Args:
        url: the log's folder, as path or URL.
        storage_options: what fsspec's client takes, such as ``endpoint_url`` or credentials. They go nowhere else. What
            is not given comes from fsspec's configuration, or from the client's own.

    Raises:
        ConfigurationError: another kind of store, a client that is not installed, options that it does not take, a
            password in the URL.
    """
    protocol, path = parsed_place("the commit log", url)
    if protocol in _CREATES_EXCLUSIVELY:
        return ObjectStore(canonical(protocol, path), storage_options)
    if protocol not in LOCAL:
        raise ConfigurationError(
            f"a commit log can't be kept at {protocol}://: that is not known to create a file only where there is none,"
            f" in one step, as file, {', '.join(sorted(_CREATES_EXCLUSIVELY))} do. Keep the log at one of these; the"
            " sinks may be elsewhere"  # the rest of such a URL may hold a password
        )
    if storage_options:
        raise ConfigurationError(f"the log at {url!r} is on a disk, which takes no {', '.join(storage_options)}")
    return LocalStore(os.fspath(url), Path(path).absolute())


def store_of(log: str | os.PathLike[str] | LogStore) -> LogStore:
    """``log`` itself, or the store for a path or URL. Raises like ``open_store``."""
    given: Any = log
    return given if hasattr(given, "put_if_absent") else open_store(given)


class LocalStore:
    """A folder on a disk. An entry is written aside, synced, and linked into place: half an entry can't be."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        self._asides: list[str] = []
        self._not_synced: set[int] = set()

    def slots(self) -> list[int]:
        try:
            with self._permitted("read"):
                names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        self._asides = [name for name in names if name.endswith(_ASIDE)]
        return _slots(names)

    def read(self, slot: int) -> bytes:
        with self._permitted("read"):
            return (self._folder / entry_name(slot)).read_bytes()

    def put_if_absent(self, slot: int, data: bytes) -> None:
        with self._permitted("written"):
            make_folder(self._folder)
        with self._written_aside(data) as aside:
            try:
                with self._permitted("written"):
                    os.link(aside, self._folder / entry_name(slot))
            finally:
                self._sync(slot)  # also what another writer linked and could not sync
            self._remove_asides_of_the_killed(aside)

    @property
    def mount(self) -> Mount | None:
        """The filesystem that the folder is on, or None where that is not known."""
        return mount_of(self._folder)

    def _sync(self, slot: int) -> None:
        if slot in self._not_synced:  # a kernel tells of a failed write-back once, and the next sync passes for nothing
            raise OSError(errno.EIO, "an entry's name was not synced", str(self._folder))
        try:
            sync_folder(self._folder)
        except OSError:
            self._not_synced.add(slot)
            raise

    @contextlib.contextmanager
    def _written_aside(self, data: bytes) -> Iterator[Path]:
        aside = self._folder / f".{uuid.uuid4().hex}{_ASIDE}"
        try:
            with self._permitted("written"):
                opened = aside.open("xb")
            with opened as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield aside
        finally:
            aside.unlink(missing_ok=True)

    def _remove_asides_of_the_killed(self, mine: Path) -> None:
        """The clock is the folder's, so no two machines' clocks are compared. A writer that only slept can't link any
        more: that is an unknown outcome, and it puts its entry once more."""
        for name in self._asides:
            with contextlib.suppress(OSError):  # costs room, nothing else
                aside = self._folder / name
                if mine.stat().st_mtime - aside.stat().st_mtime > _ASIDE_LIVES_S:
                    aside.unlink()

    @contextlib.contextmanager
    def _permitted(self, done: str) -> Iterator[None]:
        """Around one step, which does nothing where it is refused for good.

        Raises:
            ConfigurationError: it is.
        """
        try:
            yield
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            raise ConfigurationError(
                f"the commit log at {self.url} can't be {done}: {error.strerror} ({error.filename}). Give this process,"
                f" which runs as user {os.geteuid()}, a folder that it may read and write, on a disk with hard links"
            ) from error

    def delete(self, slot: int) -> None:
        (self._folder / entry_name(slot)).unlink(missing_ok=True)

    def post(self, data: bytes) -> None:
        with self._written_aside(data) as aside:
            aside.replace(self._folder / _NOTICE)

    def posted(self) -> bytes:
        try:
            return (self._folder / _NOTICE).read_bytes()
        except FileNotFoundError:
            return b""

    def try_put_if_absent(self) -> None:
        """Try to create an entry twice, of no log and in a folder that is removed again if it is not there.

        Raises:
            ConfigurationError: the disk can't keep a log, or this process may not write there.
        """
        probe = self._folder / f".{uuid.uuid4().hex}{_PROBE}"
        try:
            with folder_for_a_trial(self._folder), self._written_aside(b"") as aside:
                os.link(aside, probe)
                try:
                    os.link(aside, probe)
                except FileExistsError:
                    return
                finally:
                    probe.unlink()
        except OSError as error:
            raise ConfigurationError(
                f"a commit log can't be kept at {self.url}: {error}. Name a folder that this user may write to,"
                " on a disk with hard links"
            ) from error
        raise ConfigurationError(f"a commit log can't be kept at {self.url}: its disk replaces what it should refuse")


class ObjectStore:
    """A prefix at a store that creates an object only where there is none: S3, GCS, Azure, or this process's memory.

    Whether the store really does is tried once, before the first entry: S3's look-alikes may take the header and
    overwrite all the same.
    """

    _one_at_a_time = threading.Lock()

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self.url = url
        # A client of its own, which keeps no listings: an old one would hide the entry that fences us.
        options = {**storage_options, "skip_instance_cache": True, "use_listings_cache": False}
        try:
            self._fs, folder = url_to_fs(url, **options)
        except (ImportError, TypeError, ValueError, KeyError) as error:
            raise ConfigurationError(
                f"the client for {url!r} can't be made ({type(error).__name__}: {error}). Is it installed (for S3:"
                " pip install 'twopc-core[s3]'), and does it take these options?"
            ) from error
        self._folder = folder.rstrip("/")
        self._is_tried = False

    def slots(self) -> list[int]:
        with self._asked():
            return _slots(names_in(self._fs, self._folder))

    def read(self, slot: int) -> bytes:
        with self._asked():
            data: bytes = self._fs.cat_file(self._path(slot))
            return data

    def put_if_absent(self, slot: int, data: bytes) -> None:
        if not self._is_tried:
            self.try_put_if_absent()
            self._is_tried = True
        self._create(self._path(slot), data)

    def delete(self, slot: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(slot))

    def post(self, data: bytes) -> None:
        self._fs.pipe_file(f"{self._folder}/{_NOTICE}", data)

    def posted(self) -> bytes:
        try:
            with self._asked():
                data: bytes = self._fs.cat_file(f"{self._folder}/{_NOTICE}")
                return data
        except FileNotFoundError:
            return b""

    def _path(self, slot: int) -> str:
        return f"{self._folder}/{entry_name(slot)}"

    def _create(self, path: str, data: bytes) -> None:
        try:
            with self._one_at_a_time if self._fs.protocol == "memory" else contextlib.nullcontext():
                self._fs.pipe_file(path, data, mode="create")
        except OSError as error:
            # Of S3's servers only AWS's own names the condition that failed, and s3fs goes by that. There is but one.
            if _s3_code(error) in ("PreconditionFailed", "412"):
                raise FileExistsError(errno.EEXIST, "exists", path) from error
            raise

    def try_put_if_absent(self) -> None:
        """Make sure of what all else rests on: that a second create of the same name is refused.

        Raises:
            ConfigurationError: the store can't keep a log.
            OSError: it does not answer.
        """
        path = f"{self._folder}/.{uuid.uuid4().hex}{_PROBE}"
        try:
            is_exclusive = self._refuses_a_second(path)
        except FileNotFoundError as error:
            raise self._refusal("there is no such bucket or container, and none is made") from error
        except PermissionError as error:
            raise self._refusal(f"nothing may be written there ({error})") from error
        except (OSError, TypeError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOSYS:
                raise
            raise self._refusal(f"its server or its client has no exclusive create ({error})") from error
        with contextlib.suppress(Exception):  # costs room, nothing else
            self._fs.rm_file(path)
        if not is_exclusive:
            raise self._refusal("its server overwrites what it was told to create only where there is none")

    def _refuses_a_second(self, path: str) -> bool:
        try:
            for _ in range(2):
                self._create(path, b"")
        except FileExistsError:  # already by the first, where its reply was lost and the client repeated it
            return True
        return False

    def _refusal(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"a commit log can't be kept at {self.url}: {reason}. No entry was written. docs/stores.md says what a"
            " store must offer, and how to give options"
        )

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Around what may be asked again: clients raise errors of many kinds, and of two meanings."""
        try:
            yield
        except FileNotFoundError:
            raise
        except PermissionError as error:
            raise ConfigurationError(
                f"the store of the commit log at {self.url} does not let this process read it ({error}). Check its"
                " credentials and rights; docs/stores.md says how to give them"
            ) from error
        except Exception as error:
            if type(error).__name__ in _NO_CREDENTIALS:
                raise ConfigurationError(
                    f"the client of the commit log at {self.url} finds no credentials ({error}). Nothing was asked of"
                    " the store; docs/stores.md says how to give them"
                ) from error
            raise Retriable(
                f"the store of the commit log at {self.url} gave no answer ({type(error).__name__}: {error}). Is it up,"
                " and are the client's options right? docs/stores.md says how to give them"
            ) from error


_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
"""Errors of botocore, by name as the core does not import it: raised before any request, and repeated in vain."""

LATE_LISTINGS = (
    "it may show what other machines write there a minute late. A driver that still runs on one of them could then roll"
    " back what a newer driver has decided. Mount NFS or SMB with actimeo=0, have all drivers on one machine, or keep"
    " the log at an object store"
)


def warn_of_late_listings(store: LogStore) -> None:
    """Warn where a fenced driver may not learn of it in time: once per store, in the log of this process.

    That is not refused. All goes well as long as no two machines have drivers at the same time.
    """
    if isinstance(store, LocalStore) and store.mount is not None and store.mount.may_be_late:
        _warn_once(f"the commit log at {store.url} is on {store.mount}: {LATE_LISTINGS}")


@functools.lru_cache(maxsize=256)
def _warn_once(text: str) -> None:
    logger.warning(text)


def _slots(names: list[str]) -> list[int]:
    return sorted(slot for slot in map(_slot, names) if slot is not None)


def _s3_code(error: OSError) -> str | None:
    """What the S3 server said, by botocore's error behind that of s3fs."""
    response = getattr(error.__cause__, "response", None) or {}
    code: str | None = response.get("Error", {}).get("Code")
    return code


def names_in(fs: Any, folder: str) -> list[str]:
    """The names in a folder of a file system that keeps no listings; none where there is no folder."""
    try:
        paths = fs.ls(folder, detail=False)
    except FileNotFoundError:
        return []
    return [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]


def make_folder(folder: Path) -> None:
    """Make ``folder`` and its parents where they are missing, so that they survive a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_name.cache_clear()  # it may remember a folder of this name that is gone
    _sync_name(folder)


@contextlib.contextmanager
def folder_for_a_trial(folder: Path) -> Iterator[None]:
    """Have ``folder``; what was missing of it, and is still empty, is removed again."""
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    make_folder(folder)
    try:
        yield
    finally:
        for made in missing:
            with contextlib.suppress(OSError):  # somebody uses it by now
                made.rmdir()


@functools.lru_cache(maxsize=256)
def _sync_name(folder: Path) -> None:
    """Make the names of a folder and its parents survive a power cut. Once a process also where they were there: who
    made them may have died before this. Above a mount there is nothing of this disk."""
    if folder.is_mount():
        return
    try:
        sync_folder(folder.parent)
    except PermissionError:
        if os.access(folder.parent, os.W_OK):  # else nobody like this process has made a folder there
            raise
    _sync_name(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make what was created, linked or renamed in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
