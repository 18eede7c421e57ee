"""Google Cloud Storage through gcsfs, with errors that are reliable enough for a commit.

gcsfs raises a dozen kinds of errors: a refused permission is an OSError without an errno, a busy server is an
``HttpError`` or an error of another library. Here each error is an OSError, as listed in ``errors``, but a missing
bucket is ``ENOENT``. Before ``EBUSY`` and ``ETIMEDOUT``, gcsfs has sent the request six times over half a minute.
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
"""How long to wait for a connection, and for the next bytes of an answer. By default, gcsfs waits forever."""

_SESSION = re.compile(r"upload_id=[^&\s]+")  # in the URL of a resumable upload: a secret that allows writing the object

_BY_KIND = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (requests.exceptions.ProxyError, errno.EBUSY),  # how gcsfs raises the status 502
    ((requests.RequestException, ClientError, TimeoutError, asyncio.TimeoutError, ConnectionError), errno.ETIMEDOUT),
)

# The object or bucket is being changed; the token of a rewrite or the session of an upload has expired.
_OF_GCS = {409: errno.EBUSY, 410: errno.EBUSY}


class GcsClient(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
    """gcsfs's client, with its options, for buckets other than zonal ones. Every method may raise an OSError.

    For ``gs://``, fsspec opens a different class, which asks Google for the kind of each bucket by gRPC, whatever the
    endpoint. In a zonal bucket, that class ignores ``mode="create"`` and shows an object before it is complete. The
    base class used here only uses the JSON API.

    Without the option ``token``, the client only accepts Application Default Credentials. gcsfs itself would send
    anonymous requests for the rest of the process if the metadata server was not ready when the client was created.
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
    """Return a client. Makes no request, except for credentials. Raises ValueError, without credentials in its text, if
    the options are wrong, and OSError if the source of the credentials is busy or did not answer."""
    try:
        return GcsClient(**storage_options)
    except Exception as error:  # noqa: BLE001  # from any library that gcsfs uses
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
    if isinstance(error.__cause__, GoogleAuthError):  # Google's error has more details on refused credentials
        error = error.__cause__
    text = _SESSION.sub("upload_id=...", f"{type(error).__name__}: {error}").replace("\n", " ")
    number = _meaning(error)
    return _NoAnswer(number, text) if number == errno.ETIMEDOUT else OSError(number, text)


class _NoAnswer(OSError):
    """A missing answer. Not a TimeoutError, because fsspec drops a TimeoutError's text and errno."""


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
    if text.startswith("Forbidden"):  # gcsfs reports this status in words
        return errno.EBUSY if "rate limit" in text.lower() else errno.EACCES
    return next((number for kinds, number in _BY_KIND if isinstance(error, kinds)), errno.EIO)


def _is_of_network(error: BaseException) -> bool:
    """Return whether a source of credentials was unreachable or busy. google-auth wraps such errors in RefreshError."""
    if isinstance(error, requests.HTTPError):
        return error.response is not None and of_status(error.response.status_code) == errno.EBUSY
    return isinstance(error, TransportError | requests.ConnectionError | requests.Timeout)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__
