"""A disk that loses unsynced data in a power cut. It replaces ``pathlib`` and ``os`` in the real code.

Names and contents are synced separately, as in POSIX: a file's content by fsync of the file, its name by fsync of the
folder. Until then a power cut may undo the change. Living processes see every change at once.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.campaigns.simulation.world import Actor, Fault, Op, World

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


def _no_answer() -> Exception:
    return OSError(errno.ETIMEDOUT, "no answer")


_CUTS = (Fault.POWER_CUT, Fault.POWER_CUT_KEEPS_NAMES)
CHANGE = Op("disk: change a name", _no_answer, *_CUTS, changes=True)
WRITE = Op("disk: write", _no_answer, Fault.POWER_CUT, changes=True)
SYNC = Op("disk: sync", _no_answer, *_CUTS, changes=True)
LOOK = Op("disk: read", _no_answer, changes=False)


class Inode:
    """A file: the content that processes see, and the content that would survive a power cut."""

    __slots__ = ("content", "made_at", "made_at_ms", "made_by", "number", "synced")

    def __init__(self, number: int, made_by: Actor | None = None, made_at: int = 0, made_at_ms: float = 0) -> None:
        self.number = number
        self.made_by, self.made_at, self.made_at_ms = made_by, made_at, made_at_ms
        self.content = b""
        self.synced = b""


class Folder:
    """A folder: the names that processes see, and the names that would survive a power cut."""

    __slots__ = ("entries", "number", "synced")

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[str, Inode | Folder] = {}
        self.synced: dict[str, Inode | Folder] = {}


Entry: TypeAlias = "Inode | Folder"


@dataclass(frozen=True, slots=True)
class Status:
    """The result of ``lstat``. The modification time is that of creation, as writing takes no time."""

    st_ino: int
    st_size: int
    st_mode: int
    st_mtime: float = 0.0
    st_dev: int = 1


REGULAR, FOLDER = 0o100644, 0o040755


class Disk:
    """The tree below ``/``. It reports each rename to ``renamed``, and each sync of a folder to ``folder_synced``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.root = Folder(0)
        self._numbers = 0
        self._open: dict[int, Entry] = {}
        self._renamed: list[tuple[Folder, str, Folder, str]] = []
        self.renamed: Callable[[tuple[str, ...], tuple[str, ...]], None] = lambda _source, _target: None
        self.folder_synced: Callable[[Folder], None] = lambda _folder: None

    def path(self, *names: str) -> Path:
        return Path(self, names)

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def find(self, names: tuple[str, ...]) -> Entry | None:
        here: Any = self.root
        try:
            for name in names:
                here = here.entries[name]
        except (KeyError, AttributeError):  # an inode has no entries
            return None
        found: Entry = here
        return found

    def folder(self, names: tuple[str, ...]) -> Folder:
        found = self.find(names)
        if not isinstance(found, Folder):
            raise FileNotFoundError(errno.ENOENT, "no such folder", "/".join(names))
        return found

    def file(self, names: tuple[str, ...]) -> Inode:
        found = self.find(names)
        if not isinstance(found, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", "/".join(names))
        return found

    def power_cut(self, keeps_names: bool) -> None:
        """Lose everything unsynced; with ``keeps_names``, lose only contents."""
        self._restore(self.root, keeps_names)
        self._renamed.clear()

    def _restore(self, folder: Folder, keeps_names: bool) -> None:
        if keeps_names:
            folder.synced = dict(folder.entries)
        else:
            folder.entries = dict(folder.synced)
        for entry in folder.entries.values():
            if isinstance(entry, Folder):
                self._restore(entry, keeps_names)
            else:
                entry.content = entry.synced

    # Effects, one per step. -------------------------------------------------------------------------------------------

    def make_folder(self, names: tuple[str, ...]) -> None:
        self.folder(names[:-1]).entries.setdefault(names[-1], Folder(self.number()))

    def create(self, names: tuple[str, ...]) -> Inode:
        entries = self.folder(names[:-1]).entries
        if names[-1] in entries:
            raise FileExistsError(errno.EEXIST, "exists", names[-1])
        entries[names[-1]] = inode = Inode(self.number(), self.world.current, self.world.steps, self.world.now_ms)
        return inode

    def link(self, source: tuple[str, ...], target: tuple[str, ...]) -> None:
        entries, inode = self.folder(target[:-1]).entries, self.file(source)
        if target[-1] in entries:
            raise FileExistsError(errno.EEXIST, "exists", target[-1])
        entries[target[-1]] = inode

    def rename(self, source: tuple[str, ...], target: tuple[str, ...]) -> None:
        inode, left, entered = self.file(source), self.folder(source[:-1]), self.folder(target[:-1])
        del left.entries[source[-1]]
        entered.entries[target[-1]] = inode
        self._renamed.append((left, source[-1], entered, target[-1]))
        self.renamed(source, target)

    def unlink(self, names: tuple[str, ...]) -> None:
        entries = self.folder(names[:-1]).entries
        if names[-1] not in entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", names[-1])
        del entries[names[-1]]

    def sync(self, entry: Entry) -> None:
        if isinstance(entry, Folder):
            self._sync_renames(entry)
            entry.synced = dict(entry.entries)
            self.folder_synced(entry)
        else:
            entry.synced = entry.content

    def _sync_renames(self, folder: Folder) -> None:
        """Sync renames as a whole: a rename is one entry of the file system's journal, for both of its folders."""
        for renamed in [renamed for renamed in self._renamed if folder in (renamed[0], renamed[2])]:
            left, old, entered, new = renamed
            self._renamed.remove(renamed)
            left.synced.pop(old, None)
            if new in entered.entries:
                entered.synced[new] = entered.entries[new]

    # Descriptors. ---------------------------------------------------------------------------------------------------

    def opened(self, entry: Entry) -> int:
        descriptor = self.number()
        self._open[descriptor] = entry
        return descriptor

    def behind(self, descriptor: int) -> Entry:
        return self._open[descriptor]

    def closed(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)


class File:
    """An open file. Writes go to the page cache and are visible at once."""

    def __init__(self, disk: Disk, inode: Inode) -> None:
        self._disk, self._inode = disk, inode
        self._descriptor = disk.opened(inode)

    def write(self, data: bytes) -> None:
        self._disk.world.step(WRITE, self._write, data)

    def _write(self, data: bytes) -> None:
        self._inode.content += data

    def tell(self) -> int:
        return len(self._inode.content)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        self._disk.closed(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Path:
    """The part of ``pathlib.Path`` that the real code uses."""

    __slots__ = ("_disk", "names")

    def __init__(self, disk: Disk, names: tuple[str, ...]) -> None:
        self._disk, self.names = disk, names

    def __truediv__(self, name: str) -> Path:
        return Path(self._disk, (*self.names, name))

    def __eq__(self, other: object) -> bool:
        """Compare disk and names. A synced name stays synced, so all processes of a disk may cache it."""
        return isinstance(other, Path) and (other._disk, other.names) == (self._disk, self.names)

    def __hash__(self) -> int:
        return hash((id(self._disk), self.names))

    def __str__(self) -> str:
        return "/" + "/".join(self.names)

    def __repr__(self) -> str:
        return str(self)

    @property
    def name(self) -> str:
        return self.names[-1]

    @property
    def parent(self) -> Path:
        return Path(self._disk, self.names[:-1])

    def is_dir(self) -> bool:
        return isinstance(self._disk.find(self.names), Folder)

    def is_mount(self) -> bool:
        """Return whether the folder exists from the start: a files sink's at depth two, the log's at depth one."""
        return len(self.names) <= (2 if self.names[:1] == ("data",) else 1)

    def mkdir(self, exist_ok: bool = False) -> None:
        assert exist_ok
        self._disk.world.step(CHANGE, self._disk.make_folder, self.names)

    def iterdir(self) -> Iterator[Path]:
        return iter([self / name for name in self._disk.world.step(LOOK, self._list)])

    def _list(self) -> list[str]:
        return list(self._disk.folder(self.names).entries)

    def read_bytes(self) -> bytes:
        return self._disk.world.step(LOOK, lambda: self._disk.file(self.names).content)

    def open(self, mode: str) -> Any:
        if mode == "rb":
            return io.BytesIO(self.read_bytes())
        assert mode == "xb"
        return File(self._disk, self._disk.world.step(CHANGE, self._disk.create, self.names))

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._disk.world.step(CHANGE, self._disk.unlink, self.names)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: Path) -> None:
        self._disk.world.step(CHANGE, self._disk.rename, self.names, target.names)

    replace = rename

    def lstat(self) -> Status:
        return self._disk.world.step(LOOK, self._status)

    def stat(self) -> Status:
        return self._status()

    def _status(self) -> Status:
        found = self._disk.find(self.names)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(self))
        if isinstance(found, Folder):
            return Status(found.number, 0, FOLDER)
        return Status(found.number, len(found.content), REGULAR, found.made_at_ms / 1000)


