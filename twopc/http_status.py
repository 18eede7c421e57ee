"""What the status of an HTTP answer means, as an errno: one table for the clients of all stores."""

from __future__ import annotations

import errno

_BY_STATUS = {
    401: errno.EACCES,
    403: errno.EACCES,
    404: errno.ENOENT,
    408: errno.EBUSY,
    429: errno.EBUSY,
    501: errno.ENOSYS,  # no repeat of the request will help
}


def of_status(status: int) -> int:
    """Return the errno of an answer that is not a success.

    A store's own error codes and words come first. A failed condition (412) means what the client asked for, so it is
    not in this table. No answer has no status: it is ``ETIMEDOUT``.

    | status | errno |
    | --- | --- |
    | 401, 403 | ``EACCES`` |
    | 404 | ``ENOENT`` |
    | 501 | ``ENOSYS`` |
    | 408, 429, any other of 500 and above | ``EBUSY`` |
    | any other | ``EIO`` |
    """
    return _BY_STATUS.get(status, errno.EBUSY if status >= 500 else errno.EIO)
