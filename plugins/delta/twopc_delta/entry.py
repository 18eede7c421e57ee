"""Builds the log entry of a batch, and parses entries of any writer, by Delta's protocol. No I/O."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from twopc_delta.notes import AddedFile


def entry_of(
    files: Iterable[AddedFile],
    partition_by: Sequence[str],
    mark: str,
    batch_id: int,
    key: Sequence[str] = (),
    changes: Iterable[Mapping[str, Any]] = (),
) -> bytes:
    """Return an entry that adds ``files`` and marks the batch as committed.

    Args:
        files: the files with the batch's records.
        partition_by: the table's partition columns.
        mark: the name of the sink's mark.
        batch_id: the batch's id.
        key: the columns by which records replace others; empty for an append.
        changes: the actions that delete the rows with the batch's keys.
    """
    # twopc does not use the time. But should the table ever expire marks, Spark expires those without a time at once.
    now_ms = int(time.time() * 1000)
    append = {"mode": "Append", "partitionBy": json.dumps([*partition_by])}
    info = {
        "timestamp": now_ms,
        "operation": "MERGE" if key else "WRITE",
        "operationParameters": {"predicate": json.dumps([*key])} if key else append,
        "isBlindAppend": not key,  # other writers need not check an append against what they have read
        "engineInfo": "twopc-delta",
    }
    txn = {"appId": mark, "version": batch_id, "lastUpdated": now_ms}
    lines = [orjson.dumps({"commitInfo": info}), orjson.dumps({"txn": txn})]
    lines += [orjson.dumps({"add": _added(file)}) for file in files]
    lines += map(orjson.dumps, changes)
    return b"\n".join(lines)


_SAFE_IN_PATHS = "/=+:,@!~&'$();"
"""Characters that delta-rs does not encode in the paths of files that it removes. Encoded paths are compared, so a file
that was added with another encoding would stay in the table."""


def _added(file: AddedFile) -> dict[str, object]:
    return {
        "path": quote(file.path, safe=_SAFE_IN_PATHS),
        "partitionValues": file.partition_values,
        "size": file.size_bytes,
        "modificationTime": file.modified_ms,
        "dataChange": True,
        "stats": file.stats,
    }


@dataclass(frozen=True, slots=True)
class Entry:
    """The facts that the sink needs from an entry of any writer.

    Attributes:
        changes_table: whether it changes the table's schema, properties or features.
        adds_files: whether it adds files. If so, no other table has the same entry, since file names are unique.
        changes_rows: whether it removes or replaces rows.
        marks: application id → version, from the ``txn`` actions.
        operation: the operation named by its writer; empty if it named none.
        engine: the name of its writer; empty if it gave none.
    """

    changes_table: bool
    adds_files: bool
    changes_rows: bool
    marks: Mapping[str, int]
    operation: str
    engine: str

    @classmethod
    def of(cls, data: bytes) -> Entry:
        """Parse an entry. Skips unknown actions, as Delta's protocol requires.

        Raises:
            ValueError: the entry is torn, or invalid to readers.
        """
        names, marks, info, changes_rows = set[str](), dict[str, int](), dict[str, Any](), False
        for number, line in enumerate(data.splitlines(), 1):
            if not line.strip():
                continue
            try:
                action = _action(line)
                names.update(action)
                if txn := action.get("txn"):
                    marks.setdefault(str(txn["appId"]), int(txn["version"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"line {number} has {len(line)} bytes and is no action: {error!r}") from None
            if isinstance(given := action.get("commitInfo"), dict):  # readers accept any value
                info = given
            if isinstance(given := action.get("remove"), dict):
                changes_rows |= bool(given.get("dataChange"))
        engine, operation = str(info.get("engineInfo") or ""), str(info.get("operation") or "")
        changes_table = not names.isdisjoint(("metaData", "protocol"))
        return cls(changes_table, "add" in names, changes_rows, marks, operation, engine)


def _action(line: bytes) -> dict[str, Any]:
    action = orjson.loads(line)
    if not isinstance(action, dict):
        raise TypeError("no object")
    return {name: value for name, value in action.items() if value is not None}
