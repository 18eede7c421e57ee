"""The names of pending and committed files, and their handles in a committable: built, parsed and checked here and
nowhere else. On disk and in a commit log, a pending file is called ``staged``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.errors import CorruptLog

if TYPE_CHECKING:
    from twopc.transaction import Committable, JsonValue
    from twopc.transactional_ids import TransactionId

PENDING_FOLDER = "_twopc"
"""The folder of pending files, below the sink's own so that a rename between them is atomic. Spark, Hive and
pyarrow skip a folder whose name starts with an underscore."""

# A leading dot hides a pending file from readers that name its folder after all, as the pattern
# <path>/* does; the ending hides it from readers of **/*.parquet.
_PENDING = re.compile(r"\.(?P<id>[A-Za-z0-9._-]+)-[0-9]+\.staged")

# The folder of one value of a column, such as day=2024-01-01; never `..`, and nothing that ends a line.
_PARTITION = r"[^/=\x00-\x1f\x7f\ud800-\udfff]+=[^/\x00-\x1f\x7f\ud800-\udfff]*"
_EXTENSION = r"\.(?:parquet|orc|(?:json|csv|txt)(?:\.(?:gz|zst))?)"
_EXACT_ID = r"[A-Za-z0-9._-]+(?:\.[0-9]+){5}"
_TARGET = re.compile(rf"(?:{_PARTITION}/)*part-[0-9]{{20,}}-[0-9]{{5,}}-[0-9]{{5,}}-(?P<id>{_EXACT_ID}){_EXTENSION}")
"""All that ``target_name`` makes, and nothing else: somebody may be copying a file to its name with ``.bak``."""


@dataclass(frozen=True, slots=True)
class FileHandle:
    """One file in a committable's handle.

    Attributes:
        transaction_id: the transaction that the file is of.
        pending: its name in the store before its commit: that of a pending file, or the id of an upload.
        target: its path below the sink's folder after its commit; "" where only the store was asked.
        size_bytes: how long it is; None where only the store was asked.
        parts: a digest of the parts of its upload; "" in a store without.
    """

    transaction_id: str
    pending: str
    target: str
    size_bytes: int | None = None
    parts: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        values: dict[str, JsonValue] = {
            "staged": self.pending,
            "target": self.target,
            "bytes": self.size_bytes,
            "parts": self.parts,
        }
        return {key: value for key, value in values.items() if value not in ("", None)}


DECIDABLE = "files"
"""The key of the files in the handle of a transaction that is pre-committed."""

OPEN = "open"
"""The key of the files in the handle of one that recovery found. Another key, as some of them may be published by then,
and others not found yet: the name alone identifies the transaction."""


def decidable_files(committable: Committable) -> list[FileHandle]:
    """The files in a committable, which came from a log and is input like any other.

    Raises:
        CorruptLog: they are not such as this sink writes. Nothing was touched.
    """
    files = _parsed(committable, DECIDABLE)
    for file in files:
        if not file.target:
            raise corrupt(committable, "target", file.target)
        if file.size_bytes is None:
            raise corrupt(committable, "bytes", file.size_bytes)
    return files


def open_files(committable: Committable) -> list[FileHandle]:
    """The files in a committable, which may be one of ``recover``. Raises CorruptLog as above."""
    return _parsed(committable, OPEN if OPEN in committable.handle else DECIDABLE)


def _parsed(committable: Committable, key: str) -> list[FileHandle]:
    entries = committable.handle.get(key)
    if not isinstance(entries, list) or not entries:
        raise corrupt(committable, key, entries)
    return [_file(committable, entry) for entry in entries]


def _file(committable: Committable, entry: JsonValue) -> FileHandle:
    if not isinstance(entry, dict):
        raise corrupt(committable, DECIDABLE, entry)
    pending, target, parts = entry.get("staged"), entry.get("target", ""), entry.get("parts", "")
    size_bytes = entry.get("bytes")
    if not isinstance(pending, str) or not pending:
        raise corrupt(committable, "staged", pending)
    if not isinstance(target, str) or (target and owner_of_target(target) != committable.transaction_id):
        raise corrupt(committable, "target", target)
    if size_bytes is not None and (not isinstance(size_bytes, int) or isinstance(size_bytes, bool) or size_bytes < 0):
        raise corrupt(committable, "bytes", size_bytes)
    if not isinstance(parts, str):
        raise corrupt(committable, "parts", parts)
    return FileHandle(committable.transaction_id, pending, target, size_bytes, parts)


def pending_name(transaction_id: str, number: int) -> str:
    """Named by the exact id, never a leased one: a file system keeps nothing of a name that is gone."""
    return f".{transaction_id}-{number}.staged"


def owner_of_pending(name: str) -> str | None:
    """The transaction id in the name of a pending file, or None where it is no such name."""
    match = _PENDING.fullmatch(name)
    return match["id"] if match else None


def target_name(transaction_id: TransactionId, number: int, folder: str, extension: str) -> str:
    """``<folder>/part-<batch>-<partition>-<number>-<exact id>.parquet``: sorts by batch, and is unique because the
    exact id is. A line of a log that names the transaction finds the file, and the other way round.
    """
    order = f"{transaction_id.round.batch_id:020d}-{transaction_id.partition:05d}-{number:05d}"
    name = f"part-{order}-{transaction_id.exact}{extension}"
    return f"{folder}/{name}" if folder else name


def owner_of_target(target: str) -> str | None:
    """The transaction id in the path of a target, or None where it is no such path."""
    match = _TARGET.fullmatch(target)
    return match["id"] if match else None


def corrupt(committable: Committable, key: str, value: object) -> CorruptLog:
    """The error to raise for a handle that no sink of files writes."""
    return CorruptLog(
        f"the commit log names {value!r} as {key!r} of transaction {committable.transaction_id!r}, which no"
        " file sink writes. No file was touched. Was the log edited, or is this entry another backend's?"
        " Restore the log, or give the sink the name and the 'path' back that it had."
    )
