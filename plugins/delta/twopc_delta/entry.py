"""The entry of one batch in a table's log, as Delta's protocol has it. It makes no request."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from urllib.parse import quote

import orjson

from twopc_delta.notes import AddedFile


def entry_of(files: Iterable[AddedFile], partition_by: Sequence[str], mark: str, batch_id: int) -> bytes:
    """Return an entry that adds ``files``, and marks the batch as committed."""
    # The time decides nothing here. Should the table forget marks one day, Spark forgets those without at once.
    now_ms = int(time.time() * 1000)
    info = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": json.dumps([*partition_by])},
        "isBlindAppend": True,  # other writers then need not compare it with what they have read
        "engineInfo": "twopc-delta",
    }
    txn = {"appId": mark, "version": batch_id, "lastUpdated": now_ms}
    lines = [orjson.dumps({"commitInfo": info}), orjson.dumps({"txn": txn})]
    lines += [orjson.dumps({"add": _added(file)}) for file in files]
    return b"\n".join(lines)


def _added(file: AddedFile) -> dict[str, object]:
    return {
        "path": quote(file.path, safe="/="),
        "partitionValues": file.partition_values,
        "size": file.size_bytes,
        "modificationTime": file.modified_ms,
        "dataChange": True,
        "stats": file.stats,
    }


def changes_table(entry: bytes) -> bool:
    """Whether an entry, of whichever writer, has more than files and marks: another schema, property or feature."""
    return b'"metaData"' in entry or b'"protocol"' in entry


def is_unique(entry: bytes) -> bool:
    """Whether no other table has an entry like this one: it adds files, whose names are never used twice."""
    return b'"add"' in entry


def mark_in(entry: bytes, mark: str) -> int | None:
    """Return the batch that an entry, of whichever writer, has under ``mark``; None if it has none."""
    lines = (line for line in entry.splitlines() if b'"txn"' in line)
    marks = (orjson.loads(line).get("txn") for line in lines)
    return next((int(each["version"]) for each in marks if each and each["appId"] == mark), None)