class Listing:
    """The result of ``os.scandir``."""

    def __init__(self, folder: Path) -> None:
        self._names = [path.name for path in folder.iterdir() if not (folder / path.name).is_dir()]

    def __enter__(self) -> Iterator[SimpleNamespace]:
        return iter([SimpleNamespace(name=name, is_file=lambda follow_symlinks: True) for name in self._names])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class OperatingSystem:
    """The part of ``os`` that the real code uses, on the disk of the current world."""

    O_RDONLY = 0
    W_OK, X_OK = 2, 1
    supports_effective_ids: frozenset[object] = frozenset()

    def __init__(self) -> None:
        self.disk: Disk
        self.path = SimpleNamespace(samestat=lambda one, other: one.st_ino == other.st_ino)

    def link(self, source: Path, target: Path) -> None:
        self.disk.world.step(CHANGE, self.disk.link, source.names, target.names)

    def open(self, path: Path, flags: int) -> int:
        assert flags == self.O_RDONLY
        return self.disk.opened(self.disk.folder(path.names))

    def close(self, descriptor: int) -> None:
        self.disk.closed(descriptor)

    def fsync(self, descriptor: int) -> None:
        self.disk.world.step(SYNC, self.disk.sync, self.disk.behind(descriptor))

    def fstat(self, descriptor: int) -> Status:
        entry = self.disk.behind(descriptor)
        return Status(entry.number, len(entry.content) if isinstance(entry, Inode) else 0, REGULAR)

    def access(self, path: Path, mode: int, effective_ids: bool = False) -> bool:
        return path.is_dir() and mode > 0 and not effective_ids

    def scandir(self, path: Path) -> Listing:
        return Listing(path)
