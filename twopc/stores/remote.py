"""Folders in stores other than disks: object stores, HDFS and this process's memory."""

from __future__ import annotations

import contextlib
import errno
import threading
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twopc.stores.disk import LocalFolder
from twopc.stores.errors import TEMPORARY, Unusable, is_untrusted
from twopc.stores.folder import ASIDE, PROBE, Folder, hidden

CREATES_EXCLUSIVELY = frozenset(
    {
        "s3",  # If-None-Match: *, in S3FileSystem._pipe_file (s3fs 2024.12 and later)
        "s3a",
        "gs",  # ifGenerationMatch=0, in gcsfs.core.simple_upload (gcsfs 2024.12 and later), by gcs.GcsClient
        "gcs",
        "abfs",  # If-None-Match: *, by azure.AzureClient._pipe_file
        "abfss",
        "az",
        "memory",  # checks first and then writes, hence the lock below
    }
)
"""fsspec protocols whose ``pipe_file(..., mode="create")`` lets the store decide. The others check first and then write
(``AbstractFileSystem.pipe_file``), which two writers can do at the same moment."""

RENAMES_EXCLUSIVELY = frozenset({"webhdfs"})  # the NameNode's newer rename, in webhdfs.WebHdfs.mv
"""Protocols whose ``mv`` lets the store decide."""

KEEP_A_LOG = CREATES_EXCLUSIVELY | RENAMES_EXCLUSIVELY
"""Protocols of stores other than disks that can put-if-absent."""

_REASONS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "nothing may be written there"),
    **dict.fromkeys((errno.ENOENT, errno.ENODEV), "there is no such bucket or container, and none is made"),
    errno.ENOSYS: "its server or its client has no exclusive create",
}
"""Why a store fails a trial."""

FRAMED = (
    "If the server of S3 keeps the framing of checksums as contents, give the client the option"
    " config_kwargs={'request_checksum_calculation': 'when_required'}"
)
"""Advice for a server that returns contents other than those written."""

_BY_KIND = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (PermissionError, errno.EACCES),
)

_NO_ANSWER = frozenset(("TimeoutError", "ConnectionError", "Timeout", "ChunkedEncodingError"))
"""Errors of Python and of requests that stand for a missing answer. The errors of requests have no errno. Listed by
name, because not every store needs requests."""


class _RemoteFolder(Folder):
    """A folder in a store. A trial precedes the first file. ``fs`` is an fsspec file system; for HDFS, a
    ``twopc.stores.webhdfs.WebHdfs``."""

    def __init__(self, fs: Any, path: str) -> None:
        super().__init__()
        self.fs = fs
        self.path = path.rstrip("/")
        self._is_tried = False

    def names(self) -> list[str]:
        self.fs.invalidate_cache()
        return self._see(names_in(self.fs, self.path))

    def read(self, name: str) -> bytes:
        with _answers_of_s3():
            data: bytes = self.fs.cat_file(self._file(name))
        return data

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), _answers_of_s3():
            self.fs.rm_file(self._file(name))

    def put_if_absent(self, name: str, data: bytes) -> None:
        if not self._is_tried:
            self.try_put_if_absent()
        self._create(name, data)

    @abstractmethod
    def _create(self, name: str, data: bytes) -> None:
        """Create the file, or raise FileExistsError."""

    def _written_s(self, name: str) -> float:
        return float(self.fs.modified(self._file(name)).timestamp())

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"


