"""Classifies delta-rs's errors, and builds the error for each state of a table that a batch can't be committed to. No
I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from deltalake.exceptions import DeltaError, TableNotFoundError

from twopc.errors import (
    ConfigurationError,
    LogMismatch,
    OperatorRequired,
    OutcomeUnknown,
    Retriable,
    RoundAborted,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc.failures import lost_batches, mapped
from twopc.stores.errors import DISK_AWAY, TEMPORARY, Unusable, is_untrusted
from twopc_delta.receipts import Receipt
from twopc_delta.storage import Storage

FAILURES = (DeltaError, OSError)
"""Errors from delta-rs and from access to a table's files."""

_COLORS = re.compile(r"\x1b\[[0-9;]*m|↳|(?<=\s)0: <unknown>.*", re.DOTALL)
"""delta-rs's terminal formatting and call stack."""

_REFUSED = re.compile(
    r"permission ?denied|access ?denied|forbidden|\b403\b|read-only file system|invalidaccesskeyid"
    r"|signaturedoesnotmatch|expiredtoken|xadminusernotfound|unsafe_rename|nosuchbucket|containernotfound|keytoolong"
    r"|lacked valid|invalidtoken|tokenrefreshrequired|authorizationheadermalformed",
    re.IGNORECASE,
)
"""delta-rs reports these refusals only as text. xadminusernotfound: versitygw does not know the key."""

_UNREADABLE = re.compile(
    r"invalid protocol action|schema error|json error|not supported|unsupported|unknown .*feature",
    re.IGNORECASE,
)
"""Error texts for a table that delta-rs will never be able to read. It reports some of these errors as failures of the
store."""

_NO_ANSWER = re.compile(
    r"timed? ?out|timeout|connect|connection|broken pipe|dns error|incomplete|disconnected|end of file before"
    r"|slow ?down|internal ?error|service ?unavailable|too many requests|operationaborted|\b(408|429|50[02-9])\b"
    r"|nosuchupload|invalidpart\b",
    re.IGNORECASE,
)
"""Error texts of delta-rs and S3's client for a store that does not respond, is busy, or has lost the parts of an
upload. The next attempt begins a new upload."""

_NO_CONNECTION = re.compile(r"timed? ?out|connection (refused|reset|closed)|broken pipe|dns error", re.IGNORECASE)
"""Texts for a missing response, in errors that delta-rs does not report as the store's. This pattern is narrower than
``_NO_ANSWER``, because such an error may also be about the log's content."""

_BODY = re.compile(r"<.*>")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_PLACE = re.compile(r"\S*/\S*")
"""Parts of an error's text: the body of a server's response, S3's code in it, and a URL or path."""


@dataclass(frozen=True)
class Failure:
    """A failed request.

    Attributes:
        error: the error as raised.
        text: its text on one line, without secrets.
        words: the text by which the error is classified, without URLs and paths. A server's response is reduced to S3's
            code.
    """

    error: Exception
    text: str
    words: str

    @property
    def is_refusal(self) -> bool:
        """Whether the store refuses. A retry fails in the same way until an operator changes something."""
        return (
            isinstance(self.error, PermissionError)
            or is_untrusted(self.error)
            or _REFUSED.search(self.words) is not None
        )

    @property
    def is_temporary(self) -> bool:
        """Whether the store did not respond, but may respond to the next request. Unknown errors are not temporary."""
        if self.is_refusal or isinstance(self.error, TableNotFoundError):
            return False
        if not isinstance(self.error, OSError):
            return _NO_CONNECTION.search(self.words) is not None
        if _NO_ANSWER.search(self.words) is not None:
            return True
        if getattr(self.error.__cause__, "response", None) is None:
            return self.error.errno in TEMPORARY | DISK_AWAY  # the next look shows whether the table exists
        from twopc.stores.s3 import translate  # needs S3's client, which raised this

        return translate(self.error).errno in TEMPORARY  # s3fs maps unknown codes of S3 to a disk's errno

    @property
    def is_of_content(self) -> bool:
        """Whether delta-rs has fetched the log but can't read it."""
        is_of_store = isinstance(self.error, OSError | TableNotFoundError)
        return not is_of_store or _UNREADABLE.search(self.words) is not None

    @classmethod
    def of(cls, error: Exception, storage: Storage) -> Failure:
        """Return the failure for an error that a request for the table in ``storage`` has raised."""
        told = " ".join(_COLORS.sub("", str(error)).split()) or type(error).__name__
        codes = _BODY.sub(lambda body: " ".join(_CODE.findall(body[0])), told.replace(storage.path, "/"))
        return cls(error, storage.without_secrets(told), _PLACE.sub(" ", codes))


