"""The log of complete batches as plain JSON lines with relative paths, for readers other than Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from twopc.errors import ConfigurationError
from twopc_files.batch_log import KEPT_FOR_S, BatchLog, CommittedFile

_VERSION = 1


class Manifest:
    """A line with the version and the owner, then a line for each file: its path, bytes, records and when it was
    listed."""

    @property
    def folder(self) -> str:
        """Hidden from readers of the folder."""
        return "_manifest"

    def encode(self, owner: str, files: Sequence[CommittedFile]) -> bytes:
        """No name in it is absolute: the folder may be moved or copied with its manifest."""
        lines: list[dict[str, Any]] = [{"version": _VERSION, "owner": owner}]
        lines += [
            {"path": file.path, "bytes": file.size_bytes, "records": file.records, "listed_ms": file.listed_ms}
            for file in files
        ]
        return b"\n".join(map(orjson.dumps, lines))

    def decode(self, data: bytes) -> tuple[str | None, list[CommittedFile]]:
        """Raises ValueError for another version."""
        head, *lines = map(orjson.loads, data.split(b"\n"))
        if head["version"] != _VERSION:
            raise ValueError(f"it has version {head['version']}, and {_VERSION} is known here")
        return head["owner"], [
            CommittedFile(line["path"], line["bytes"], line["records"], line["listed_ms"]) for line in lines
        ]


def manifest(fs: Any, folder: str, owner: str = "", kept_for_s: float = KEPT_FOR_S) -> BatchLog:
    """The manifest of ``folder``. The arguments are those of ``BatchLog``."""
    return BatchLog(fs, folder, Manifest(), owner, kept_for_s)


def committed_files(path: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """The files of all complete batches in the folder ``path``, and of no other, as they are at this moment.

    Args:
        path: of the sink: a path or an fsspec URL.
        storage_options: what fsspec needs to reach it.

    Returns:
        Paths, or URLs where ``path`` is on a store, in the order of batches.

    Raises:
        ConfigurationError: there is no manifest at ``path``.
        CorruptLog: the manifest lacks an entry.
    """
    fs, folder = url_to_fs(path, **(storage_options or {}))
    try:
        files = manifest(fs, folder).files()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{error}. Is {path!r} the folder of a sink with the option batch_logs=manifest?"
        ) from error
    paths = [f"{folder.rstrip('/')}/{file.path}" for file in files]
    return paths if isinstance(fs, LocalFileSystem) else [fs.unstrip_protocol(path) for path in paths]