class ObjectFolder(_RemoteFolder):
    """A prefix in a store with conditional creation of objects: S3, GCS, Azure, or this process's memory."""

    _one_at_a_time = threading.Lock()

    def replace(self, name: str, data: bytes) -> None:
        self.fs.pipe_file(self._file(name), data)

    def sync(self, name: str) -> None:
        """Do nothing: a stored object is durable."""

    def try_put_if_absent(self) -> None:
        """Try as ``Folder`` describes. S3-compatible servers may accept the condition and still overwrite."""
        protocols = _protocols(self.fs)
        if not CREATES_EXCLUSIVELY & {*protocols}:
            raise Unusable(
                f"{protocols[0]!r} is not known to create a file only where there is none, in one step, as local disks"
                f" and {', '.join(sorted(KEEP_A_LOG))} do"
            )
        probe = hidden(PROBE)
        try:
            fault = self._fault_of_a_trial(self._create, probe)
            self._remove_leftovers(probe)
        except Exception as error:
            number = errno.ENOSYS if isinstance(error, TypeError) else meaning(self.fs, error).errno
            if number in TEMPORARY:
                raise
            raise Unusable(f"{_REASONS.get(number or 0, 'it refuses a trial object')} ({error})") from error
        with contextlib.suppress(Exception):  # a leftover only costs space
            self.fs.rm_file(self._file(probe))
        if fault:
            raise Unusable(f"{fault}. {FRAMED}" if "s3" in protocols and "contents" in fault else fault)
        self._is_tried = True

    def _create(self, name: str, data: bytes) -> None:
        path = self._file(name)
        # In one request, as in the trial: s3fs would send 100 MiB or more in parts, gcsfs 50 MiB or more.
        whole = {"chunksize": len(data) + 1} if {"s3", "gs"} & {*_protocols(self.fs)} else {}
        try:
            with self._one_at_a_time if self.fs.protocol == "memory" else _answers_of_s3():
                self.fs.pipe_file(path, data, mode="create", **whole)
        except OSError as error:
            # Only AWS names the failed condition, and s3fs relies on that name. Other servers answer a bare 412. We
            # send a single condition, so 412 means "exists".
            if _s3_code(error) in ("PreconditionFailed", "412"):
                raise FileExistsError(errno.EEXIST, "exists", path) from error
            raise


class RenamingFolder(_RemoteFolder):
    """A folder on HDFS, which refuses to rename to an existing name.

    The NameNode answers an edit, such as a rename, after it has synced its journal up to the edit. A closed file is on
    at least ``dfs.namenode.replication.min`` DataNodes, which have synced it (``WebHdfs.create``).
    """

    def put_if_absent(self, name: str, data: bytes) -> None:
        super().put_if_absent(name, data)
        self._remove_leftovers(name)

    def replace(self, name: str, data: bytes) -> None:
        self._create(name, data, replaces=True)

    def sync(self, name: str) -> None:  # noqa: ARG002  # the journal has every name
        """Make ``name`` survive a power cut, whoever created it.

        The NameNode applies an edit before it syncs its journal, and syncs the journal in order. So this makes a new
        edit, which fails on a NameNode that has been replaced.
        """
        self.fs.set_modified(self.path)

    def try_put_if_absent(self) -> None:
        """Try as ``Folder`` describes, and remove the folders that the trial created."""
        probe = hidden(PROBE)
        try:
            with folder_for_a_trial(self.fs, self.path):
                try:
                    fault = self._fault_of_a_trial(self._create, probe)
                finally:
                    with contextlib.suppress(OSError):  # a leftover only costs space
                        self.fs.rm_file(self._file(probe))
        except (PermissionError, NotADirectoryError) as error:
            raise Unusable(f"nothing may be written there ({error})") from error
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL):
                raise
            raise Unusable(f"its server or its client has no rename that refuses ({error})") from error
        if fault:
            raise Unusable(fault)
        self._is_tried = True

    def _create(self, name: str, data: bytes, replaces: bool = False) -> None:
        aside = self._file(hidden(ASIDE))
        try:
            self._write(aside, data)
            self._rename(aside, self._file(name), replaces)
        except FileExistsError:
            # This edit follows the one that created the name, so the journal is synced up to that one, too.
            self.fs.rm_file(aside)
            raise
        except Exception:
            with contextlib.suppress(OSError):  # ``_remove_leftovers`` removes it later
                self.fs.rm_file(aside)
            raise

    def _write(self, path: str, data: bytes) -> None:
        try:
            self.fs.create(path, data)
        except FileExistsError as error:  # a proxy repeated the request; callers would take it for a taken name
            raise OSError(errno.EAGAIN, error.strerror) from error

    def _rename(self, aside: str, path: str, replaces: bool) -> None:
        try:
            self.fs.mv(aside, path, replaces=replaces)
        except FileNotFoundError as error:  # a proxy repeated the request, or the aside was removed as a leftover
            raise OSError(errno.EAGAIN, error.strerror) from error


