"""What ``twopc doctor`` reports of a table."""

from __future__ import annotations

from collections.abc import Iterator

from twopc.checks import CheckResult
from twopc_delta.table import TableView, seconds_of

_RETENTION_OF_FILES = "delta.deletedFileRetentionDuration"
_DEFAULT_RETENTION = "interval 1 week"
_LEAST_RETENTION_S = 7 * 86_400


def checks(view: TableView) -> Iterator[CheckResult]:
    """Yield what could lose records later, although a batch can be written."""
    given = view.configuration.get(_RETENTION_OF_FILES, _DEFAULT_RETENTION)
    retention_s = seconds_of(given)
    what = f"age at which VACUUM removes files: {given.removeprefix('interval ')}"
    if retention_s is not None and retention_s >= _LEAST_RETENTION_S:
        yield CheckResult.passed(what)
    else:
        yield CheckResult.warned(
            what,
            "Files of a decided batch are in no version of the table until its commit. If the query is down for longer"
            f" than that, VACUUM removes them, and the batch is lost. Set {_RETENTION_OF_FILES} to 7 days or more.",
        )
