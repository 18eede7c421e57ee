"""Translates S3's errors to OSErrors as listed in ``errors``, which are reliable enough for a commit."""

from __future__ import annotations

import asyncio
import errno

from botocore import exceptions as boto

from twopc.stores.errors import is_untrusted, of_status

_NUMBERS = {
    **dict.fromkeys(("NoSuchUpload", "NoSuchKey", "NoSuchLifecycleConfiguration"), errno.ENOENT),
    "NoSuchBucket": errno.ENODEV,
    "KeyTooLongError": errno.ENAMETOOLONG,
}
"""Error codes that have the same meaning with any status."""

_DENIED = frozenset(("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"))
"""Codes of refused credentials that S3 may return with a status other than 401 and 403."""

_CONFLICTS = ("OperationAborted", "ConditionalRequestConflict")
"""Concurrent requests for one name. Neither has failed permanently."""

_BUSY = frozenset(("InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout", *_CONFLICTS))
"""Codes of a busy server. S3 returns some of them with 200, 400 or 409."""

_NO_ANSWER = (
    boto.CredentialRetrievalError,  # from the credentials endpoint: the request was not sent
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    ConnectionError,
    TimeoutError,
    asyncio.TimeoutError,
)

_NO_ANSWER_OF_AIOHTTP = ("ClientConnectionError", "ClientPayloadError")
"""Errors of aiohttp, the client under s3fs, that stand for a missing answer. Subclasses count, too. Listed by name,
because boto3 works without aiohttp."""

_NO_CREDENTIALS = (boto.NoCredentialsError, boto.PartialCredentialsError, boto.ProfileNotFound)


def translate(error: Exception) -> OSError:
    """Translate an error of S3 or its client to an OSError as listed in ``errors``."""
    cause = error.__cause__ if isinstance(error.__cause__, boto.ClientError) else error  # s3fs chains the original
    text = f"{type(cause).__name__}: {cause}"
    if isinstance(cause, boto.ClientError):
        code, status = cause.response["Error"].get("Code", ""), cause.response["ResponseMetadata"]["HTTPStatusCode"]
        if code == "404" and cause.operation_name.startswith("Head"):  # an answer to HEAD has no body with a code
            return OSError(errno.ENOENT, text)
        return OSError(_meaning(code, status), text)
    if isinstance(cause, OSError) and cause.errno is not None:
        return cause
    if is_untrusted(cause):
        return OSError(errno.EACCES, text)
    if isinstance(cause, _NO_ANSWER) or any(each.__name__ in _NO_ANSWER_OF_AIOHTTP for each in type(cause).__mro__):
        return OSError(errno.ETIMEDOUT, text)
    return OSError(errno.EACCES if isinstance(cause, _NO_CREDENTIALS) else errno.EIO, text)


def _meaning(code: str, status: int) -> int:
    if code in _NUMBERS:
        return _NUMBERS[code]
    if code in _BUSY:
        return errno.EBUSY
    if code in _DENIED:
        return errno.EACCES
    return errno.EBUSY if status == 404 else of_status(status)  # a gateway's, while no server is behind it
