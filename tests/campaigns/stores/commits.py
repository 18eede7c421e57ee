"""Which requests to a store commit something: those amid which a server or a writer is killed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from aiobotocore.client import AioBaseClient
from azure.core.pipeline.transport import AioHttpTransport
from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

from tests.campaigns.every_step.steps import azure_operation
from twopc.stores.webhdfs import WebHdfs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.campaigns.every_step.blows import Strike


def of_s3(strike: Strike) -> None:
    """The completion of an upload."""
    _watch(strike, AioBaseClient, "_make_api_call", lambda operation, *_: operation == "CompleteMultipartUpload")


def of_azure(strike: Strike) -> None:
    """The list of a blob's blocks."""
    _watch(strike, AioHttpTransport, "send", lambda request: azure_operation(request) == "PUT blocklist")


def of_gcs(strike: Strike) -> None:
    """The rewrite of an object under another name."""
    _watch(strike, GCSFileSystem, "_call", lambda *request: any("/rewriteTo/" in str(part) for part in request[:2]))


def _watch(strike: Strike, client: Any, method: str, is_commit: Callable[..., bool]) -> None:
    send = getattr(client, method)

    async def watched(self: Any, *request: Any, **options: Any) -> Any:
        with strike.a_commit() if is_commit(*request) else contextlib.nullcontext():
            return await send(self, *request, **options)

    setattr(client, method, watched)


def of_hdfs(strike: Strike) -> None:
    """A rename. It appends to a log, too."""
    rename = WebHdfs.mv

    def watched(*arguments: Any, **options: Any) -> None:
        with strike.a_commit():
            rename(*arguments, **options)

    WebHdfs.mv = watched  # type: ignore[method-assign]
