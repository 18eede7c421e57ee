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
"""The suffix of the file that was full before. Only one is kept."""

_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC

_CHUNK = 1 << 20

LONGEST_LINE = 4 << 20
"""The length of the longest line that is written or read, in bytes. A reader holds a line in memory."""


def older(path: Path) -> Path:
    """Return the path that the file at ``path`` is moved to when it is full."""
    return path.with_name(path.name + OLDER)


def append(path: Path, line: bytes, max_bytes: int) -> None:
    """Append a line by a single write. If the file has reached ``max_bytes``, move it aside first. Never waits for
    another process. Raises OSError: the line was not written, or only its beginning, which readers skip."""
    if len(line) > LONGEST_LINE:
        raise OSError(errno.EFBIG, f"an event of {len(line)} bytes is too long for a line")
    descriptor = _open_to_append(path)
    try:
        if os.fstat(descriptor).st_size >= max_bytes and _move_aside(path, descriptor):
            full, descriptor = descriptor, _open_to_append(path)
            os.close(full)
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) not in (b"\n", b"")  # such as after a full disk
        text = b"\n" + line if is_torn else line
        if os.write(descriptor, text) < len(text):
            raise OSError(errno.ENOSPC, "only the beginning of a line was written")
    finally:
        os.close(descriptor)


def _open_to_append(path: Path) -> int:
    """Open the file to append, but not through a symbolic link, which anyone may have put into a shared folder."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | _FLAGS, 0o640)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def _move_aside(path: Path, descriptor: int) -> bool:
    """Move the open file aside, unless another process is doing or has done so. Return whether the path should be
    opened again."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(path.stat(), os.fstat(descriptor)):
            path.replace(older(path))
    except FileNotFoundError:
        return True
    except OSError:  # another process has the lock; or locks or moves fail, and the file grows beyond its size
        return False
    return True


class OpenFile:
    """A file that is read line by line while it grows. ``offset`` is the end of the last line that was read, in
    bytes."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError: the file can't be opened, or is not a regular file."""
        self._descriptor = os.open(path, os.O_RDONLY | _FLAGS)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self.status = os.fstat(self._descriptor)
        if not stat.S_ISREG(self.status.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a regular file")
        self.offset = 0
        self._skips = False  # whether to skip the rest of a line that is too long

    def lines(self, end: int = sys.maxsize) -> Iterator[bytes]:
        """Yield new lines that are complete at byte ``end``. If the file has shrunk, read it from the beginning."""
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
        """Close the file. Garbage collection closes it too."""
        self._close()
