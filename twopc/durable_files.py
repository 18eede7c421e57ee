"""Files that survive a power cut, and put-if-absent: create a file whole, and only where there is none.

Public, for sinks and log stores. The commit log rests on put-if-absent: of two writers of one name, one wins, and the
other gets FileExistsError.

| place | how a file is created |
| --- | --- |
| ``LocalFolder`` | written aside, synced, and linked or renamed into place, which fails where the name exists |
| ``ObjectFolder`` | a conditional put; the store is tried first, as some servers ignore the condition |
| ``RenamingFolder`` | written aside, closed, and renamed into place: HDFS refuses to rename to a name that exists |
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from twopc._exclusive_rename import rename_to_free_name
from twopc.mounts import mount_of
from twopc.store_errors import FRAMED, TEMPORARY, meaning

CREATES_EXCLUSIVELY = frozenset(
    {
        "s3",  # If-None-Match: *, in S3FileSystem._pipe_file (s3fs 2024.12 and later)
        "s3a",
        "gs",  # ifGenerationMatch=0, in gcsfs.core.simple_upload (gcsfs 2024.12 and later), by twopc.gcs.GcsClient
        "gcs",
        "abfs",  # If-None-Match: *, by twopc.azure.AzureClient._pipe_file
        "abfss",
        "az",
        "memory",  # looks first and then writes, hence the lock below
    }
)
"""Protocols of fsspec whose ``pipe_file(..., mode="create")`` lets the store decide. The others look first and then
write (``AbstractFileSystem.pipe_file``), which two writers can do at the same moment."""

RENAMES_EXCLUSIVELY = frozenset({"webhdfs"})  # the NameNode's newer rename, in twopc.webhdfs.WebHdfs.mv
"""Protocols whose ``mv`` lets the store decide."""

KEEP_A_LOG = CREATES_EXCLUSIVELY | RENAMES_EXCLUSIVELY
"""Protocols of stores that can put-if-absent, besides disks."""

_ASIDE = ".aside"
_ASIDE_LIVES_S = 3600
"""How long a writer may take from its first byte to its link. After that, the file that it wrote aside counts as left
behind."""
_PROBE = ".probe"
_TRIAL_BYTES = bytes(range(256)) * 4
"""What a trial writes and reads back: as much as an entry."""
_TRIALS = 3
"""How often a trial may find that another process's trial has just removed the folder, which that one had made."""
_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.EOPNOTSUPP, errno.ENOSYS),
    errno.EINVAL,  # a folder that can't be synced: fsync(2)
)
"""Permanent refusals of a file system."""
_WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Replies to the first hard link of a file where there are none: of a disk, of a kernel, of a filesystem in user space
such as a mounted bucket, and where a file may have one name. link(2)."""


class Unusable(OSError):
    """A folder refuses the operation permanently, or can't put-if-absent. The file was not created."""


class NotSynced(OSError):
    """A name may not survive a power cut, though the folder can be synced again by now."""


