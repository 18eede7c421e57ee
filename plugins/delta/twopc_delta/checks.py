"""The health checks that ``twopc doctor`` runs on a table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

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
"""Operations by Spark that prepare a table before a query starts."""


def checks(view: TableView, storage: Storage, *, is_keyed: bool) -> Iterator[CheckResult]:
    """Yield checks for conditions that permit writes but may later lose records or stop readers."""
    yield _retention(view)
    newest = _newest(view.version, storage)
    yield _written_by_spark(newest, storage)
    if is_keyed and any(entry.adds_files for entry in newest.values()):
        yield _changing_rows(newest)


def _written_by_spark(newest: Mapping[int, Entry], storage: Storage) -> CheckResult:
    check = f"versions written by Spark, of the newest {_ENTRIES_LOOKED_AT}"
    for version, entry in newest.items():
        if not entry.engine.startswith(_SPARK) or entry.operation in _OF_AN_OPERATOR:
            continue
        return CheckResult.warning(
            check,
            f"version {version}. {_beside_spark(storage)} So Spark could replace a version of this sink, whose batch"
            " would be lost",
            "let Spark write to the table only while the query is stopped",
        )
    return CheckResult.passed(check, "none")


def _changing_rows(newest: Mapping[int, Entry]) -> CheckResult:
    check = f"versions that replace or delete rows, of the newest {_ENTRIES_LOOKED_AT}"
    if found := [version for version, entry in newest.items() if entry.changes_rows]:
        return CheckResult.passed(check, f"version {found[0]}")
    return CheckResult.warning(
        check,
        "none: if Spark streams from the table, that query stops at the first such version",
        "let it read a topic of the changes, or set skipChangeCommits, which skips all rows of such a version",
    )


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


def _newest(newest: int, storage: Storage) -> dict[int, Entry]:
    """Return the entries of the newest few versions, newest first. Missing and damaged entries are skipped. The table
    can be read, so a checkpoint covers them."""
    found = dict[int, Entry]()
    versions = range(newest, max(-1, newest - _ENTRIES_LOOKED_AT), -1)
    for version, data in zip(versions, storage.at_once(LogFiles(storage).entry, versions), strict=True):
        if data is not None:
            with contextlib.suppress(ValueError):
                found[version] = Entry.of(data)
    return found


def _beside_spark(storage: Storage) -> str:
    if storage.store is None:
        return (
            "On a disk, Spark looks whether a version exists, and then renames its entry over it. Only writers in one"
            " Java process take turns."
        )
    return storage.store.beside_spark
