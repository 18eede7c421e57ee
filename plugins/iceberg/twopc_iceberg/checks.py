"""The checks of ``twopc doctor``: table settings that slow commits down or lose uncommitted batches."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.table.snapshots import Operation, ancestors_of

from twopc.checks import CheckResult
from twopc_iceberg.files import DurableFileIO
from twopc_iceberg.manifests import ManifestLists, entries
from twopc_iceberg.notes import FOLDER
from twopc_iceberg.options import POSITION
from twopc_iceberg.support import require_honest

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from twopc_iceberg.options import IcebergOptions

MANY_SNAPSHOTS = 200
"""More snapshots than this draw a warning, because each commit writes the list of all snapshots, and also reads the
list if the catalog is a REST catalog."""

MANY_DELETE_FILES = 100
"""More equality delete files than this draw a warning, because readers open each file that may apply to a data file.
Position delete files do not count: each data file has only one."""

_CHANGING = (Operation.OVERWRITE, Operation.DELETE)

_DELETES_METADATA = "write.metadata.delete-after-commit.enabled"


def examine(table: Table, options: IcebergOptions, io: DurableFileIO) -> Iterator[CheckResult]:
    """Yield the result of each check. The sink must support the table."""
    metadata = table.metadata
    columns = ", ".join(metadata.schema().column_names)
    yield CheckResult.passed(f"{options}: existence", f"format version {metadata.format_version}, columns {columns}")
    yield CheckResult.of("requirements of commits in the catalog", lambda: require_honest(table, options))
    yield CheckResult.of("trial file of the table", lambda: _try_files(io, metadata.location))
    check, kept = "snapshots that the table keeps", str(len(metadata.snapshots))
    if len(metadata.snapshots) > MANY_SNAPSHOTS:
        yield CheckResult.warning(
            check,
            f"{kept}: each makes every commit a little slower",
            "run expire_snapshots regularly; it removes no visible record",
        )
    else:
        yield CheckResult.passed(check, kept)
    yield from _delete_files(table, options, io)
    if options.upsert_by:
        yield from _changing_rows(metadata, options)
    deletes = metadata.properties.get(_DELETES_METADATA, "false")
    if deletes == "true":
        yield CheckResult.passed(_DELETES_METADATA, deletes)
    else:
        left = f"{deletes}: each batch leaves a metadata file, and none is removed"
        yield CheckResult.warning(_DELETES_METADATA, left, "set it to true")


def _delete_files(table: Table, options: IcebergOptions, io: DurableFileIO) -> Iterator[CheckResult]:
    """Yield a check of the branch's delete files, if it has any."""
    snapshot = table.metadata.snapshot_by_name(options.branch)
    of_deletes = [each for each in ManifestLists().live(io, snapshot) if each.content is ManifestContent.DELETES]
    found = [entry.data_file.content for each in of_deletes for entry in entries(io, each)]
    of_keys = found.count(DataFileContent.EQUALITY_DELETES)
    check, kept = "delete files that the table keeps", f"{of_keys} of keys, {len(found) - of_keys} of positions"
    if of_keys > MANY_DELETE_FILES:
        yield CheckResult.warning(
            check,
            f"{kept}: readers open each one of keys that may apply to a file they read",
            "run Spark's rewrite_data_files with rewrite-all=true regularly, without remove-dangling-deletes",
        )
    elif found:
        yield CheckResult.passed(check, kept)


def _changing_rows(metadata: TableMetadata, options: IcebergOptions) -> Iterator[CheckResult]:
    """Warn if the branch contains rows, but no snapshot has changed or deleted rows yet. A Spark query that streams
    from it would stop at the first snapshot that changes rows."""
    snapshot = metadata.snapshot_by_name(options.branch)
    if snapshot is None or snapshot.summary is None or snapshot.summary["total-records"] in (None, "0"):
        return
    kept = [each.summary.operation for each in ancestors_of(snapshot, metadata) if each.summary]
    check, changing = "snapshots that replace or delete rows", sum(each in _CHANGING for each in kept)
    if changing or snapshot.summary["total-delete-files"] not in (None, "0"):
        yield CheckResult.passed(check, str(changing))
        return
    first = "the first such one" if options.deletes == POSITION else "the next batch"
    yield CheckResult.warning(
        check,
        f"none: if Spark streams from the table, that query stops at {first}",
        "let it read a topic of the changes, or set streaming-skip-overwrite-snapshots and"
        " streaming-skip-delete-snapshots, which skip all rows of such a batch",
    )


def _try_files(io: DurableFileIO, location: str) -> None:
    folder, name = f"{location.rstrip('/')}/{FOLDER}", f"{uuid.uuid4().hex}.probe"
    try:
        io.write(f"{folder}/{name}", name.encode())
        if name not in io.names_in(folder):
            raise FileNotFoundError(f"{folder} does not list a file that was just written")
        if io.read(f"{folder}/{name}") != name.encode():
            raise OSError(
                f"{folder} keeps other bytes than were written, such as the framing of requests: see whether the store"
                " takes aws-chunked requests, and whether a proxy changes them"
            )
    finally:
        io.remove([f"{folder}/{name}"])