class LocalFolder:
    """A folder on a disk.

    Every method may raise ``Unusable``: this process lacks a right, or the disk has neither hard links nor a rename
    that keeps an existing file, or its folders can't be synced. Any other OSError of a writing method is an unknown
    outcome.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._leftovers: list[str] = []
        self._not_synced: set[str] = set()

    def names(self) -> list[str]:
        """Return the names in the folder; none where there is no folder."""
        try:
            with _permanent_refusals():
                names = [path.name for path in self.path.iterdir()]
        except FileNotFoundError:
            return []
        self._leftovers = [name for name in names if name.endswith((_ASIDE, _PROBE))]
        return names

    def read(self, name: str, most: int = -1) -> bytes:
        """Return the whole file, or its first ``most`` bytes. Raises FileNotFoundError."""
        with _permanent_refusals(), (self.path / name).open("rb") as file:
            return file.read(most)

    def put_if_absent(self, name: str, data: bytes) -> None:
        """Create the file, durable and whole or not at all. Make the folder where it is missing.

        Asides that killed writers have left are removed, if ``names`` has seen them and they are older than an hour.

        Raises:
            FileExistsError: the name exists, and survives a power cut.
        """
        with _permanent_refusals():
            make_folder(self.path)
        with self._written_aside(data) as aside:
            self._remove_leftovers(aside)
            try:
                with _permanent_refusals():
                    put_in_place(aside, self.path / name)
            finally:
                self.sync(name)  # also what another writer put there and could not sync

    def replace(self, name: str, data: bytes) -> None:
        """Create or replace the file, whole. A power cut may bring the old one back."""
        with self._written_aside(data) as aside:
            aside.replace(self.path / name)

    def remove(self, name: str) -> None:
        """Remove the file, or do nothing where there is none."""
        (self.path / name).unlink(missing_ok=True)

    def sync(self, name: str) -> None:
        """Make ``name`` survive a power cut, whoever created it.

        A kernel reports a failed write-back once, and the next sync succeeds although the name never reached the disk.
        So a name that could not be synced once raises ``NotSynced`` for as long as this object lives.
        """
        if name in self._not_synced:
            raise NotSynced(errno.EIO, "an entry's name was not synced", str(self.path))
        try:
            sync_folder(self.path)
        except OSError:
            self._not_synced.add(name)
            raise

    def try_put_if_absent(self) -> None:
        """Create a hidden file twice, and read it back. Files and folders that the trial made are removed again.

        Raises:
            Unusable: this process may not write here, or the disk can't create a file only where there is none, or
                can't make its name durable, or returns something else than was written.
        """
        for trial in range(_TRIALS):
            try:
                self._try_to_put_twice()
            except FileNotFoundError:
                if trial + 1 == _TRIALS:
                    raise
            else:
                return

    def _try_to_put_twice(self) -> None:
        probe = self.path / _hidden(_PROBE)
        with _permanent_refusals(), folder_for_a_trial(self.path):
            try:
                fault = _fault_of_a_trial(self, self.put_if_absent, probe.name)
            finally:
                probe.unlink(missing_ok=True)
        if fault:
            raise Unusable(fault)

    @contextlib.contextmanager
    def _written_aside(self, data: bytes) -> Iterator[Path]:
        aside = self.path / _hidden(_ASIDE)
        try:
            with _permanent_refusals():
                opened = aside.open("xb")
            with opened as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield aside
        finally:
            aside.unlink(missing_ok=True)

    def _remove_leftovers(self, mine: Path) -> None:
        """Remove what killed processes left. Judge age by the folder's clock, so that no two machines' clocks are
        compared. A writer that only slept can't link any more: that is an unknown outcome, and it repeats its put."""
        for name in self._leftovers:
            with contextlib.suppress(OSError):  # costs room, nothing else
                left = self.path / name
                if mine.stat().st_mtime - left.stat().st_mtime > _ASIDE_LIVES_S:
                    left.unlink()


def put_in_place(aside: Path, path: Path) -> None:
    """Give a whole and synced file its name, if the name is free, by a link or a rename. ``aside`` may be gone then.

    Where there are no hard links, creating the name first and filling it afterwards (``O_EXCL``) is no way out: a crash
    leaves a part of the file, and nobody could tell whether its writer is dead or slow.

    The rename is not used on a network filesystem, see ``Mount.may_replace``, nor where the system lists no mounts. The
    server of a FUSE filesystem is trusted to keep its promise.

    Raises:
        FileExistsError: the name is taken.
        Unusable: the disk has neither hard links nor such a rename. Nothing was changed.
    """
    try:
        os.link(aside, path)
        return
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
    mount = mount_of(path.parent)
    if mount is None or mount.may_replace:
        reason = f"no hard links, and a rename may replace an existing file ({mount or 'the mounts are not known'})"
        raise Unusable(errno.ENOTSUP, reason, str(path))
    try:
        rename_to_free_name(aside, path)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        reason = "its disk has neither hard links nor a rename that keeps an existing file"
        raise Unusable(errno.ENOTSUP, reason, str(path)) from error


