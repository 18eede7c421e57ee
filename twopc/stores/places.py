"""Folders that users configure: for commit logs, replay copies, checkpoints and sinks' output."""

from __future__ import annotations

import fnmatch
import operator
import os
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, Protocol

from twopc.errors import ConfigurationError
from twopc.stores.fsspec_internals import options_of, path_of

LOCAL = (None, "file", "local")

_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
"""Hadoop's spelling, file:/data, which fsspec reads as a relative path."""

_HOST_AND_PORT = re.compile(r"[^:]*:\d+")

_OF_BUCKETS = ("s3", "s3a", "s3n", "gs", "gcs")
_OF_CONTAINERS = ("abfs", "abfss", "az")

_AZURE_HOST = re.compile(r"\.(dfs|blob)\.")

SIGNED = re.compile(r"[?&]sig=")
"""Matches a URL with a shared access signature."""

_ONE_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "webhdfs": "hdfs", "abfss": "abfs", "az": "abfs"}
"""Alternative spelling of a protocol → its canonical spelling."""


def parsed_place(what: str, place: object) -> tuple[str | None, str]:
    """Split ``place``, which is text or an ``os.PathLike``, into a protocol and a path. The protocol is None if
    ``place`` is a plain path. ``what``: the folder's name in errors.

    Raises ConfigurationError if the value is neither text nor a path, if the URL is empty, if it contains a password or
    a shared access signature (which the message does not repeat), if a ``file://`` URL names a host, or if an object
    store's URL names no bucket or container.
    """
    url = os.fspath(place) if isinstance(place, os.PathLike) else place
    if not isinstance(url, str):
        given = "None" if url is None else type(url).__name__
        raise ConfigurationError(
            f"{what} must be a folder, given as path or URL such as /data/log or s3://bucket/log, not {given}"
        )
    if not url.strip():
        raise ConfigurationError(f"the URL of {what} is empty, which would be the working folder: name a folder")
    protocol, path = split(url)
    if protocol is not None and holds_password(protocol, path):
        raise ConfigurationError(
            f"the URL of {what} holds a password: give credentials as options of the store instead"
        )
    if protocol in LOCAL and protocol is not None and not path.startswith("/"):
        # fsspec reads file://data/log as a path below the working folder, which differs between processes.
        host, _, folder = path.partition("/")
        right = folder if host == "localhost" else path
        raise ConfigurationError(f"{what} {url!r} names a host, {host!r}. Write {protocol}:///{right}")
    if protocol in _OF_BUCKETS and path.startswith("/"):
        raise ConfigurationError(f"{what} {url!r} has no name of a bucket: write {protocol}://bucket/folder")
    if protocol in _OF_CONTAINERS and path.startswith("/"):
        raise ConfigurationError(f"{what} {url!r} has no name of a container: write {protocol}://container/folder")
    host, _, rest = path.partition("/")
    if protocol in _OF_CONTAINERS and "@" not in host and _AZURE_HOST.search(host):
        container, _, folder = rest.partition("/")
        raise ConfigurationError(
            f"{what} {url!r} has the account in the place of the container: write"
            f" {protocol}://{container or 'container'}@{host}/{folder}"
        )
    return protocol, path


def canonical(protocol: str | None, path: str) -> str:
    """Return the URL for a result of ``parsed_place``."""
    return path if protocol is None else f"{protocol}://{path}"


