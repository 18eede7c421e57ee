"""Google Cloud Storage by gcsfs, with errors that a commit can rest on.

gcsfs raises errors of a dozen kinds: a refused right is an OSError without a number, a busy server is an ``HttpError``
or an error of another library. Here each is an OSError, as ``errors`` lists them; a bucket that is not there is
``ENOENT``, too. Before ``EBUSY`` and ``ETIMEDOUT``, gcsfs has sent the request six times, with half a minute of waits
between them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import requests
from aiohttp import ClientError, ClientTimeout
from fsspec import asyn
from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]
from gcsfs.retry import HttpError  # type: ignore[import-untyped]
from google.auth.exceptions import GoogleAuthError, TransportError

from twopc.stores.errors import is_untrusted, of_status

TIMEOUTS = ClientTimeout(sock_connect=10, sock_read=60)
"""The time to wait for a connection, and for the next bytes of an answer. By default, gcsfs waits for ever."""

_SESSION = re.compile(r"upload_id=[^&\s]+")  # In the URL of a resumable upload: whoever knows it can write the object.

_BY_KIND = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (requests.exceptions.ProxyError, errno.EBUSY),  # how gcsfs raises the status 502
    ((requests.RequestException, ClientError, TimeoutError, asyncio.TimeoutError, ConnectionError), errno.ETIMEDOUT),
)

# The object or the bucket is being changed; the token of a rewrite or the session of an upload has ended.
_OF_GCS = {409: errno.EBUSY, 410: errno.EBUSY}


class GcsClient(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
    """gcsfs's client, with its options, for buckets other than zonal ones. Every method may raise an OSError.

    The base class is not the one that fsspec opens for ``gs://``. That one asks Google for the kind of each bucket by
    gRPC, whatever the endpoint. In a zonal bucket, it ignores ``mode="create"`` and shows an object before it is whole.
    The base class sends requests of the JSON API and no others.

    Without the option ``token``, the client takes Application Default Credentials or none at all. gcsfs would send
    anonymous requests for the rest of the process if the metadata server was not ready when the client was made.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        has_endpoint = options.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST")
        if options.get("token") is None and not has_endpoint:
            options["token"] = "google_default"  # noqa: S105  # a method
        if options.get("requests_timeout") is None:
            options["requests_timeout"] = TIMEOUTS
        super().__init__(*arguments, **options)

    async def _call(self, *arguments: Any, **keywords: Any) -> Any:
        try:
            return await super()._call(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001  # see above
            raise translate(error) from None  # the original may show a session

    call = asyn.sync_wrapper(_call)


def gcs_client(storage_options: Mapping[str, Any]) -> GcsClient:
    """Return a client. Makes no request, except for credentials. Raises ValueError if it can't be made with these
    options, without showing credentials; and OSError if the source of the credentials is busy or gave no answer."""
    try:
        return GcsClient(**storage_options)
    except Exception as error:  # noqa: BLE001  # of any library that gcsfs uses
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, requests.RequestException):  # the URL of the request has the token
            text = (
                "the option 'token' is neither a method of gcsfs, such as google_default or anon, nor a file. Google"
                f" was asked whether it is an access token: {type(error).__name__}"
            )
        if any(map(_is_of_network, _chain(error))):
            raise OSError(errno.EBUSY, f"no credentials yet: {text}") from None
        raise ValueError(text) from None


def translate(error: BaseException) -> OSError:
    """Translate an error of gcsfs, or of a library below it."""
    if isinstance(error.__cause__, GoogleAuthError):  # Google's error has more about refused credentials
        error = error.__cause__
    text = _SESSION.sub("upload_id=...", f"{type(error).__name__}: {error}").replace("\n", " ")
    number = _meaning(error)
    return _NoAnswer(number, text) if number == errno.ETIMEDOUT else OSError(number, text)


class _NoAnswer(OSError):
    """An error without an answer. It is no TimeoutError, of which fsspec keeps neither the text nor the errno."""


def _meaning(error: BaseException) -> int:
    text = str(error)
    if isinstance(error, HttpError):
        status = int(error.code or 0)
        return _OF_GCS.get(status) or of_status(status)
    if is_untrusted(error):
        return errno.EACCES
    if isinstance(error, GoogleAuthError):
        may_pass = error.retryable or any(map(_is_of_network, _chain(error)))
        return errno.EBUSY if may_pass else errno.EACCES
    if text.startswith("Forbidden"):  # gcsfs puts this one status into words
        return errno.EBUSY if "rate limit" in text.lower() else errno.EACCES
    return next((number for kinds, number in _BY_KIND if isinstance(error, kinds)), errno.EIO)


def _is_of_network(error: BaseException) -> bool:
    """Whether a source of credentials was not reached, or is busy. google-auth wraps such errors in RefreshError."""
    if isinstance(error, requests.HTTPError):
        return error.response is not None and of_status(error.response.status_code) == errno.EBUSY
    return isinstance(error, TransportError | requests.ConnectionError | requests.Timeout)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Return an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__