class ObjectFolder:
    """A prefix at a store that creates an object only where there is none: S3, GCS, Azure, or this process's memory.

    Args:
        fs: an fsspec file system.
        path: the prefix, as ``fs`` names it.
    """

    _one_at_a_time = threading.Lock()

    def __init__(self, fs: Any, path: str) -> None:
        self.fs = fs
        self.path = path.rstrip("/")
        self._is_tried = False
        self._leftovers: list[str] = []

    def names(self) -> list[str]:
        """Return the names in the folder, as the store lists them now; none where there is no folder."""
        self.fs.invalidate_cache()
        names = names_in(self.fs, self.path)
        self._leftovers = [name for name in names if name.endswith(_PROBE)]
        return names

    def read(self, name: str) -> bytes:
        """Return the whole object. Raises FileNotFoundError."""
        with _answers_of_s3():
            data: bytes = self.fs.cat_file(self._object(name))
        return data

    def put_if_absent(self, name: str, data: bytes) -> None:
        """Create the object, durable and whole or not at all. The store is tried before the first object.

        Raises:
            FileExistsError: the name exists. It may be this very object, where the client repeats a lost request.
            Unusable: the store failed the trial. The object was not created.
            Exception: any other is an unknown outcome.
        """
        if not self._is_tried:
            self.try_put_if_absent()
        self._create(name, data)

    def replace(self, name: str, data: bytes) -> None:
        """Create or replace the object."""
        self.fs.pipe_file(self._object(name), data)

    def remove(self, name: str) -> None:
        """Remove the object, or do nothing where there is none."""
        with contextlib.suppress(FileNotFoundError), _answers_of_s3():
            self.fs.rm_file(self._object(name))

    def sync(self, name: str) -> None:
        """Do nothing: a stored object is durable."""

    def try_put_if_absent(self) -> None:
        """Make sure that the store keeps, returns and lists an object as it was written, and refuses to create its name
        a second time. S3's look-alikes may accept the condition and overwrite all the same.

        Raises:
            Unusable: it does not, or it refuses for a reason that is not known to pass.
            Exception: the store does not answer.
        """
        protocols = _protocols(self.fs)
        if not CREATES_EXCLUSIVELY & {*protocols}:
            raise Unusable(
                f"{protocols[0]!r} is not known to create a file only where there is none, in one step, as local disks"
                f" and {', '.join(sorted(KEEP_A_LOG))} do"
            )
        probe = _hidden(_PROBE)
        try:
            fault = _fault_of_a_trial(self, self._create, probe)
            self._remove_leftovers(probe)
        except Exception as error:
            number = errno.ENOSYS if isinstance(error, TypeError) else meaning(self.fs, error).errno
            if number in TEMPORARY:
                raise
            raise Unusable(f"{_REASONS.get(number or 0, 'it refuses a trial object')} ({error})") from error
        with contextlib.suppress(Exception):  # costs room, nothing else
            self.fs.rm_file(self._object(probe))
        if fault:
            raise Unusable(f"{fault}. {FRAMED}" if "s3" in protocols and "contents" in fault else fault)
        self._is_tried = True

    def _remove_leftovers(self, mine: str) -> None:
        """Remove the probes of killed processes. Judge age by the store's clock alone."""
        for name in self._leftovers:
            with contextlib.suppress(Exception):  # costs room, nothing else
                age = self.fs.modified(self._object(mine)) - self.fs.modified(self._object(name))
                if age.total_seconds() > _ASIDE_LIVES_S:
                    self.fs.rm_file(self._object(name))

    def _create(self, name: str, data: bytes) -> None:
        path = self._object(name)
        # By one request, as in the trial: s3fs would send 100 MiB or more in parts, and gcsfs 50 MiB.
        whole = {"chunksize": len(data) + 1} if {"s3", "gs"} & {*_protocols(self.fs)} else {}
        try:
            with self._one_at_a_time if self.fs.protocol == "memory" else _answers_of_s3():
                self.fs.pipe_file(path, data, mode="create", **whole)
        except OSError as error:
            # Only AWS names the failed condition, and s3fs relies on that name. Other servers answer a bare 412. There
            # is a single condition, so 412 means "exists".
            if _s3_code(error) in ("PreconditionFailed", "412"):
                raise FileExistsError(errno.EEXIST, "exists", path) from error
            raise

    def _object(self, name: str) -> str:
        return f"{self.path}/{name}"


