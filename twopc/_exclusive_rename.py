"""Rename a file only to a name that is free, in one step: renameat2(2) of Linux, which Python does not offer."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_CURRENT_FOLDER = -100  # AT_FDCWD: paths that are not absolute count from it
_NO_REPLACE = 1  # RENAME_NOREPLACE

_NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""The reply of a file system, a kernel or a sandbox that lacks the flag or the call: renameat2(2)."""


def rename_to_free_name(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target`` if that name is free.

    Raises:
        FileExistsError: it is not, and nothing was changed.
        OSError: with ENOTSUP if this system or the file system can't, and nothing was changed; else another reason.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # glibc has it from 2.28 on
    if renameat2 is None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), str(target))
    from_here, to_here = (_CURRENT_FOLDER, os.fsencode(source)), (_CURRENT_FOLDER, os.fsencode(target))
    if renameat2(*from_here, *to_here, _NO_REPLACE) != 0:
        number = ctypes.get_errno()
        number = errno.ENOTSUP if number in _NOT_SUPPORTED else number
        raise OSError(number, os.strerror(number), str(target))
