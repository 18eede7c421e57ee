"""A local file to which several processes append whole lines, bounded in size."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

OLDER = ".1"
"""The suffix of the last file that was full. One such file is kept."""

_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC

_CHUNK = 1 << 20

LONGEST_LINE = 4 << 20
"""In bytes. Longer lines are neither written nor read: a reader holds one in memory."""


def older(path: Path) -> Path:
    """Return the path to which the file at ``path`` is moved when it is full."""
    return path.with_name(path.name + OLDER)


def append(path: Path, line: bytes, max_bytes: int) -> None:
    """Append a line by one write, which is done when this returns. A file of ``max_bytes`` is first moved aside. Waits
    for no other process. Raises OSError: the line was not written, or only its beginning, which readers skip."""
    if len(line) > LONGEST_LINE:
        raise OSError(errno.EFBIG, f"an event of {len(line)} bytes is too long for a line")
    descriptor = _open_to_append(path)
    try:
        if os.fstat(descriptor).st_size >= max_bytes and _move_aside(path, descriptor):
            full, descriptor = descriptor, _open_to_append(path)
            os.close(full)
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) not in (b"\n", b"")  # such as by a full disk
        text = b"\n" + line if is_torn else line
        if os.write(descriptor, text) < len(text):
            raise OSError(errno.ENOSPC, "only the beginning of a line was written")
    finally:
        os.close(descriptor)


def _open_to_append(path: Path) -> int:
    """Open the file to append, but not through a link, which anybody may have left in a shared folder."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | _FLAGS, 0o640)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def _move_aside(path: Path, descriptor: int) -> bool:
    """Move the open file aside, unless another process does so or has done so: then that file is not full."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(path.stat(), os.fstat(descriptor)):
            path.replace(older(path))
    except FileNotFoundError:
        return True
    except OSError:  # another process has the lock; or there are no locks, or the file can't be moved, and it grows
        return False
    return True


class OpenFile:
    """A file that is read line by line, and again when it has grown. It was read up to ``offset``, in bytes: the end of
    a line."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError, also if it is not a regular file."""
        self._descriptor = os.open(path, os.O_RDONLY | _FLAGS)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self.status = os.fstat(self._descriptor)
        if not stat.S_ISREG(self.status.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a regular file")
        self.offset = 0
        self._skips = False  # the rest of a line that is too long

    def lines(self, end: int = sys.maxsize) -> Iterator[bytes]:
        """Yield the lines that are complete at ``end``, in bytes, and were not read before. A file that has shrunk is
        read anew."""
        if os.fstat(self._descriptor).st_size < self.offset:
            self.offset, self._skips = 0, False
        rest, at = b"", self.offset
        while at < end and (chunk := os.pread(self._descriptor, min(_CHUNK, end - at), at)):
            at += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self.offset += len(line) + 1
                if not self._skips:
                    yield line
                self._skips = False
            if len(rest) > LONGEST_LINE:
                self.offset += len(rest)
                rest, self._skips = b"", True

    def close(self) -> None:
        """Close the file. A file that nobody holds any more is closed too."""
        self._close()