class RenamingFolder:
    """A folder on HDFS, whose rename to a name that exists fails.

    The NameNode answers an edit, such as a rename, when it has synced its journal up to it. A closed file has its data
    on as many DataNodes as ``dfs.namenode.replication.min`` asks for, which have synced it (``WebHdfs.create``).

    Args:
        fs: a ``twopc.webhdfs.WebHdfs``.
        path: the folder, as ``fs`` names it.
    """

    def __init__(self, fs: Any, path: str) -> None:
        self.fs = fs
        self.path = path.rstrip("/")
        self._is_tried = False
        self._leftovers_ms: dict[str, int] = {}

    def names(self) -> list[str]:
        """Return the names in the folder; none where there is no folder."""
        try:
            listed = self.fs.ls(self.path, detail=True)
        except FileNotFoundError:
            return []
        written_ms = {file["pathSuffix"]: file["modificationTime"] for file in listed}
        self._leftovers_ms = {name: at for name, at in written_ms.items() if name.endswith((_ASIDE, _PROBE))}
        return [*written_ms]

    def read(self, name: str) -> bytes:
        """Return the whole file. Raises FileNotFoundError."""
        data: bytes = self.fs.cat_file(self._file(name))
        return data

    def put_if_absent(self, name: str, data: bytes) -> None:
        """Create the file, durable and whole or not at all. The store is tried before the first file.

        Asides that killed writers have left are removed, as by ``LocalFolder``.

        Raises:
            FileExistsError: the name exists, and the NameNode has synced it.
            Unusable: the store failed the trial. The file was not created.
            Exception: any other is an unknown outcome.
        """
        if not self._is_tried:
            self.try_put_if_absent()
        self._put(name, data)
        self._remove_leftovers(name)

    def replace(self, name: str, data: bytes) -> None:
        """Create or replace the file, whole."""
        self._put(name, data, replaces=True)

    def remove(self, name: str) -> None:
        """Remove the file, or do nothing where there is none."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self._file(name))

    def sync(self, name: str) -> None:  # noqa: ARG002  # the journal has every name
        """Make ``name`` survive a power cut, whoever created it.

        The NameNode applies an edit before it syncs its journal, and syncs the journal in order. So this makes an edit,
        which fails on a NameNode that another one has replaced.
        """
        self.fs.set_modified(self.path)

    def try_put_if_absent(self) -> None:
        """Rename two files to one hidden name, and read it back. Files and folders that the trial made are removed.

        Raises:
            Unusable: this process may not write here, or the store replaces a file, or returns other contents.
            OSError: the store does not answer.
        """
        try:
            missing = self._missing_folders()
            fault = self._fault_of_a_trial()
        except (PermissionError, NotADirectoryError) as error:
            raise Unusable(f"nothing may be written there ({error})") from error
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL):
                raise
            raise Unusable(f"its server or its client has no rename that refuses ({error})") from error
        for made in missing:
            with contextlib.suppress(OSError):  # in use by now
                self.fs.rmdir(made)
        if fault:
            raise Unusable(fault)
        self._is_tried = True

    def _missing_folders(self) -> list[str]:
        missing, path = [], self.path
        while path:
            try:
                self.fs.info(path)
            except FileNotFoundError:
                missing.append(path)
                path = path.rpartition("/")[0]
            else:
                break
        return missing

    def _fault_of_a_trial(self) -> str | None:
        probe = _hidden(_PROBE)
        try:
            return _fault_of_a_trial(self, self._put, probe)
        finally:
            with contextlib.suppress(OSError):  # costs room, nothing else
                self.fs.rm_file(self._file(probe))

    def _put(self, name: str, data: bytes, replaces: bool = False) -> None:
        aside = self._file(_hidden(_ASIDE))
        try:
            self._write(aside, data)
            self._rename(aside, self._file(name), replaces)
        except FileExistsError:
            # This edit comes after the one that made the name, so the journal is synced up to that one, too.
            self.fs.rm_file(aside)
            raise
        except Exception:
            with contextlib.suppress(OSError):  # it is removed when it is old
                self.fs.rm_file(aside)
            raise

    def _write(self, path: str, data: bytes) -> None:
        try:
            self.fs.create(path, data)
        except FileExistsError as error:  # a proxy repeated the request; of put-if-absent it would mean a taken name
            raise OSError(errno.EAGAIN, error.strerror) from error

    def _rename(self, aside: str, path: str, replaces: bool) -> None:
        try:
            self.fs.mv(aside, path, replaces=replaces)
        except FileNotFoundError as error:  # a proxy repeated the request, or the aside was removed as an old one
            raise OSError(errno.EAGAIN, error.strerror) from error

    def _remove_leftovers(self, mine: str) -> None:
        """Remove what killed processes left. Judge age by the NameNode's clock alone. A writer that only slept can't
        rename any more: that is an unknown outcome, and it repeats its put."""
        leftovers_ms, self._leftovers_ms = self._leftovers_ms, {}
        if not leftovers_ms:
            return
        with contextlib.suppress(OSError):  # costs room, nothing else
            now_ms = self.fs.info(self._file(mine))["modificationTime"]
            for name, written_ms in leftovers_ms.items():
                if now_ms - written_ms > _ASIDE_LIVES_S * 1000:
                    self.fs.rm_file(self._file(name))

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"


def _fault_of_a_trial(
    folder: LocalFolder | ObjectFolder | RenamingFolder, create: Callable[[str, bytes], None], name: str
) -> str | None:
    """Create a file twice, read it back and look for it in the listing, as a log does with its entries.

    Returns:
        Why no log can be kept there, or None.
    """
    is_created = False
    try:
        for _ in range(2):
            create(name, _TRIAL_BYTES)
            is_created = True
    except FileExistsError:
        try:
            kept = folder.read(name)
        except FileNotFoundError:
            # A first create is also refused where its reply was lost and the client repeated it, but then it is there.
            return "it loses a file" if is_created else "it refuses to create a file even where there is none"
        if kept != _TRIAL_BYTES:
            return f"it returns other contents ({len(kept)} bytes) than the {len(_TRIAL_BYTES)} bytes that were written"
        return None if name in folder.names() else "it does not list a file that was just created"
    return "it overwrites a file that it was asked to create only where there is none"


def durable_folder(fs: Any, path: str) -> LocalFolder | ObjectFolder | RenamingFolder:
    """Return the folder at ``path``, as the fsspec file system ``fs`` names it. Makes no request."""
    return LocalFolder(Path(path)) if isinstance(fs, LocalFileSystem) else folder_at_store(fs, path)


def folder_at_store(fs: Any, path: str) -> ObjectFolder | RenamingFolder:
    """Return the folder at ``path`` of a file system that is not a disk. Makes no request."""
    return RenamingFolder(fs, path) if RENAMES_EXCLUSIVELY & {*_protocols(fs)} else ObjectFolder(fs, path)


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _hidden(suffix: str) -> str:
    return f".{uuid.uuid4().hex}{suffix}"


def names_in(fs: Any, folder: str) -> list[str]:
    """Return the names in a folder of an fsspec file system that keeps no listings; none where there is no folder."""
    try:
        with _answers_of_s3():
            paths = fs.ls(folder, detail=False)
    except OSError as error:
        if _is_absent(error):
            return []
        raise
    return [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]


def make_folder(folder: Path) -> None:
    """Make ``folder`` and its missing parents, so that they survive a power cut.

    Raises:
        NotADirectoryError: a file has the name, or a link to what is not there, such as a disk that is not mounted.
        OSError: any other reason.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:  # of put-if-absent it would mean that the file in the folder exists
            reason = "a file, or a link to a folder that is not there"
            raise NotADirectoryError(errno.ENOTDIR, reason, str(folder)) from error
        _sync_name.cache_clear()  # it may remember a folder of this name that is gone
    _sync_name(folder)