def look_failed(failure: Failure, what: str, is_decided: bool) -> TwoPhaseCommitError:
    """Return the error for a table that could not be read."""
    text = failure.text
    if isinstance(failure.error, TableNotFoundError):
        if is_decided:
            return OutcomeUnknown(
                f"{what}: there is no Delta table any more, so whether the batch was committed is not known: {text}."
                " Was the table dropped, is its disk not mounted, or was 'path' changed? Bring it back and start again;"
                " or create another one, and give the batch up with 'twopc abandon'."
            )
        return ConfigurationError(
            f"{what}: there is no Delta table: {text}. Create it, such as with CREATE TABLE … USING delta; the sink"
            " creates none. Nothing was written."
        )
    if failure.is_temporary:
        return Retriable(f"{what}: no answer: {text}")
    kind = OperatorRequired if is_decided else ConfigurationError
    if failure.is_of_content:
        return kind(f"{what}: delta-rs can't read the table: {text}. Nothing was written.")
    return kind(f"{what}: the store refuses: {text}. Correct the rights or 'storage_options', and start again.")


def looking(storage: Storage, what: str, is_decided: bool) -> AbstractContextManager[None]:
    """Return a context manager for requests for a table. It raises the error of ``look_failed`` instead of the original
    error, which may show credentials."""
    return mapped(FAILURES, lambda error: look_failed(Failure.of(error, storage), what, is_decided), hides_cause=True)


def put_refused(failure: Failure, what: str, advice: str = "") -> ConfigurationError | Retriable:
    """Return the error for a store that failed the trial of put-if-absent and of listings."""
    if failure.is_temporary and not isinstance(failure.error, Unusable):
        return Retriable(f"{what}: no answer: {failure.text}")
    return ConfigurationError(
        f"{what} is in a store that the sink can't use: {failure.text}. Nothing was written.{advice}"
    )


