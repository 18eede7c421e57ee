"""Errors of Azure's client as OSErrors. It raises none by itself, and neither does adlfs for most of them.

They are known by their attributes, because the core does not import the client.

| errno | meaning |
| --- | --- |
| ``ENOENT`` | there is no such blob, or its uncommitted blocks are gone |
| ``ENODEV`` | there is no such container |
| ``EEXIST`` | the blob exists: the condition of a conditional write failed |
| ``EACCES`` | the credentials or their rights are refused, or none were found |
| ``EBUSY`` | the store throttles or fails: the request may be repeated |
| ``ETIMEDOUT`` | no answer: the request may have been carried out |
| ``EIO`` | anything else |
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Any

_NUMBERS = {
    **dict.fromkeys(("ContainerNotFound", "ContainerBeingDeleted"), errno.ENODEV),
    **dict.fromkeys(("BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"), errno.EEXIST),
    **dict.fromkeys(("PublicAccessNotPermitted", "AccountIsDisabled"), errno.EACCES),
    "InvalidBlockList": errno.ENOENT,
}
"""Codes with one meaning, whatever the status."""


def as_os_error(error: Exception) -> OSError | None:
    """Translate an error of Azure's client, or of adlfs about one. Return None for any other error."""
    of_azure = next((each for each in (error, error.__cause__, error.__context__) if _is_of_azure(each)), None)
    if of_azure is None:
        return None
    code = _code(of_azure)
    text = str(of_azure).partition("\n")[0].strip()  # the lines below it repeat the reply
    return OSError(_meaning(of_azure, code), f"{code or type(of_azure).__name__}: {text}")


@contextlib.contextmanager
def azure_as_os_errors() -> Iterator[None]:
    """Around calls of a client that may be Azure's. Other errors pass as they are."""
    try:
        yield
    except Exception as error:
        if (translated := as_os_error(error)) is None:
            raise
        raise translated from error


def _is_of_azure(error: BaseException | None) -> bool:
    return any(base.__module__ == "azure.core.exceptions" for base in type(error).__mro__)


def _code(error: Any) -> str | None:
    """Return the error code of the reply. A reply to HEAD has it in its headers alone."""
    response = getattr(error, "response", None)
    code: str | None = None if response is None else response.headers.get("x-ms-error-code")
    return code


def _meaning(error: Any, code: str | None) -> int:
    if code in _NUMBERS:
        return _NUMBERS[code]
    status = getattr(error, "status_code", None)
    if status is None:  # nothing was sent, or no reply came
        return errno.EACCES if type(error).__name__ in _NO_CREDENTIALS else errno.ETIMEDOUT
    if status in (408, 429) or status >= 500:
        return errno.EBUSY
    return {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}.get(status, errno.EIO)


_NO_CREDENTIALS = ("ClientAuthenticationError", "CredentialUnavailableError")
"""Of azure-identity, which found no credentials, or whose token was refused. No request was sent to the store."""