@contextlib.contextmanager
def folder_for_a_trial(folder: Path) -> Iterator[None]:
    """Have ``folder`` for the block. Folders that were missing, and are still empty, are removed again."""
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    make_folder(folder)
    try:
        yield
    finally:
        for made in missing:
            with contextlib.suppress(OSError):  # in use by now
                made.rmdir()


def sync_folder(folder: Path) -> None:
    """Make the names that were created, linked or renamed in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@functools.lru_cache(maxsize=256)
def _sync_name(folder: Path) -> None:
    """Make the names of a folder and its parents survive a power cut. Once per process, and also for existing folders:
    their maker may have died before its sync. Above a mount, nothing is on this disk."""
    if folder.is_mount():
        return
    try:
        sync_folder(folder.parent)
    except PermissionError:
        if os.access(folder.parent, os.W_OK):  # else no process like this one has made a folder there
            raise
    _sync_name(folder.parent)


@contextlib.contextmanager
def _permanent_refusals() -> Iterator[None]:
    """Around a step that has no effect where it is refused. Raises ``Unusable`` for a permanent refusal."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise Unusable(error.errno, error.strerror, error.filename) from error


_REASONS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "nothing may be written there"),
    **dict.fromkeys((errno.ENOENT, errno.ENODEV), "there is no such bucket or container, and none is made"),
    errno.ENOSYS: "its server or its client has no exclusive create",
}
"""Why a store fails a trial."""


def _is_absent(error: OSError) -> bool:
    """Whether there is no such file, folder, bucket or container. Only ``twopc.azure`` distinguishes the last one."""
    return isinstance(error, FileNotFoundError) or error.errno == errno.ENODEV


@contextlib.contextmanager
def _answers_of_s3() -> Iterator[None]:
    """Around any request but HEAD. S3 gives its code in the body of a 404; without one, the answer is a gateway's, such
    as while it restarts, and says nothing about what S3 has."""
    try:
        yield
    except FileNotFoundError as error:
        if _s3_code(error) == "404":
            raise OSError(errno.EBUSY, "a 404 that is not of S3, such as a gateway's") from error
        raise


def _s3_code(error: OSError) -> str | None:
    """Return the S3 server's error code, from botocore's error behind that of s3fs."""
    response = getattr(error.__cause__, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None