def commit_failed(failure: Failure, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed commit of the batch ``what``, after a look has shown that the batch is not in the
    table."""
    text = failure.text
    if failure.is_temporary:
        return Retriable(f"{what} is decided and not committed yet: {text}")
    return OperatorRequired(
        f"{what} is decided and not committed: the store refuses: {text}. Its files are safe. Correct the rights or"
        " 'storage_options', and start again, which repeats the commit."
    )


def not_synced(what: str, why: str) -> OperatorRequired:
    """Return the error for a committed batch that may not survive a power cut."""
    return OperatorRequired(
        f"{what} is in the table's log, and may not survive a power cut: its disk has failed to sync: {why}. Look at"
        " the disk, then start again, which syncs the log anew."
    )


def invalid_entry(what: str, version: int, why: str, is_decided: bool) -> OperatorRequired | ConfigurationError:
    """Return the error for a log with an entry that readers can't parse."""
    kind = OperatorRequired if is_decided else ConfigurationError
    return kind(
        f"{what}: version {version} of the table's log can't be read: {why}. Another writer was cut off, or the table"
        " was replaced or restored in part. Nothing was written, and readers do not get past this version. Put the"
        f" entries of the log back from a copy; or remove {version:020d}.json if it is the newest one and what it adds"
        " is not needed. Then start again."
    )


def damaged_checkpoint(
    what: str, damaged: Mapping[str, str], is_complete: bool, is_decided: bool
) -> OperatorRequired | ConfigurationError:
    """Return the error for a log whose newest checkpoint can't be read."""
    kind = OperatorRequired if is_decided else ConfigurationError
    files = "; ".join(f"{name}: {why}" for name, why in damaged.items())
    how = (
        f"Remove {' and '.join(damaged)}: the log has all that readers need without"
        if is_complete
        else "Put the files back from a copy: older entries of the log were removed, and only the checkpoint has them"
    )
    return kind(
        f"{what}: the newest checkpoint in the table's _delta_log can't be read: {files}. Nothing was written. {how}."
        " Then start again."
    )


def into_another_table(what: str, sealed: str, found: str) -> OutcomeUnknown:
    """Return the error for a decided batch that was committed to another table, which had just replaced the batch's
    own."""
    return OutcomeUnknown(
        f"{what} is decided for the table with the id {sealed}. The table there now has the id {found} and this batch's"
        " mark: while the batch was committed, another table of the same version took the place of its own. So one"
        " version of the new table names the batch's files, which may be gone. Find it by 'twopc-delta' in the table's"
        " history, and restore the version before it. If the batch is to be in the new table, write its records by"
        " other means; then give it up with 'twopc abandon'."
    )


def perhaps_into_another_table(what: str, sealed: str, found: str) -> OutcomeUnknown:
    """Return the error for a decided batch if the table has another id now, and its log lacks the entry that would show
    whether it is still the same table."""
    return OutcomeUnknown(
        f"{what} is decided for the table with the id {sealed}. The table there now has the id {found} and this batch's"
        " mark, and its log does not show whether it is the same one. Either the batch was committed, and CREATE OR"
        " REPLACE came later: then it is done. Or another table had taken the place of its own: then a version of the"
        " new table names the batch's files, which may be gone. Find it by 'twopc-delta' in the table's history, and"
        " see whether the versions before it are those of the old table. Then give the batch up with 'twopc abandon'."
    )


def another_table(what: str, sealed: str, found: str) -> OutcomeUnknown:
    """Return the error for a decided batch whose table was replaced by another table at the same location."""
    return OutcomeUnknown(
        f"{what} is decided for the table with the id {sealed}, and the table there now has the id {found}: it was"
        " dropped and made again. Nothing was written to it. If the batch is to be in the new table, write its records"
        " by other means; then give it up with 'twopc abandon'."
    )


def mark_fell_back(what: str, sealed: int, found: int | None) -> OutcomeUnknown:
    """Return the error for a table whose mark is older than it was when the batch was decided."""
    return OutcomeUnknown(
        f"{what} is decided, and the table's newest batch of this sink was {sealed} by then and is"
        f" {'none' if found is None else found} now: the table was restored from a copy, or it forgets marks"
        " (delta.setTransactionRetentionDuration). See whether the batch's records are in the table; then give it up"
        " with 'twopc abandon'."
    )


def entry_gone(what: str, version: int) -> OutcomeUnknown:
    """Return the error for a decided batch if the table has lost the sink's mark and perhaps also the batch's entry."""
    return OutcomeUnknown(
        f"{what} is decided. The table has no mark of this sink, and version {version} of its log, which came after the"
        " decision, was cleaned up. So whether the batch was committed is not known: the table may have forgotten its"
        " mark (delta.setTransactionRetentionDuration). See whether the batch's records are in the table; then give it"
        " up with 'twopc abandon'."
    )


def batch_gone(what: str, receipt: Receipt, found: int | None, place: str) -> LogMismatch:
    """Return the veto for a batch that would follow a lost one."""
    now = "none" if found is None else found
    is_replaced = found is not None and found >= receipt.batch
    shown = "another entry is there now" if is_replaced else f"the table's newest one is {now} now"
    return LogMismatch(
        f"{what} is not decided: batch {receipt.batch} of this sink was version {receipt.version} of the table, and"
        f" {shown}. The table was restored from a copy; or another writer has replaced an entry of its log, as Spark"
        " may on a disk. The batch was rolled back. See which records are missing in the table, and write them by"
        f" other means. Then remove {place} and start again: the query goes on with this batch."
    )


def batches_lost(name: str, last: int, found: int | None, place: str) -> LogMismatch:
    """Return the error for a table that lacks the last batch committed to it."""
    return lost_batches(
        f"{name} had batch {last} of this query, and shows {'none' if found is None else f'batch {found}'}",
        f"Restore what is lost; or write the missing records by other means, remove {place}, and start again.",
    )


def damaged_receipt(what: str, place: str, why: str) -> LogMismatch:
    """Return the veto for a batch if the receipt of its predecessor is damaged."""
    return LogMismatch(
        f"{what} is not decided: {place} is damaged: {why}. It has where the batch before is in the table's log. The"
        " batch was rolled back. See whether the table has the records of the batch before. Then remove the file and"
        " start again."
    )


def files_gone(what: str, names: list[str]) -> TransactionLost:
    """Return the error for a decided batch with missing files."""
    return TransactionLost(
        f"{what} is decided and not committed, and {len(names)} of its files are gone or changed, such as {names[0]}."
        " Nothing of the batch is visible. VACUUM removes files that no version of the table has, once they are older"
        " than its retention; notes and files may also have been removed by hand. Put them back and start again; or"
        " write the records by other means, and give the batch up with 'twopc abandon'."
    )


def table_changed(what: str, why: str) -> OperatorRequired:
    """Return the error for a decided batch whose files the table can no longer accept."""
    return OperatorRequired(
        f"{what} is decided and not committed: the table was changed since its files were written: {why}. Its files are"
        " safe. Undo the change and start again, which repeats the commit; or give the batch up with 'twopc abandon"
        " --even-if-repairable'."
    )


def unreadable(what: str, why: str) -> OperatorRequired:
    """Return the error for a decided batch if the rows that it replaces can't be found."""
    return OperatorRequired(
        f"{what} is decided, and the rows that it replaces can't be found: {why}. Nothing of it is visible. Repair the"
        " table, such as with RESTORE, and start again."
    )


def not_decided(what: str, why: str) -> RoundAborted:
    """Return the veto for a batch that could not be committed."""
    return RoundAborted(f"{what} could not be committed: {why}. Nothing of it is visible. The batch can be run again.")
