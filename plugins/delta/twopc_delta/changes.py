"""Commits keyed changes: finds the rows of one version of the table that a batch replaces or deletes.

Tasks write the new records and the keys of deletes before the decision. The commit reads the key's columns of the
table's files, and marks the rows that it finds in deletion vectors, so that no file is rewritten. The result is valid
only for the version that the entry follows. If another writer was faster, the search runs again.
"""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types
from pyroaring import BitMap64

from twopc.columns import require_key_columns
from twopc.errors import ConfigurationError, Retriable
from twopc.keyed import ROWS_AT_ONCE, Part, find_rows, in_shares
from twopc_delta import vectors
from twopc_delta.log_files import LogFiles
from twopc_delta.storage import Storage
from twopc_delta.table import TableView

_FIELDS = ("path", "partitionValues", "size", "modificationTime", "stats", "tags", "clusteringProvider")

_KEY_TYPES = (
    *(types.is_signed_integer, types.is_string, types.is_decimal, types.is_date32),
    *(types.is_boolean, types.is_binary, types.is_timestamp),
)


def require_key(view: TableView, key: Sequence[str], what: str) -> None:
    """Check that the table's rows can be replaced by key.

    Raises:
        ConfigurationError: the table lacks a key column; a key column is a partition column, or has a type that the
            sink can't compare; or a property of the table prevents replacing rows.
    """
    require_key_columns(key, view.schema.names, what)
    for name in key:
        found = view.schema.field(name).type
        if name in view.partition_by or not any(is_type(found) for is_type in _KEY_TYPES):
            why = "is a partition column" if name in view.partition_by else f"has the type {found}"
            raise ConfigurationError(
                f"column {name!r} of {what}, which 'upsert_by' names, {why}. Use other columns, of integers, text,"
                " decimals, dates, timestamps, booleans or bytes.",
                option="upsert_by",
            )
    if in_the_way := obstacle(view):
        raise ConfigurationError(f"the delta sink can't replace rows of {what}: {in_the_way}. Nothing was written.")


def obstacle(view: TableView) -> str | None:
    """Return why rows of the table can't be replaced, with the statement that fixes it; None if they can."""
    given = view.configuration

    def is_true(name: str) -> bool:
        return given.get(name, "false").lower() == "true"

    set_to = "ALTER TABLE … SET TBLPROPERTIES"
    if is_true("delta.appendOnly"):
        return f"it is append-only. Change it: {set_to} ('delta.appendOnly' = 'false')"
    if is_true("delta.enableChangeDataFeed"):
        why = "it has a change data feed, for which the sink writes no files"
        return f"{why}. End it: {set_to} ('delta.enableChangeDataFeed' = 'false')"
    if not is_true("delta.enableDeletionVectors"):
        return f"it has no deletion vectors. Add them: {set_to} ('delta.enableDeletionVectors' = 'true')"
    return None


def require_own_files(files: LogFiles, version: int, what: str) -> None:
    """Check that all files and deletion vectors of the table are in its folder, where the commit can read them.

    Raises:
        ConfigurationError: a file is outside the folder, as in a shallow clone.
        Retriable: the log changed during the check.
    """
    try:
        live = live_files(files, version)
    except (FileExistsError, ValueError) as error:
        raise Retriable(f"the log of {what} was changed while it was read: {error}") from None
    for file in live:
        has_place = ":" in file.path.partition("/")[0] or file.path.startswith("/")
        if has_place or (file.vector or {}).get("storageType") == "p":
            raise ConfigurationError(
                f"{what} has file {file.path}, which is outside of its folder, as in a shallow clone. The delta sink"
                " can't replace rows there. Make a copy: CREATE TABLE … AS SELECT."
            )


# The files of a version. --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file in a version of the table.

    Attributes:
        action: its ``add`` action in the log.
    """

    action: Mapping[str, Any]

    @property
    def path(self) -> str:
        """The file's path, relative to the table's folder."""
        return unquote(self.action["path"])

    @property
    def vector(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.action.get("deletionVector")
        return found

    def without(self, rows: BitMap64, total: int, vector: Mapping[str, Any], now_ms: int) -> list[dict[str, Any]]:
        """Return the actions that delete more rows of the file.

        Args:
            rows: all deleted rows, including those deleted before.
            total: the number of rows in the file.
            vector: the descriptor of a deletion vector with ``rows``.
            now_ms: the current time, in milliseconds since 1970.
        """
        gone = {
            "path": self.action["path"],
            "deletionTimestamp": now_ms,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": self.action["partitionValues"],
            "size": self.action["size"],
        }
        if self.vector is not None:
            gone["deletionVector"] = self.vector
        if len(rows) == total:
            return [{"remove": gone}]
        added = {name: self.action[name] for name in _FIELDS if self.action.get(name) is not None}
        added |= {"dataChange": True, "stats": _not_tight(self.action.get("stats"), total), "deletionVector": vector}
        return [{"remove": gone}, {"add": added}]


def _not_tight(stats: str | None, total: int) -> str:
    """Return a file's statistics, marked as not tight, because a bound may be a deleted value. Numbers keep their
    spelling. If another writer's statistics can't be parsed, the bounds are dropped, so that they can't hold up a
    decided batch."""
    try:
        found = json.loads(stats or "{}", strict=False, parse_float=orjson.Fragment, parse_int=orjson.Fragment)
        return orjson.dumps({"numRecords": total, **found, "tightBounds": False}).decode()
    except (ValueError, TypeError):
        return orjson.dumps({"numRecords": total, "tightBounds": False}).decode()


def _key_of(action: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key that identifies a file within a version, as defined by Delta's protocol."""
    vector = action.get("deletionVector") or {}
    parts = (vector.get(name) for name in ("storageType", "pathOrInlineDv", "offset"))
    # Writers encode paths differently: delta-rs removes %C3%BC where Spark has added ü.
    return unquote(action["path"]), "" if not vector else "@".join(map(str, parts))


