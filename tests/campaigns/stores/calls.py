"""Calls of stores other than a disk and S3, as steps."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow.fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

from tests.campaigns.every_step.steps import Steps, on_disk
from twopc.stores import webhdfs
from twopc_files.stores.remote import RemoteFile


class Renaming(ArrowFSWrapper):  # type: ignore[misc]  # fsspec has no types
    """An Arrow file system on the local disk, which behaves like fsspec's ``hdfs://``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(pyarrow.fs.LocalFileSystem(), **options)


_registry["hdfs"] = Renaming


def on_hdfs(steps: Steps) -> None:
    """Turn every request to a NameNode or a DataNode into a step."""

    def described(_: object, method: str, url: str, *__: object, **keywords: Any) -> tuple[str, bool]:
        operation = (keywords.get("params") or {}).get("op") or parse_qs(urlsplit(url).query)["op"][0]
        return operation, method.upper() != "GET"

    steps.patch_requests(webhdfs._Session, "request", described)


def on_renaming(steps: Steps) -> None:
    """Turn the calls of a ``Remote`` that renames, and of a commit log on a disk, into steps."""
    steps.patch(Renaming, reads=("info", "isdir", "ls"), changes=("open", "makedirs", "mv", "rm_file"))
    steps.patch(RemoteFile, changes=("write", "made_durable"))
    on_disk(steps)


def in_memory(steps: Steps) -> None:
    """Turn the calls of a ``Remote`` that copies, and of the logs, into steps."""
    steps.patch(
        MemoryFileSystem, reads=("info", "ls", "find", "cat_file"), changes=("open", "cp_file", "rm_file", "pipe_file")
    )
    steps.patch(RemoteFile, changes=("write", "made_durable"))


def on_gcs(steps: Steps) -> None:
    """Turn every request to Google Cloud Storage into a step."""

    def described(_: object, method: str, path: str, *__: object, **___: object) -> tuple[str, bool]:
        return f"{method} {path.partition('?')[0].rpartition('/b/')[2]}", method != "GET"

    steps.patch_requests(GCSFileSystem, "_call", described)
