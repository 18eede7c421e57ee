"""Errors of stores: which are permanent refusals, and which may pass.

The clients of all stores raise OSErrors with these numbers:

| errno | meaning |
| --- | --- |
| ``ENOENT`` | there is no such file, object, upload or rule |
| ``ENODEV`` | there is no such bucket or container |
| ``EEXIST`` | the object exists: the condition of a conditional write failed |
| ``EACCES`` | credentials or rights are refused, none were found, or the server's certificate is not trusted |
| ``EBUSY``, ``EAGAIN`` | the store, or the source of the credentials, is busy or out: the request may be repeated |
| ``ETIMEDOUT``, ``ECONNABORTED``, ``ECONNRESET`` | no answer: the request may have been carried out |
| ``ENOSYS`` | the server does not have this request |
| ``EIO`` | anything else |

An error whose errno is in none of the sets below is not known to pass, so its request is not repeated.
"""

from __future__ import annotations

import errno
import re


class Unusable(OSError):
    """The folder refuses the operation permanently, or can't put-if-absent. The file was not created."""


class NotSynced(OSError):
    """A name may not survive a power cut, even if the folder can be synced again by now."""


def _numbers(*names: str) -> frozenset[int]:
    return frozenset(getattr(errno, name) for name in names if hasattr(errno, name))


TEMPORARY = _numbers(
    *("EAGAIN", "EBUSY", "EINTR", "EMFILE", "ENFILE", "ENOMEM", "ENOLCK"),
    *("ESTALE", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ENOTCONN"),
    *("ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "EPIPE", "ENOBUFS"),
)
"""The store or its network was busy, or did not answer."""

DISK_AWAY = _numbers("ENOENT", "EIO", "ENXIO", "ENODEV", "EREMOTEIO", "ENOSPC", "EDQUOT")
"""A disk is full, failing or unmounted, where a folder existed a moment ago."""

REFUSING = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.ENOSYS)
)
"""Retries fail in the same way until an operator changes something."""

_BY_STATUS = {
    **dict.fromkeys((401, 403), errno.EACCES),
    404: errno.ENOENT,
    **dict.fromkeys((408, 429), errno.EBUSY),
    501: errno.ENOSYS,  # retries do not help
}


def of_status(status: int) -> int:
    """Return the errno of an HTTP error status: as in the table above, ``EBUSY`` for any other status of 500 and above,
    else ``EIO``.

    Check a store's own error codes and words first. A failed condition (412) depends on the client's request, so it is
    not in the table. A request without an answer has no status; its errno is ``ETIMEDOUT``.
    """
    return _BY_STATUS.get(status, errno.EBUSY if status >= 500 else errno.EIO)


_UNTRUSTED = re.compile(
    r"certificate.?verify.?failed|invalid peer certificate|peer certificate .* was not OK", re.IGNORECASE
)


def is_untrusted(error: BaseException) -> bool:
    """Return whether the client does not trust the server's certificate, which retries do not change. Most clients
    report it as a lost connection, so it is recognized by the words of OpenSSL, rustls or curl."""
    return _UNTRUSTED.search(str(error)) is not None
