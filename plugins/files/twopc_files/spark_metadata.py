"""The log of complete batches in the format of Spark's own file sink, so that ``spark.read`` needs no option.

If a folder has ``_spark_metadata``, Spark reads only the files that this log lists (MetadataLogFileIndex).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import orjson
from fsspec.implementations.local import LocalFileSystem

from twopc_files.batch_log import KEPT_FOR_S, BatchLog, CommittedFile, digest, require_digest

_VERSION = b"v1"

_SCHEMES = {"s3": "s3a"}
"""fsspec's scheme of a store → Hadoop's, if they differ. Spark opens a file by the URL in the log."""

# The characters that java.net.URI does not encode in a path, apart from letters and digits.
_SAFE = "/-_.!~'()*,;:$&+=@"


@dataclass(frozen=True, slots=True)
class SparkMetadata:
    """Spark's format: ``v1``, then one SinkFileStatus per line.

    Attributes:
        url: the URL of the sink's folder, as Spark writes it: the path is percent-encoded, except for non-ASCII
            characters.
    """

    folder: ClassVar[str] = "_spark_metadata"  # where Spark looks for it
    url: str

    def encode(self, owner: str, files: Sequence[CommittedFile]) -> bytes:
        """Return the bytes of an entry. Owner and digest are in fields that Spark does not know, on a line about a
        folder, which Spark ignores."""
        lines = [_status(f"{self.url}/{_quote(file.path)}", file.size_bytes, file.listed_ms) for file in files]
        own = _status(f"{self.url}/{self.folder}", 0, 0, is_dir=True, owner=owner, sha256=digest(lines))
        return b"\n".join([_VERSION, own, *lines])

    def decode(self, data: bytes) -> tuple[str | None, list[CommittedFile]]:
        """Return the owner and the files of an entry.

        Raises:
            ValueError, LookupError, TypeError: the data is not such an entry, or it lists a file in another folder,
                where Spark would look for it.
        """
        version, *lines = data.split(b"\n")
        if version != _VERSION:
            raise ValueError(f"it begins with {version!r}, not with {_VERSION!r}")
        statuses = [orjson.loads(line) for line in lines]
        own: dict[str, Any] = next((status for status in statuses if status["isDir"]), {})
        require_digest(own.get("sha256"), lines[1:])
        files = [
            CommittedFile(self._relative(status["path"]), status["size"], listed_ms=status["modificationTime"])
            for status in statuses
            if not status["isDir"]
        ]
        return own.get("owner"), files

    def _relative(self, path: str) -> str:
        if not path.startswith(f"{self.url}/"):
            raise ValueError(f"it lists {path}, which is not in {self.url}: was the folder moved?")
        return unquote(path.removeprefix(f"{self.url}/"))


def spark_metadata(fs: Any, folder: str, owner: str, kept_for_s: float = KEPT_FOR_S) -> BatchLog:
    """Return the log that Spark reads for ``folder``. The arguments are those of ``BatchLog``."""
    return BatchLog(fs, folder, SparkMetadata(_url(fs, folder.rstrip("/"))), owner, kept_for_s)


def _url(fs: Any, folder: str) -> str:
    if isinstance(fs, LocalFileSystem):
        return f"file://{_quote(folder)}"
    if "abfs" in fs.protocol:  # Hadoop names the account in the URL
        container, _, path = folder.partition("/")
        host = fs.service_client.primary_hostname.replace(".blob.", ".dfs.")
        return f"abfss://{container}@{host}/{_quote(path)}"
    scheme, _, path = str(fs.unstrip_protocol(folder)).partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}://{_quote(path)}"


def _status(path: str, size_bytes: int, time_ms: int, is_dir: bool = False, **more: str) -> bytes:
    status = {"path": path, "size": size_bytes, "isDir": is_dir, "modificationTime": time_ms}
    # Spark does not plan splits by these two. The values are for a disk without replication.
    block = {"blockReplication": 1, "blockSize": 32 * 1024 * 1024}
    return orjson.dumps({**status, **block, "action": "add", **more})


def _quote(path: str) -> str:
    """Quote ``path`` as java.net.URI does: Spark compares the text when it looks for partition columns."""
    if path.isascii():
        return quote(path, safe=_SAFE)  # a hundred times as fast; a compact entry may list very many files
    return "".join(c if ord(c) > 127 and c.isprintable() else quote(c, safe=_SAFE) for c in path)
