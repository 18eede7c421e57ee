"""The checks of ``twopc doctor`` for a table."""

from __future__ import annotations

from collections.abc import Iterator

from twopc.checks import CheckResult
from twopc_delta.entry import Entry
from twopc_delta.log_files import LogFiles
from twopc_delta.storage import Storage
from twopc_delta.table import TableView, seconds_of

_RETENTION_OF_FILES = "delta.deletedFileRetentionDuration"
_DEFAULT_RETENTION = "interval 1 week"
_LEAST_RETENTION_S = 7 * 86_400

_SPARK = "Apache-Spark/"
_ENTRIES_LOOKED_AT = 20
_OF_AN_OPERATOR = ("CREATE TABLE", "CREATE OR REPLACE TABLE", "SET TBLPROPERTIES", "UPGRADE PROTOCOL", "ADD COLUMNS")
"""Changes that Spark makes to a table before a query starts, rather than while it runs."""


def checks(view: TableView, storage: Storage) -> Iterator[CheckResult]:
    """Yield what could lose records later, although a batch can be written."""
    yield _retention(view)
    check = f"versions written by Spark, of the newest {_ENTRIES_LOOKED_AT}"
    if (found := _of_spark(view.version, storage)) is not None:
        yield CheckResult.warning(
            check,
            f"version {found}. {_beside_spark(storage)} So Spark could replace a version of this sink, whose batch"
            " would be lost",
            "let Spark write to the table only while the query is stopped",
        )
    else:
        yield CheckResult.passed(check, "none")


def _retention(view: TableView) -> CheckResult:
    given = view.configuration.get(_RETENTION_OF_FILES, _DEFAULT_RETENTION)
    retention_s = seconds_of(given)
    check, age = "age at which VACUUM removes files", given.removeprefix("interval ")
    if retention_s is not None and retention_s >= _LEAST_RETENTION_S:
        return CheckResult.passed(check, age)
    return CheckResult.warning(
        check,
        f"{age}: the files of a decided batch are in no version of the table until its commit, so if the query is down"
        " for longer, VACUUM removes them and the batch is lost",
        f"set {_RETENTION_OF_FILES} to 7 days or more",
    )


def _of_spark(newest: int, storage: Storage) -> int | None:
    """Return the newest version that Spark has written, of the newest few; None if it has written none of these."""
    versions = range(newest, max(-1, newest - _ENTRIES_LOOKED_AT), -1)
    for version, data in zip(versions, storage.at_once(LogFiles(storage).entry, versions), strict=True):
        if data is None:
            continue
        try:
            entry = Entry.of(data)
        except ValueError:  # behind a checkpoint, as the table can be read
            continue
        if entry.engine.startswith(_SPARK) and entry.operation not in _OF_AN_OPERATOR:
            return version
    return None


def _beside_spark(storage: Storage) -> str:
    if storage.is_local:
        return (
            "On a disk, Spark looks whether a version exists, and then renames its entry over it. Only writers in one"
            " Java process take turns."
        )
    return "Spark's log stores for S3 do not ask the store to refuse a version that exists."
