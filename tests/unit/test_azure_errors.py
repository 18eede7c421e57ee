"""Errors of Azure's client, as OSErrors."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
from azure.core import exceptions as azure

from twopc.azure_errors import as_os_error, azure_as_os_errors


def replied(status: int, code: str | None = None) -> azure.HttpResponseError:
    error = azure.HttpResponseError("what happened\nRequestId:1\nContent: <xml>")
    error.status_code = status
    error.response = SimpleNamespace(headers={"x-ms-error-code": code} if code else {})
    return error


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (replied(404, "BlobNotFound"), errno.ENOENT),
        (replied(404), errno.ENOENT),
        (replied(404, "ContainerNotFound"), errno.ENODEV),
        (replied(409, "ContainerBeingDeleted"), errno.ENODEV),
        (replied(409, "BlobAlreadyExists"), errno.EEXIST),
        (replied(412, "ConditionNotMet"), errno.EEXIST),
        (replied(412, "LeaseIdMissing"), errno.EIO),
        (replied(403, "AuthenticationFailed"), errno.EACCES),
        (replied(401), errno.EACCES),
        (replied(409, "PublicAccessNotPermitted"), errno.EACCES),
        (replied(503, "ServerBusy"), errno.EBUSY),
        (replied(429), errno.EBUSY),
        (replied(400, "InvalidInput"), errno.EIO),
        (azure.ServiceRequestError("no connection"), errno.ETIMEDOUT),
        (azure.ServiceResponseError("broken off"), errno.ETIMEDOUT),
        (azure.ClientAuthenticationError("no credential in the environment"), errno.EACCES),
    ],
    ids=lambda value: value if isinstance(value, int) else repr(value)[:60],
)
def test_the_number_says_what_the_error_means(error: Exception, number: int) -> None:
    translated = as_os_error(error)
    assert translated is not None
    assert translated.errno == number


def test_the_text_is_the_code_and_the_first_line() -> None:
    translated = as_os_error(replied(403, "AuthenticationFailed"))
    assert translated is not None
    assert translated.strerror == "AuthenticationFailed: what happened"


def test_an_error_of_adlfs_about_an_error_of_azure_has_the_meaning_of_the_latter() -> None:
    error = FileNotFoundError("nothing there")
    error.__cause__ = replied(404, "ContainerNotFound")
    with pytest.raises(OSError, match="ContainerNotFound") as raised, azure_as_os_errors():
        raise error
    assert raised.value.errno == errno.ENODEV


@pytest.mark.parametrize("error", [ValueError("?"), FileExistsError("here"), OSError(errno.EIO, "disk")])
def test_any_other_error_passes_as_it_is(error: Exception) -> None:
    assert as_os_error(error) is None
    with pytest.raises(type(error)) as raised, azure_as_os_errors():
        raise error
    assert raised.value is error
