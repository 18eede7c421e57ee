"""What an error of a store means: a refusal until somebody changes something, or busy for now.

An errno that is in neither table is not known to pass: its request is not repeated as if it were.
"""

from __future__ import annotations

import errno
from typing import Any


def _numbers(*names: str) -> frozenset[int]:
    return frozenset(getattr(errno, name) for name in names if hasattr(errno, name))


TEMPORARY = _numbers(
    *("EAGAIN", "EBUSY", "EINTR", "EMFILE", "ENFILE", "ENOMEM", "ENOLCK"),
    *("ESTALE", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ENOTCONN"),
    *("ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "EPIPE", "ENOBUFS"),
)
"""The store or its network was busy, or did not answer."""

DISK_AWAY = _numbers("ENOENT", "EIO", "ENXIO", "ENODEV", "EREMOTEIO", "ENOSPC", "EDQUOT")
"""A disk is full, fails, or is not mounted for now, where a folder was a moment ago."""

REFUSING = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.ENOSYS)
)
"""Every repeat fails in the same way until an operator changes something."""

FRAMED = (
    "If the server of S3 keeps the framing of checksums as contents, give the client the option"
    " config_kwargs={'request_checksum_calculation': 'when_required'}"
)
"""What to do about a server that returns other contents than were written."""

_BY_KIND = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (PermissionError, errno.EACCES),
    ((TimeoutError, ConnectionError), errno.ETIMEDOUT),
)


def meaning(fs: Any, error: Exception) -> OSError:
    """Translate an error of the fsspec file system ``fs`` to one whose errno is that of the tables."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    if "s3" in protocols:
        from twopc.s3 import translated  # needs the package botocore

        return translated(error)
    if isinstance(error, OSError) and error.errno is not None:
        return error
    number = next((number for kinds, number in _BY_KIND if isinstance(error, kinds)), errno.EIO)
    if "memory" in protocols and not isinstance(error, OSError):
        number = errno.EAGAIN  # it can't list a folder while another thread deletes in it
    return OSError(number, f"{type(error).__name__}: {error}")
