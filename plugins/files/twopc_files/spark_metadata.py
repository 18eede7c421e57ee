"""The log of complete batches as Spark's own file sink keeps it, so that ``spark.read`` needs no option at all.

Where a folder has ``_spark_metadata``, Spark reads what that log lists and nothing else (MetadataLogFileIndex).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import orjson
from fsspec.implementations.local import LocalFileSystem

from twopc_files.batch_log import KEPT_FOR_S, BatchLog, CommittedFile

_VERSION = b"v1"

_SCHEMES = {"s3": "s3a"}
"""fsspec's name of a store → Hadoop's, where they differ. Spark opens a file by the URL that the log has."""

# What java.net.URI leaves as it is in a path, beside letters and digits.
_SAFE = "/-_.!~'()*,;:$&+=@"


@dataclass(frozen=True, slots=True)
class SparkMetadata:
    """Spark's format: ``v1``, then a SinkFileStatus a line.

    Attributes:
        url: of the sink's folder, as Spark writes it: a path is percent-encoded, but for what is not ASCII.
    """

    url: str

    @property
    def folder(self) -> str:
        """Where Spark looks for it."""
        return "_spark_metadata"

    def encode(self, owner: str, files: Sequence[CommittedFile]) -> bytes:
        """The owner is a field that Spark does not know, in a line about a folder, which Spark drops."""
        lines = [_status(f"{self.url}/{self.folder}", 0, 0, is_dir=True, owner=owner)]
        lines += [_status(f"{self.url}/{_quoted(file.path)}", file.size_bytes, file.listed_ms) for file in files]
        return b"\n".join([_VERSION, *lines])

    def decode(self, data: bytes) -> tuple[str | None, list[CommittedFile]]:
        """Raises ValueError also for a file of another folder: Spark would look for it there."""
        version, *lines = data.split(b"\n")
        if version != _VERSION:
            raise ValueError(f"it begins with {version!r} and not with {_VERSION!r}")
        statuses = [orjson.loads(line) for line in lines]
        owners = [status.get("owner") for status in statuses if status["isDir"]]
        files = [
            CommittedFile(self._relative(status["path"]), status["size"], listed_ms=status["modificationTime"])
            for status in statuses
            if not status["isDir"]
        ]
        return owners[0] if owners else None, files

    def _relative(self, path: str) -> str:
        if not path.startswith(f"{self.url}/"):
            raise ValueError(f"it lists {path}, which is not in {self.url}: was the folder moved?")
        return unquote(path.removeprefix(f"{self.url}/"))


def spark_metadata(fs: Any, folder: str, owner: str, kept_for_s: float = KEPT_FOR_S) -> BatchLog:
    """The log from which Spark reads ``folder``. The arguments are those of ``BatchLog``."""
    return BatchLog(fs, folder, SparkMetadata(_url(fs, folder.rstrip("/"))), owner, kept_for_s)


def _url(fs: Any, folder: str) -> str:
    if isinstance(fs, LocalFileSystem):
        return f"file://{_quoted(folder)}"
    scheme, _, path = str(fs.unstrip_protocol(folder)).partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}://{_quoted(path)}"


def _status(path: str, size_bytes: int, time_ms: int, is_dir: bool = False, **more: str) -> bytes:
    status = {"path": path, "size": size_bytes, "isDir": is_dir, "modificationTime": time_ms}
    # Spark plans no split by these two: they are what a disk without replication has.
    block = {"blockReplication": 1, "blockSize": 32 * 1024 * 1024}
    return orjson.dumps({**status, **block, "action": "add", **more})


def _quoted(path: str) -> str:
    """As java.net.URI does it: Spark compares such text when it looks for partition columns."""
    if path.isascii():
        return quote(path, safe=_SAFE)  # a hundred times as fast, and a compact entry may list very many
    return "".join(c if ord(c) > 127 and c.isprintable() else quote(c, safe=_SAFE) for c in path)