def live_files(files: LogFiles, version: int) -> list[LiveFile]:
    """Return the data files of a version of the table.

    Raises:
        FileExistsError: the log has a newer version.
        ValueError: an entry or the checkpoint is missing or can't be read.
    """
    versions, checkpoint = files.after_checkpoint()
    newest = max(versions, default=checkpoint)
    if newest > version:
        raise FileExistsError(f"version {newest}")
    if newest < version or len(versions) != newest - checkpoint:
        raise ValueError(f"its log lacks entries up to version {version}")
    seen, live = set[tuple[str, str]](), list[LiveFile]()

    def take(added: Iterable[Mapping[str, Any]], removed: Iterable[Mapping[str, Any]] = ()) -> None:
        new = [LiveFile(action) for action in added if _key_of(action) not in seen]
        live.extend(new)
        seen.update(_key_of(each.action) for each in new)
        seen.update(map(_key_of, removed))

    for number in versions:
        data = files.entry(number)
        if data is None:
            raise ValueError(f"its log has no version {number}")
        actions = [orjson.loads(line) for line in data.splitlines() if line.strip()]
        take(_only("add", actions), _only("remove", actions))
    if checkpoint >= 0:
        take(files.added_by_checkpoint(checkpoint))
    return live


def _only(kind: str, actions: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [action[kind] for action in actions if action.get(kind)]


# The rows of a batch's keys. ------------------------------------------------------------------------------------


class Keys:
    """The keys of a batch.

    Args:
        columns: the key's columns, with the table's types.
        files: the paths of the batch's files, from which the keys are read.
        storage: the table's folder.
    """

    def __init__(self, columns: pa.Schema, files: Iterable[str], storage: Storage) -> None:
        self._columns = columns
        self._storage = storage
        self._keys = pa.Table.from_batches([part for path in files for part in self._parts(path)], columns)
        self._ascending = _ascending(self._keys.column(0))

    def _parts(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield the key's columns of a file in chunks. A file that is older than one of these columns yields
        nothing."""
        names = self._columns.names
        try:
            with self._storage.meaning(), self._storage.open(path) as source:
                file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
                if {*names} <= {*file.schema_arrow.names}:
                    for part in file.iter_batches(ROWS_AT_ONCE, columns=names):
                        # Arrow reads a name as a path: "a.b" also selects the field b of a column "a".
                        yield part.select(names).cast(self._columns)
        except FileNotFoundError:
            raise ValueError(f"file {path} is gone") from None

    def rows_of(self, files: Sequence[LiveFile], given_up: threading.Event) -> list[tuple[LiveFile, BitMap64, int]]:
        """Find the rows with these keys. Return each file that contains such rows, with their positions and the file's
        total number of rows.

        Raises:
            ValueError: a file can't be read. Errors of the store pass through.
        """
        found, totals = defaultdict[int, BitMap64](BitMap64), defaultdict[int, int](int)
        any_key = pa.repeat(pa.scalar(True), self._keys.num_rows)

        def parts() -> Iterator[Part[int]]:
            for number, file in enumerate(files):
                if not self._is_outside(file.action.get("stats")):
                    for part in self._parts(file.path):
                        yield Part(number, totals[number], part.columns, any_key)
                        totals[number] += part.num_rows

        for number, positions in find_rows(self._keys, parts(), given_up):
            found[number] |= BitMap64(positions)
        return [(files[number], rows, totals[number]) for number, rows in found.items()]

    def _is_outside(self, stats: str | None) -> bool:
        """Return whether a file's statistics show that the file contains none of the keys."""
        if self._ascending is None or not stats:
            return False
        try:
            known = orjson.loads(stats)
            least, most = (known[bound][self._columns.names[0]] for bound in ("minValues", "maxValues"))
        except (ValueError, KeyError, TypeError):
            return False
        if not isinstance(least, int) or not isinstance(most, int):
            return False
        at = bisect_left(self._ascending, least, key=lambda each: each.as_py())
        return at == len(self._ascending) or bool(self._ascending[at].as_py() > most)


def _ascending(column: pa.ChunkedArray) -> pa.Array | None:
    """Return integer keys in ascending order; None for other types, whose statistics may be inexact."""
    return column.combine_chunks().sort() if types.is_signed_integer(column.type) else None


def actions_of(storage: Storage, keys: Keys, live: Sequence[LiveFile], now_ms: int) -> Iterator[dict[str, Any]]:
    """Write a file of deletion vectors for the rows with these keys, and yield the actions that delete the rows from
    the files of a version.

    Raises:
        ValueError: a file or a deletion vector of the table can't be read.
    """
    touched: dict[str, tuple[LiveFile, BitMap64, int]] = {}
    found = itertools.chain.from_iterable(in_shares(keys.rows_of, live, storage.is_local))
    for file, rows, total in found:
        before = vectors.read(storage, file.vector) if file.vector is not None else BitMap64()
        if rows - before:
            touched[file.path] = file, rows | before, total
    if not touched:
        return
    name = uuid.uuid4()
    content, descriptors = vectors.file_of({path: rows for path, (_, rows, _) in touched.items()}, name)
    storage.write(vectors.path_of(name), content)
    for path, (file, rows, total) in touched.items():
        yield from file.without(rows, total, descriptors[path], now_ms)
