"""What errors of clients mean, for stores whose clients have no table of their own."""

import errno

import pytest
import requests

from twopc.stores.remote import by_kind

UNTRUSTED = "certificate verify failed: self-signed certificate"


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.EROFS, "read-only"), errno.EROFS),
        (PermissionError("no"), errno.EACCES),
        (FileNotFoundError("gone"), errno.ENOENT),
        (ConnectionResetError("cut"), errno.ETIMEDOUT),
        (TimeoutError("late"), errno.ETIMEDOUT),
        (requests.ConnectionError("away"), errno.ETIMEDOUT),
        (requests.ReadTimeout("late"), errno.ETIMEDOUT),
        (requests.exceptions.SSLError(UNTRUSTED), errno.EACCES),
        (OSError("a failed request"), errno.EAGAIN),
        (IsADirectoryError("a folder"), errno.EIO),
        (requests.exceptions.InvalidURL("no host"), errno.EIO),
        (RuntimeError("a defect"), errno.EIO),
    ],
)
def test_an_error_is_temporary_only_if_its_class_is_known_to_be(error: Exception, number: int) -> None:
    assert by_kind(error).errno == number
