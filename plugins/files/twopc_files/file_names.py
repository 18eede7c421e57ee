"""Names of pending and committed files, and their handles in a committable. Only this module builds, parses and checks
them. On disk and in a commit log, a pending file is called ``staged``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.errors import CorruptLog

if TYPE_CHECKING:
    from twopc.transaction import Committable, JsonValue
    from twopc.transactional_ids import TransactionId

PENDING_FOLDER = "_twopc"
"""The folder for pending files. It is below the sink's folder so that a rename between the two is atomic. Spark, Hive
and pyarrow skip folders whose names start with an underscore."""

# The leading dot hides a pending file from readers that include its folder, such as by the pattern <path>/*. The suffix
# hides it from readers of **/*.parquet.
_PENDING = re.compile(r"\.(?P<id>[A-Za-z0-9._-]+)-[0-9]+\.staged")

# The folder for one value of a column, such as day=2024-01-01. It can't be `..` or have a line break.
_PARTITION = r"[^/=\x00-\x1f\x7f\ud800-\udfff]+=[^/\x00-\x1f\x7f\ud800-\udfff]*"
_EXTENSION = r"\.(?:parquet|orc|(?:json|csv|txt)(?:\.(?:gz|zst))?)"
_EXACT_ID = r"[A-Za-z0-9._-]+(?:\.[0-9]+){5}"
_TARGET = re.compile(rf"(?:{_PARTITION}/)*part-[0-9]{{20,}}-[0-9]{{5,}}-[0-9]{{5,}}-(?P<id>{_EXACT_ID}){_EXTENSION}")
"""Matches only names that ``target_name`` builds, and not similar ones such as a copy that ends in ``.bak``."""


@dataclass(frozen=True, slots=True)
class FileHandle:
    """One file in a committable's handle.

    Attributes:
        transaction_id: the transaction that wrote the file.
        pending: its identity in the store before its commit: the name of a pending file, or the id of an upload.
        target: its path below the sink's folder after its commit; "" if recovery found the file without its target.
        size_bytes: its size; None if recovery found the file.
        parts: a digest of its upload's parts; "" in a store without parts.
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
"""The key of the files in the handle of a pre-committed transaction."""

OPEN = "open"
"""The key of the files in the handle of a transaction that recovery found. The key differs from ``DECIDABLE`` because
the list may be incomplete: some files may be published already, and others not found yet. Such a transaction is
identified by its name alone, not by its files."""


def decidable_files(committable: Committable) -> list[FileHandle]:
    """Return the files of a pre-committed transaction. The committable comes from a log, and is checked like any input.

    Raises:
        CorruptLog: the handle can't have been written by a file sink. No file was touched.
    """
    files = _parsed(committable, DECIDABLE)
    for file in files:
        if not file.target:
            raise corrupt(committable, "target", file.target)
        if file.size_bytes is None:
            raise corrupt(committable, "bytes", file.size_bytes)
    return files


def open_files(committable: Committable) -> list[FileHandle]:
    """Return the files in a committable, which may also come from ``recover``. Raises CorruptLog: the handle can't have
    been written by a file sink."""
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
    """Return the name of a pending file. It contains the exact id, which is never used twice: a file system does not
    remember the names of removed files."""
    return f".{transaction_id}-{number}.staged"


def owner_of_pending(name: str) -> str | None:
    """Return the transaction id in the name of a pending file, or None for any other name."""
    match = _PENDING.fullmatch(name)
    return match["id"] if match else None


def target_name(transaction_id: TransactionId, number: int, folder: str, extension: str) -> str:
    """Return ``<folder>/part-<batch>-<partition>-<number>-<exact id>.parquet``.

    The names sort by batch, and are unique because the exact id is. The id leads from a transaction's files to its log
    lines, and back.
    """
    order = f"{transaction_id.round.batch_id:020d}-{transaction_id.partition:05d}-{number:05d}"
    name = f"part-{order}-{transaction_id.exact}{extension}"
    return f"{folder}/{name}" if folder else name


def owner_of_target(target: str) -> str | None:
    """Return the transaction id in a target's path, or None for any other path."""
    match = _TARGET.fullmatch(target)
    return match["id"] if match else None


def corrupt(committable: Committable, key: str, value: object) -> CorruptLog:
    """Return the error to raise for a handle that can't have been written by a file sink."""
    return CorruptLog(
        f"the commit log names {value!r} as {key!r} of transaction {committable.transaction_id!r}, which no"
        " file sink writes. No file was touched. Was the log edited, or is this entry another backend's?"
        " Restore the log, or give the sink the name and the 'path' back that it had."
    )
