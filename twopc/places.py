"""Folders that a user names: of the commit log, of copies, of checkpoints, and of what sinks write."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from fsspec.core import split_protocol

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from twopc.sink import TwoPhaseCommitSink

LOCAL = (None, "file", "local")

_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
"""Hadoop's spelling, file:/data, which fsspec takes for a relative path."""

_HOST_AND_PORT = re.compile(r"[^:]*:\d+")

_OF_BUCKETS = ("s3", "s3a", "s3n", "gs", "gcs")

_ONE_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "webhdfs": "hdfs"}
"""Protocols that are other spellings of one."""


def parsed_place(what: str, url: str) -> tuple[str | None, str]:
    """The protocol of ``url``, None without one, and its path; ``what`` names the folder in an error.

    Raises:
        ConfigurationError: the URL is empty; it contains a password, which the message does not repeat; a ``file://``
            URL names a host; or the URL of an object store names no bucket.
    """
    if not url.strip():
        raise ConfigurationError(f"the URL of {what} is empty, which would be the working folder: name a folder")
    protocol, path = _split(url)
    if protocol is not None and _holds_password(protocol, path):
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
    return protocol, path


def canonical(protocol: str | None, path: str) -> str:
    """The URL of what ``parsed_place`` returned."""
    return path if protocol is None else f"{protocol}://{path}"


def _holds_password(protocol: str, rest: str) -> bool:
    """A secret key of S3 may contain slashes. A port is none."""
    authority, _, path = (rest.lstrip("/") if protocol in _OF_BUCKETS else rest).partition("/")
    user, at, _ = authority.rpartition("@")
    if at:
        return ":" in user
    is_port = _ONE_STORE.get(protocol, protocol) != "s3" and _HOST_AND_PORT.fullmatch(authority)
    return ":" in authority and "@" in path and not is_port


def _split(url: str) -> tuple[str | None, str]:
    if hadoop := _ONE_SLASH.match(url):
        return hadoop[1], url[hadoop.end() - 1 :]
    protocol, path = split_protocol(url)
    return protocol, os.path.expanduser(path) if protocol is None else path  # noqa: PTH111  # a URL's text


def refuse_within_outputs(what: str, url: str, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> None:
    """Make sure that readers of what a sink writes do not find the files of ``what`` among its own.

    Args:
        what: names the folder at ``url`` in the error.
        url: in any spelling; links are followed.
        sinks: by name.

    Raises:
        ConfigurationError: ``url`` is in the output folder of one of ``sinks``, or is that folder. Below a folder whose
            name begins with ``_`` or ``.`` it may be: readers of data sets pass over these. They don't pass over a
            partition, ``_a=1``, and Spark's reader not over ``_spark_metadata``.
    """
    for sink, output in ((name, sink.output_folder) for name, sink in sinks.items() if sink.output_folder):
        below = _below(url, output)
        if below is not None and not any(map(_is_passed_over, below)):
            raise ConfigurationError(
                f"{what} is at {url}, inside {output}, where sink {sink!r} writes: its readers would take the files"
                f" for records. Keep {what} in a folder beside it. If it has files already, move them there as they"
                " are, while the query is stopped"
            )


def _is_passed_over(folder: str) -> bool:
    return folder.startswith(("_", ".")) and "=" not in folder and folder != "_spark_metadata"


def _below(url: str, folder: str) -> tuple[str, ...] | None:
    """The folders that lead from ``folder`` to ``url``; None where ``url`` is elsewhere."""
    store, path = _located(url)
    its_store, its_path = _located(folder)
    hosts = {host for _, host in (store, its_store) if host}  # without one, it is Hadoop's default
    if store[0] != its_store[0] or len(hosts) > 1 or path[: len(its_path)] != its_path:
        return None
    return path[len(its_path) :]


def _located(url: str) -> tuple[tuple[str, str], tuple[str, ...]]:
    """The store with its host, and the folders of the path."""
    protocol, path = _split(url)
    if protocol in LOCAL:
        return ("file", ""), PurePosixPath(os.path.realpath(path)).parts
    store, host = _ONE_STORE.get(str(protocol), str(protocol)), ""
    if store == "hdfs":
        authority, _, path = path.partition("/")
        host = authority.partition(":")[0]  # each of its services has a port of its own
    return (store, host), PurePosixPath(path.strip("/")).parts
