"""Chooses the store for a path by its protocol. The table lists only stores that are known to publish a file
atomically.

| protocol | store | why |
| --- | --- | --- |
| none, ``file``, ``local`` | ``Local`` | a rename is atomic, and can be synced |
| ``s3``, ``s3a``, ``s3n`` | ``S3`` | a multipart upload can stay open, and any process can complete it |
| ``abfs``, ``abfss``, ``az`` | ``Azure`` | uncommitted blocks stay for a week, and any process can put their list |
| ``hdfs``, ``webhdfs`` | ``Remote``, by rename | HDFS guarantees atomic renames, which never replace a file |
| ``gs``, ``gcs`` | ``Gcs`` | an object appears only when it is complete, and a rewrite never replaces one |
| ``memory`` | ``Remote``, by copy | an object appears only when it is complete |

Not supported: SFTP and SMB (no fsync, so nothing is durable on return), caches and archives (the file is written
elsewhere, or later).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec import get_filesystem_class
from fsspec.implementations.local import LocalFileSystem

from twopc.errors import ConfigurationError
from twopc.stores.fsspec_internals import path_of
from twopc.stores.places import LOCAL, parsed_place
from twopc_files.stores.local import Local
from twopc_files.stores.remote import Remote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc_files.stores.store import Store

UPLOADING = ("s3", "s3a", "s3n")
STAGING = ("abfs", "abfss", "az")
RENAMING = ("hdfs", "webhdfs")
REWRITING = ("gs", "gcs")
KNOWN = (*filter(None, LOCAL), *UPLOADING, *STAGING, *RENAMING, *REWRITING, "memory")

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")


def store_at(url: str, storage_options: Mapping[str, Any]) -> Store:
    """Return the store of the folder ``url``, without a request to it.

    Raises:
        ConfigurationError: the protocol is not in the table, its package is not installed, or the path is invalid.
    """
    protocol, rest = parsed_place("the file sink's path", url)
    if protocol is None or protocol in LOCAL:
        return _local(rest, storage_options)
    if protocol not in KNOWN:
        raise ConfigurationError(
            f"the option 'path' of the file sink must be a plain path, or a URL of one of {', '.join(KNOWN)}: other"
            " stores are not known to make a file appear whole",
            option="path",
        )
    _require_package(protocol)
    if protocol in UPLOADING:
        from twopc_files.stores.s3 import S3

        return S3(*_bucket_and_folder("s3", rest, " For an access point, give its alias."), storage_options)
    if protocol in STAGING:
        from twopc_files.stores.azure import Azure

        return Azure(f"{protocol}://{rest.rstrip('/')}", storage_options)
    if protocol in REWRITING:
        from twopc_files.stores.gcs import Gcs

        return Gcs(*_bucket_and_folder("gs", rest), storage_options)
    folder = rest.rstrip("/")
    if not folder:
        raise ConfigurationError(
            f"the option 'path' of the file sink must name a folder: {protocol}://...", option="path"
        )
    return Remote(f"{protocol}://{folder}", storage_options, renames=protocol in RENAMING)


def _local(path: str, storage_options: Mapping[str, Any]) -> Local:
    if storage_options:
        raise ConfigurationError(
            "the option 'storage_options' of the file sink is only for URLs, and 'path' is a local path",
            option="storage_options",
        )
    # Not resolved, so that a symbolic link in the path may change between two runs.
    return Local(Path(path_of(LocalFileSystem, path)))


def _bucket_and_folder(protocol: str, rest: str, advice: str = "") -> tuple[str, str]:
    bucket, _, folder = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        # The message does not repeat the path, which may contain credentials.
        raise ConfigurationError(
            f"the option 'path' of the file sink must name a bucket: {protocol}://bucket/folder.{advice} Credentials go"
            " into 'storage_options'",
            option="path",
        )
    return bucket, folder.strip("/")


def _require_package(protocol: str) -> None:
    try:
        get_filesystem_class({"s3n": "s3"}.get(protocol, protocol))
    except ImportError as error:
        package = {
            **dict.fromkeys(UPLOADING, "twopc-files[s3]"),
            **dict.fromkeys(STAGING, "twopc-core[azure]"),
            **dict.fromkeys(REWRITING, "twopc-core[gcs]"),
        }
        install = f"Run pip install {package[protocol]!r}" if protocol in package else "Install it"
        raise ConfigurationError(
            f"the file sink needs another package for {protocol!r}: {error}. {install} here and on every executor"
        ) from error
