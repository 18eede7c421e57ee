"""A real filesystem without hard links: a folder, shown through FUSE by a process of its own.

It speaks the kernel's protocol itself (linux/fuse.h), so it needs root and ``/dev/fuse``, and no library. With
``--rename2`` it also renames only to a free name, as many such filesystems do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from twopc.stores.disk import rename_to_free_name

ROOT_NODE = 1
DIRECT_IO = 1
"""Of an open file: the kernel keeps nothing of it."""
MNT_DETACH = 2
NO_REPLACE = 1
LONGEST_REQUEST = 1 << 20
LONGEST_WRITE = 1 << 17

_HEADER = struct.Struct("<IIQQIIIHH")
_REPLY = struct.Struct("<IiQ")
_SET_SIZE, _SET_MODE, _SET_TIMES = 8, 1, 16 | 32 | 128 | 256

Handler = Callable[["FuseDisk", int, bytes], bytes]


@contextmanager
def mounted(folder: Path, point: Path, *, renames_exclusively: bool) -> Iterator[None]:
    """Show ``folder`` at ``point``. Raises OSError where this process may not mount."""
    command = [sys.executable, "-m", __name__, str(folder), str(point), *(["--rename2"] if renames_exclusively else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        if server.stdout.readline() != "mounted\n":
            raise OSError(server.stderr.read().strip().rpartition("\n")[2])
        try:
            yield
        finally:
            _libc().umount2(os.fsencode(point), MNT_DETACH)
            server.wait(30)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def mount(point: str) -> int:
    """Mount a new FUSE filesystem. Return the descriptor from which its requests come."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},allow_other"
    if _libc().mount(b"twopc", os.fsencode(point), b"fuse.nolinks", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), point)
    return device


class FuseDisk:
    """Answers the kernel's requests, one at a time."""

    def __init__(self, folder: str, renames_exclusively: bool) -> None:
        self.paths = {ROOT_NODE: folder}
        self.renames_exclusively = renames_exclusively
        self._newest_node = ROOT_NODE

    def serve(self, device: int) -> None:
        """Answer until the filesystem is unmounted."""
        while True:
            try:
                request = os.read(device, LONGEST_REQUEST)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno not in (errno.EINTR, errno.ENOENT):  # ENOENT: the request was interrupted
                    raise
                continue
            _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
            if opcode in _WITHOUT_REPLY:
                continue
            try:
                answer, failed = self._answer(opcode, node, request[_HEADER.size :]), 0
            except OSError as error:
                answer, failed = b"", -(error.errno or errno.EIO)
            with contextlib.suppress(FileNotFoundError):  # interrupted meanwhile
                os.write(device, _REPLY.pack(_REPLY.size + len(answer), failed, unique) + answer)

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        handler = HANDLERS.get(opcode)
        if handler is None:
            raise OSError(errno.ENOSYS, "not implemented")
        return handler(self, node, body)

    def below(self, node: int, name: bytes) -> str:
        return os.path.join(self.paths[node], os.fsdecode(name))  # noqa: PTH118  # names are bytes

    def entry(self, path: str) -> bytes:
        """The reply to a look-up: the file's node, which lasts until its name is another file's."""
        status = os.lstat(path)
        node = next((node for node, known in self.paths.items() if known == path), None)
        if node is None:
            node = self._newest_node = self._newest_node + 1
            self.paths[node] = path
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + attributes(status)

    def forget(self, path: str) -> None:
        for node in [node for node, known in self.paths.items() if known == path]:
            self.paths[node] = f"{path} (gone)"

    def rename(self, source: str, target: str, flags: int) -> bytes:
        if flags & NO_REPLACE:
            rename_to_free_name(Path(source), Path(target))
        else:
            os.rename(source, target)  # noqa: PTH104
        self.forget(target)
        for node, known in self.paths.items():
            if known == source or known.startswith(f"{source}/"):
                self.paths[node] = target + known[len(source) :]
        return b""


def attributes(status: os.stat_result) -> bytes:
    times = [int(at) for at in (status.st_atime, status.st_mtime, status.st_ctime)]
    parts = [at % 10**9 for at in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)]
    of_file = (status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0, 4096, 0)
    return struct.pack("<6Q10I", status.st_ino, status.st_size, status.st_blocks, *times, *parts, *of_file)


def names(body: bytes) -> list[bytes]:
    return body.split(b"\0")


def init(disk: FuseDisk, node: int, body: bytes) -> bytes:
    return struct.pack("<IIIIHHIIHHII24x", 7, 31, 0, 0, 1, 1, LONGEST_WRITE, 1, 0, 0, 0, 0)


def get_attributes(disk: FuseDisk, node: int, body: bytes) -> bytes:
    return struct.pack("<QII", 0, 0, 0) + attributes(os.lstat(disk.paths[node]))


