"""Errors of Azure's client, as OSErrors."""

import errno
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core import exceptions as azure
from azure.identity import CredentialUnavailableError
from azure.storage.blob._shared.authentication import AzureSigningError

from twopc.stores.azure import AzureClient, translate


def replied(
    status: int, code: str | None = None, kind: type[azure.HttpResponseError] = azure.HttpResponseError
) -> azure.HttpResponseError:
    error = kind("what happened\nRequestId:1\nContent: <xml>")
    error.status_code = status
    error.response = SimpleNamespace(headers={"x-ms-error-code": code} if code else {})
    return error


def client(**options: Any) -> AzureClient:
    return AzureClient(connection_string="AccountName=a;AccountKey=a2V5", skip_instance_cache=True, **options)


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (replied(404, "BlobNotFound"), errno.ENOENT),
        (replied(404), errno.EBUSY),
        (replied(404, "ContainerNotFound"), errno.ENODEV),
        (replied(409, "ContainerBeingDeleted"), errno.ENODEV),
        (replied(409, "BlobAlreadyExists"), errno.EEXIST),
        (replied(412, "ConditionNotMet"), errno.EEXIST),
        (replied(412, "LeaseIdMissing"), errno.EIO),
        (replied(403, "AuthenticationFailed"), errno.EACCES),
        (replied(401), errno.EACCES),
        (replied(400, kind=azure.ClientAuthenticationError), errno.EACCES),
        (replied(409, "PublicAccessNotPermitted"), errno.EACCES),
        (replied(503, "ServerBusy"), errno.EBUSY),
        (replied(429), errno.EBUSY),
        (replied(501, "NotImplemented"), errno.ENOSYS),
        (replied(400, "InvalidInput"), errno.EIO),
        (azure.ServiceRequestError("no connection"), errno.ECONNABORTED),
        (azure.ServiceResponseError("broken off"), errno.ECONNABORTED),
        (azure.ClientAuthenticationError("no credential in the environment"), errno.EACCES),
        (CredentialUnavailableError("no metadata service"), errno.EACCES),
        (AzureSigningError("Incorrect padding"), errno.EACCES),
        (KeyError("?"), errno.EIO),
    ],
    ids=lambda value: value if isinstance(value, int) else repr(value)[:60],
)
def test_the_number_says_what_the_error_means(error: Exception, number: int) -> None:
    assert translate(error).errno == number


def test_no_error_is_one_that_fsspec_replaces() -> None:
    assert not isinstance(translate(TimeoutError()), TimeoutError)


def test_the_text_is_the_code_and_the_first_line() -> None:
    assert translate(replied(403, "AuthenticationFailed")).strerror == "AuthenticationFailed: what happened"


@pytest.mark.parametrize("answer", [None, replied(404, "BlobNotFound"), replied(503)], ids=["good", "absent", "busy"])
def test_a_source_of_credentials_that_is_out_later_may_be_asked_again(answer: Exception | None) -> None:
    asked = client()
    with pytest.raises(PermissionError), asked._translating():
        raise CredentialUnavailableError("no metadata service")
    try:
        with asked._translating():
            if answer is not None:
                raise answer
    except OSError:
        pass
    with pytest.raises(OSError, match="metadata service") as raised, asked._translating():
        raise CredentialUnavailableError("no metadata service")
    assert raised.value.errno == errno.EBUSY


def test_refused_credentials_are_no_answer() -> None:
    asked = client()
    for error in (replied(403, "AuthenticationFailed", azure.ClientAuthenticationError), AzureSigningError("padding")):
        with pytest.raises(PermissionError), asked._translating():
            raise error


def test_a_printed_traceback_does_not_have_the_reply() -> None:
    error = replied(403, "AuthenticationFailed")
    error.args = ("what happened\nAuthenticationErrorDetail: the signature c2lnbmF0dXJl",)
    with pytest.raises(OSError, match="what happened") as raised, client()._translating():
        raise error
    assert "c2lnbmF0dXJl" not in "".join(traceback.format_exception(raised.value))


def test_an_oserror_passes_as_it_is() -> None:
    error = OSError(errno.ENOSPC, "disk")
    with pytest.raises(OSError, match="disk") as raised, client()._translating():
        raise error
    assert raised.value is error
