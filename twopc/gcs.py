"""Google Cloud Storage by gcsfs, with errors that a commit can rest on.

gcsfs raises errors of a dozen kinds: a refused right is an OSError without a number, a busy server is an ``HttpError``
or an error of another library. Here each is an OSError.

| errno | meaning |
| --- | --- |
| ``ENOENT`` | there is no such object, or no such bucket |
| ``EEXIST`` | the object exists: the condition of a conditional write failed |
| ``EACCES`` | the credentials or their rights are refused, or none were found |
| ``EBUSY`` | the store is busy or gave no answer, so the request may have been carried out |
| ``ENOSYS`` | the server does not know such a request |
| ``EIO`` | anything else |

gcsfs has repeated a request for about half a minute before it raises ``EBUSY``.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Mapping
from typing import Any

from aiohttp import ClientError
from fsspec import asyn
from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]
from gcsfs.retry import HttpError  # type: ignore[import-untyped]
from google.auth.exceptions import GoogleAuthError, TransportError
from requests.exceptions import RequestException

_SESSION = re.compile(r"upload_id=[^&\s]+")
"""In the URL of a resumable upload: whoever knows it can write the object."""

_BY_KIND = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    ((RequestException, ClientError, TimeoutError, asyncio.TimeoutError, ConnectionError), errno.EBUSY),
)


class GcsClient(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
    """gcsfs's client, with its options, for buckets other than zonal ones. Every method may raise an OSError.

    The base class is not the one that fsspec opens for ``gs://``. That one asks Google for the kind of each bucket by
    gRPC, whatever the endpoint. In a zonal bucket, it ignores ``mode="create"`` and shows an object before it is whole.
    The base class sends requests of the JSON API and no others.
    """

    async def _call(self, *arguments: Any, **keywords: Any) -> Any:
        try:
            return await super()._call(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001  # see above
            raise translated(error) from None  # the original may show a session

    call = asyn.sync_wrapper(_call)


def gcs_client(storage_options: Mapping[str, Any]) -> GcsClient:
    """Return a client. Makes no request, except for credentials.

    Raises:
        ValueError: it can't be made with these options. The message shows no credentials.
    """
    try:
        return GcsClient(**storage_options)
    except RequestException as error:  # its text has the URL of the request, and that has the token
        raise ValueError(
            "the option 'token' is neither a method of gcsfs, such as google_default or anon, nor a file, and Google"
            f" was not reached or does not know it as an access token ({type(error).__name__})"
        ) from None
    except Exception as error:  # noqa: BLE001  # of one of four libraries
        raise ValueError(f"{type(error).__name__}: {error}") from None


def translated(error: BaseException) -> OSError:
    """Translate an error of gcsfs, or of a library below it."""
    if isinstance(error.__cause__, GoogleAuthError):  # gcsfs says less of refused credentials than Google
        error = error.__cause__
    text = _SESSION.sub("upload_id=...", f"{type(error).__name__}: {error}").replace("\n", " ")
    return OSError(_meaning(error), text)


def _meaning(error: BaseException) -> int:
    text = str(error)
    if isinstance(error, HttpError):
        return _of_status(int(error.code or 0))
    if isinstance(error, GoogleAuthError):
        may_pass = isinstance(error, TransportError) or error.retryable
        return errno.EBUSY if may_pass else errno.EACCES
    if text.startswith("Forbidden"):  # gcsfs puts this one status into words
        return errno.EBUSY if "rate limit" in text.lower() else errno.EACCES
    return next((number for kinds, number in _BY_KIND if isinstance(error, kinds)), errno.EIO)


def _of_status(status: int) -> int:
    if status in (401, 403):
        return errno.EACCES
    if status == 501:  # NotImplemented: no repeat of the request will help
        return errno.ENOSYS
    return errno.EBUSY if status in (408, 429) or status >= 500 else errno.EIO