def set_attributes(disk: FuseDisk, node: int, body: bytes) -> bytes:
    path = disk.paths[node]
    valid, _, _, size, _, accessed, modified, _, *rest = struct.unpack_from("<II6Q8I", body)
    if valid & _SET_MODE:
        os.chmod(path, stat.S_IMODE(rest[3]))  # noqa: PTH101
    if valid & _SET_SIZE:
        os.truncate(path, size)
    if valid & _SET_TIMES:
        is_now = valid & 256
        os.utime(path, None if is_now else (accessed, modified))
    return get_attributes(disk, node, body)


def make_folder(disk: FuseDisk, node: int, body: bytes) -> bytes:
    path = disk.below(node, names(body[8:])[0])
    os.mkdir(path, struct.unpack_from("<I", body)[0])  # noqa: PTH102
    return disk.entry(path)


def unlink(disk: FuseDisk, node: int, body: bytes) -> bytes:
    path = disk.below(node, names(body)[0])
    os.unlink(path)  # noqa: PTH108
    disk.forget(path)
    return b""


def remove_folder(disk: FuseDisk, node: int, body: bytes) -> bytes:
    path = disk.below(node, names(body)[0])
    os.rmdir(path)  # noqa: PTH106
    disk.forget(path)
    return b""


def rename(disk: FuseDisk, node: int, body: bytes) -> bytes:
    old, new, *_ = names(body[8:])
    return disk.rename(disk.below(node, old), disk.below(struct.unpack_from("<Q", body)[0], new), 0)


def rename2(disk: FuseDisk, node: int, body: bytes) -> bytes:
    if not disk.renames_exclusively:
        raise OSError(errno.ENOSYS, "as of a server that was built without it")
    new_folder, flags = struct.unpack_from("<QI", body)
    old, new, *_ = names(body[16:])
    return disk.rename(disk.below(node, old), disk.below(new_folder, new), flags)


def create(disk: FuseDisk, node: int, body: bytes) -> bytes:
    flags, mode = struct.unpack_from("<II", body)
    path = disk.below(node, names(body[16:])[0])
    opened = os.open(path, flags | os.O_CREAT, mode)
    return disk.entry(path) + struct.pack("<QII", opened, DIRECT_IO, 0)


def open_file(disk: FuseDisk, node: int, body: bytes) -> bytes:
    return struct.pack("<QII", os.open(disk.paths[node], struct.unpack_from("<I", body)[0]), DIRECT_IO, 0)


def open_folder(disk: FuseDisk, node: int, body: bytes) -> bytes:
    return struct.pack("<QII", os.open(disk.paths[node], os.O_RDONLY), 0, 0)


def read(disk: FuseDisk, node: int, body: bytes) -> bytes:
    handle, offset, size = struct.unpack_from("<QQI", body)
    return os.pread(handle, size, offset)


def write(disk: FuseDisk, node: int, body: bytes) -> bytes:
    handle, offset, size = struct.unpack_from("<QQI", body)
    return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)


def list_folder(disk: FuseDisk, node: int, body: bytes) -> bytes:
    _, offset, size = struct.unpack_from("<QQI", body)
    listed = b""
    for number, name in enumerate(sorted(os.listdir(disk.paths[node]))[offset:], offset + 1):  # noqa: PTH208
        encoded = os.fsencode(name)
        entry = struct.pack("<QQII", number, number, len(encoded), 0) + encoded
        entry += b"\0" * (-len(entry) % 8)
        if len(listed) + len(entry) > size:
            break
        listed += entry
    return listed


def sync(disk: FuseDisk, node: int, body: bytes) -> bytes:
    os.fsync(struct.unpack_from("<Q", body)[0])
    return b""


def release(disk: FuseDisk, node: int, body: bytes) -> bytes:
    os.close(struct.unpack_from("<Q", body)[0])
    return b""


def refuse_link(disk: FuseDisk, node: int, body: bytes) -> bytes:
    raise OSError(errno.EPERM, "no hard links")


HANDLERS: dict[int, Handler] = {
    1: lambda disk, node, body: disk.entry(disk.below(node, names(body)[0])),  # look up
    3: get_attributes,
    4: set_attributes,
    9: make_folder,
    10: unlink,
    11: remove_folder,
    12: rename,
    13: refuse_link,
    14: open_file,
    15: read,
    16: write,
    17: lambda *_: struct.pack("<5Q4I24x", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, 0),
    18: release,
    20: sync,
    25: lambda *_: b"",  # flush
    26: init,
    27: open_folder,
    28: list_folder,
    29: release,
    30: sync,
    35: create,
    45: rename2,
}
"""FUSE's operations, by number. The kernel takes ENOSYS for the others as it should."""

_WITHOUT_REPLY = (2, 36, 42)  # forget, interrupt, batch forget


def main(folder: str, point: str, *options: str) -> None:
    device = mount(point)
    print("mounted", flush=True)  # noqa: T201  # for the process that waits
    FuseDisk(folder, "--rename2" in options).serve(device)


if __name__ == "__main__":
    main(*sys.argv[1:])