def durable_folder(fs: Any, path: str) -> LocalFolder | ObjectFolder | RenamingFolder:
    """Return the folder at ``path`` of the fsspec file system ``fs``. Makes no request."""
    return LocalFolder(Path(path)) if "file" in _protocols(fs) else folder_at_store(fs, path)


def folder_at_store(fs: Any, path: str) -> ObjectFolder | RenamingFolder:
    """Return the folder at ``path`` of a file system that is not a disk. Makes no request."""
    return RenamingFolder(fs, path) if RENAMES_EXCLUSIVELY & {*_protocols(fs)} else ObjectFolder(fs, path)


@contextlib.contextmanager
def folder_for_a_trial(fs: Any, folder: str) -> Iterator[None]:
    """Run a trial in ``folder``. After the block, folders that were missing before it are removed if empty."""
    missing = []
    while folder:
        try:
            fs.info(folder)
        except FileNotFoundError:
            missing.append(folder)
            folder = folder.rpartition("/")[0]
        else:
            break
    try:
        yield
    finally:
        for made in missing:
            with contextlib.suppress(OSError):  # in use by now
                if not fs.ls(made, detail=False):  # some clients would also remove its contents
                    fs.rmdir(made)


def names_in(fs: Any, folder: str) -> list[str]:
    """Return the names in a folder of an fsspec file system without cached listings; none if there is no folder."""
    try:
        with _answers_of_s3():
            paths = fs.ls(folder, detail=False)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or error.errno == errno.ENODEV:  # no bucket or container
            return []
        raise
    return [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]


def meaning(fs: Any, error: Exception) -> OSError:
    """Translate an error of the fsspec file system ``fs`` to an OSError as listed in ``errors``."""
    protocols = _protocols(fs)
    if "s3" in protocols:
        from twopc.stores.s3 import translate  # needs the package botocore

        return translate(error)
    if "memory" in protocols and not isinstance(error, OSError):
        error = OSError(f"{type(error).__name__}: {error}")  # a listing fails while another thread deletes
    return by_kind(error)


def by_kind(error: Exception) -> OSError:
    """Translate an error of any client, by its errno, else by its class."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    if is_untrusted(error):
        number = errno.EACCES
    elif _NO_ANSWER & {each.__name__ for each in type(error).__mro__}:
        number = errno.ETIMEDOUT
    elif type(error) is OSError:
        number = errno.EAGAIN  # a client's own error for a failed request
    else:
        number = next((number for kinds, number in _BY_KIND if isinstance(error, kinds)), errno.EIO)
    return OSError(number, f"{type(error).__name__}: {error}")


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


@contextlib.contextmanager
def _answers_of_s3() -> Iterator[None]:
    """Wrap any request except HEAD. In a 404, S3 puts its code into the body. A 404 without a code comes from a
    gateway, for example while S3 restarts, and does not mean that the object is missing."""
    try:
        yield
    except FileNotFoundError as error:
        if _s3_code(error) == "404":
            raise OSError(errno.EBUSY, "a 404 that is not of S3, such as a gateway's") from error
        raise


def _s3_code(error: OSError) -> str | None:
    """Return the S3 server's error code, from botocore's error behind s3fs's."""
    response = getattr(error.__cause__, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None
