"""Which requests to a store commit something: those amid which a server or a writer is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiobotocore.client import AioBaseClient
from azure.core.pipeline.transport import AioHttpTransport
from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

from tests.campaigns.every_step.steps import azure_operation
from twopc.stores.webhdfs import WebHdfs

if TYPE_CHECKING:
    from tests.campaigns.every_step.blows import Strike


def of_s3(strike: Strike) -> None:
    """The completion of an upload."""
    strike.watch(AioBaseClient, "_make_api_call", lambda _, operation, *__: operation == "CompleteMultipartUpload")


def of_azure(strike: Strike) -> None:
    """The list of a blob's blocks."""
    strike.watch(AioHttpTransport, "send", lambda _, request: azure_operation(request) == "PUT blocklist")


def of_gcs(strike: Strike) -> None:
    """The rewrite of an object under another name."""
    strike.watch(GCSFileSystem, "_call", lambda _, *request: any("/rewriteTo/" in str(part) for part in request[:2]))


def of_hdfs(strike: Strike) -> None:
    """A rename. It appends to a log, too."""
    strike.watch(WebHdfs, "mv")