def file_system(url: str, **storage_options: Any) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it, like ``fsspec.core.url_to_fs``, but with this package's
    clients for Azure, Google Cloud Storage and WebHDFS. Raises ImportError, TypeError, ValueError or KeyError if the
    client is not installed, or does not take these options."""
    protocol, _ = split(url)
    if protocol in ("gs", "gcs"):
        from twopc.stores.gcs import GcsClient, gcs_client  # needs the package gcsfs

        return gcs_client(storage_options), path_of(GcsClient, url)
    if protocol in _OF_CONTAINERS:
        from twopc.stores.azure import AzureClient  # needs the package adlfs

        return AzureClient(**{**options_of(AzureClient, url), **storage_options}), path_of(AzureClient, url)
    if protocol == "webhdfs":
        from twopc.stores.webhdfs import WebHdfs  # needs the package requests

        return WebHdfs(**{**options_of(WebHdfs, url), **storage_options}), path_of(WebHdfs, url)
    from fsspec.core import url_to_fs  # slow, and needed only by tasks that write to such a folder

    located: tuple[Any, str] = url_to_fs(url, **storage_options)
    return located


def holds_password(protocol: str, rest: str) -> bool:
    """Return whether the URL contains a password or a signature. An S3 secret key may contain slashes. A port is not a
    password."""
    if SIGNED.search(rest):
        return True
    authority, _, path = (rest.lstrip("/") if protocol in _OF_BUCKETS else rest).partition("/")
    user, at, _ = authority.rpartition("@")
    if at:
        return ":" in user
    is_port = _ONE_STORE.get(protocol, protocol) != "s3" and _HOST_AND_PORT.fullmatch(authority)
    return ":" in authority and "@" in path and not is_port


def split(url: str) -> tuple[str | None, str]:
    """Return the protocol of a URL, or None for a path, and the rest, as written."""
    if hadoop := _ONE_SLASH.match(url):
        return hadoop[1], url[hadoop.end() - 1 :]
    protocol, separator, path = url.partition("://")
    if separator and len(protocol) > 1:
        return protocol, path
    return None, os.path.expanduser(url)  # noqa: PTH111  # a URL's text


class HasOutput(Protocol):
    """A sink. Only its output folder is used here."""

    @property
    def output_folder(self) -> str | None: ...


def refuse_within_outputs(what: str, url: str, sinks: Mapping[str, HasOutput]) -> None:
    """Check that readers of the outputs of ``sinks`` do not find the files of ``what``, which are at ``url``. Other
    spellings of a location are recognized, and links are followed.

    Raises ConfigurationError if ``url`` is the output folder of a sink, or inside it. ``url`` may be below a folder
    whose name begins with ``_`` or ``.``, which readers of data sets skip. Readers do not skip a partition such as
    ``_a=1``, and Spark's reader does not skip ``_spark_metadata``. Also raised if an output folder is inside ``url``,
    because the output would be moved, restored or deleted together with these files.
    """
    for sink, output in ((name, sink.output_folder) for name, sink in sinks.items() if sink.output_folder):
        if _is_listed(_below(url, output)):
            raise ConfigurationError(
                f"{what} is at {url}, inside {output}, where sink {sink!r} writes: its readers would take the files"
                f" for records. {_beside(what)}"
            )
        if _below(output, url):
            raise ConfigurationError(
                f"sink {sink!r} writes to {output}, inside {url}, the folder of {what}: what moves, restores or deletes"
                f" that folder would take the records along. {_beside(what)}"
            )


def refuse_within_checkpoint(log: str, checkpoint: str) -> None:
    """Check that the commit log does not share a folder with Spark. A subfolder of the checkpoint is fine: Spark opens
    its own subfolders by name, and does not list the checkpoint. Raises ConfigurationError: ``log`` is the checkpoint's
    folder, or is inside a subfolder that Spark uses."""
    below = _below(log, checkpoint)
    if below is not None and (not below or below[0] in _OF_SPARK):
        raise ConfigurationError(
            f"the commit log is at {log}, where Spark keeps the checkpoint of the query ({checkpoint}). Give the log"
            f" a subfolder of its own, such as {checkpoint.rstrip('/')}/twopc-log, or a folder beside the checkpoint."
            " If it has files already (00000000000000000000.json and so on), move them there as they are, while the"
            " query is stopped"
        )


_OF_SPARK = ("metadata", "offsets", "commits", "sources", "state")


def refuse_within_source(what: str, url: str, source: str) -> None:
    """Raise ConfigurationError if the query would read the files of ``what`` as its input, because ``url`` is inside
    ``source``, the folder or folder pattern of a file source. ``url`` may be below a folder that readers skip. For the
    other arguments see ``refuse_within_outputs``."""
    if _is_listed(_below(url, source, fnmatch.fnmatchcase)):
        raise ConfigurationError(
            f"{what} is at {url}, and the query reads the files of {source}: it would take those of {what} for records."
            f" {_beside(what)}"
        )


def _beside(what: str) -> str:
    return (
        f"Keep {what} in a folder beside it. If it has files already, move them there as they are, while the query is"
        " stopped"
    )


def _is_listed(below: tuple[str, ...] | None) -> bool:
    """Return whether readers of a folder find files in the subfolder ``below``."""
    return below is not None and not any(map(_is_passed_over, below))


def _is_passed_over(folder: str) -> bool:
    return folder.startswith(("_", ".")) and "=" not in folder and folder != "_spark_metadata"


def _below(url: str, folder: str, is_same: Callable[[str, str], bool] = operator.eq) -> tuple[str, ...] | None:
    """Return the path from ``folder`` down to ``url``, or None if ``url`` is not inside. ``is_same`` compares a name in
    ``url`` with one in ``folder``."""
    store, path = _locate(url)
    its_store, its_path = _locate(folder)
    hosts = {host for _, host in (store, its_store) if host}  # a URL without one means the client's default
    if store[0] != its_store[0] or len(hosts) > 1 or len(path) < len(its_path):
        return None
    if not all(is_same(name, its_name) for name, its_name in zip(path, its_path, strict=False)):
        return None
    return path[len(its_path) :]


def _locate(url: str) -> tuple[tuple[str, str], tuple[str, ...]]:
    """Return the store with its host, and the folders of the path."""
    protocol, path = split(url)
    if protocol in LOCAL:
        return ("file", ""), PurePosixPath(os.path.realpath(path)).parts
    store, host = _ONE_STORE.get(str(protocol), str(protocol)), ""
    if store == "hdfs":
        authority, _, path = path.partition("/")
        host = authority.partition(":")[0]  # each of its services has its own port
    if store == "abfs":
        container, _, account = path.partition("/")[0].partition("@")
        host = account.partition(".")[0]  # empty if the client gets the account from elsewhere
        path = f"{container}/{path.partition('/')[2]}"
    return (store, host), PurePosixPath(path.strip("/")).parts
