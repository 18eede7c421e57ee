"""The log of complete batches as JSON lines with relative paths, for readers other than Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson
from fsspec.implementations.local import LocalFileSystem

from twopc.errors import ConfigurationError
from twopc.stores.places import file_system
from twopc_files.batch_log import KEPT_FOR_S, BatchLog, CommittedFile, digest, require_digest

_VERSION = 1


class Manifest:
    """The manifest's format: a line with version, owner and digest, then one line per file with path, size, number of
    records and listing time."""

    folder: ClassVar[str] = "_manifest"

    def encode(self, owner: str, files: Sequence[CommittedFile]) -> bytes:
        """Return the bytes of an entry. Paths are relative, so the folder can be moved or copied with its manifest."""
        lines = [
            orjson.dumps(
                {"path": file.path, "bytes": file.size_bytes, "records": file.records, "listed_ms": file.listed_ms}
            )
            for file in files
        ]
        head = {"version": _VERSION, "owner": owner, "sha256": digest(lines)}
        return b"\n".join([orjson.dumps(head), *lines])

    def decode(self, data: bytes) -> tuple[str | None, list[CommittedFile]]:
        """Return the owner and the files of an entry. Raises the errors of ``LogFormat.decode``, also for an unknown
        version."""
        first, *lines = data.split(b"\n")
        head = orjson.loads(first)
        if head["version"] != _VERSION:
            raise ValueError(f"it has version {head['version']}; this release reads version {_VERSION}")
        require_digest(head.get("sha256"), lines)
        return head["owner"], [
            CommittedFile(file["path"], file["bytes"], file["records"], file["listed_ms"])
            for file in map(orjson.loads, lines)
        ]


def manifest(fs: Any, folder: str, owner: str = "", kept_for_s: float = KEPT_FOR_S) -> BatchLog:
    """Return the manifest of ``folder``. The arguments are those of ``BatchLog``."""
    return BatchLog(fs, folder, Manifest(), owner, kept_for_s)


def committed_files(path: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """List the files of all batches that are complete at this moment in the folder ``path``.

    Args:
        path: the sink's folder, as a path or an fsspec URL.
        storage_options: fsspec's options for it.

    Returns:
        Paths, or URLs if ``path`` is in a store, in the order of batches.

    Raises:
        ConfigurationError: there is no manifest at ``path``.
        CorruptLog: the manifest lacks an entry.
    """
    fs, folder = file_system(path, **(storage_options or {}))
    try:
        files = manifest(fs, folder).files()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{error}. Is {path!r} the folder of a sink with the option batch_logs=manifest?"
        ) from error
    paths = [f"{folder.rstrip('/')}/{file.path}" for file in files]
    return paths if isinstance(fs, LocalFileSystem) else [fs.unstrip_protocol(path) for path in paths]
