"""Decisions about a file, from its store's reports and errors: publish it, repeat, call an operator, or report that it
is lost or its outcome unknown. This module makes no requests.

A store's error has an errno, with one meaning for all stores:

| errno | meaning |
| --- | --- |
| ``ENOENT`` | there is certainly no such file |
| ``ENODEV`` | there is no such bucket, container or folder |
| ``EEXIST`` | the file exists, and the request was to create it |
| ``EACCES``, and the others of ``REFUSING`` | the store refuses until an operator changes something |
| ``ENOSYS`` | the store does not have this request |
| ``EBUSY``, ``EAGAIN`` | the store was busy, or has not done it yet |
| ``ETIMEDOUT``, and the other network errors of ``TEMPORARY`` | no answer: the store may have done it |
| ``EIO``, and any other | the store may have done it, and may answer differently the next time |

``twopc.stores.errors`` maps each HTTP status to an errno. A failed sync of a disk is a ``NotSynced``, whatever its
errno.
"""

from __future__ import annotations

import errno

from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    Refused,
    Retriable,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc.stores.errors import REFUSING, TEMPORARY, NotSynced
from twopc_files.file_names import FileHandle
from twopc_files.stores.store import NO_FILE, Sight

_MORE = frozenset((errno.ENOENT, errno.ENOSPC, errno.EDQUOT))

MAY_PASS = TEMPORARY | _MORE
"""Errors that may pass. No file is left half moved, and a repeat sees what was done. ENOENT: between look and act,
another process published the file, or a newer driver rolled it back. ENOSPC and EDQUOT: there was no space. The pending
file stays whole, so waiting loses nothing."""

SYNC_MAY_PASS = TEMPORARY - {errno.EBUSY}
"""Errors of a sync that may be repeated. A kernel reports a failed write-back only once, and the next fsync may succeed
although the data never reached the disk ("fsyncgate", PostgreSQL, 2018). So a sync is repeated only after errors which
prove that the fsync never began."""


def is_to_be_published(seen: Sight, file: FileHandle, what: str, records: int | None) -> bool:
    """Return whether a decided file must still be published; False if it already is.

    Args:
        seen: what the store reports.
        file: the file as pre-committed.
        what: the subject of messages, with batch, transaction and places.
        records: the number of records in the whole transaction.

    Raises:
        TransactionLost: neither the pending file nor the target exists.
        OperatorRequired: a foreign file has the target's name.
        OutcomeUnknown: the file's length differs from the pre-committed one.
    """
    here = seen.pending_bytes if seen.target_bytes is None else seen.target_bytes
    if here is None:
        raise TransactionLost(
            f"{what} is decided, and neither file exists: {records} records are lost, or were committed"
            " and then removed. Was the option 'path' of this sink changed? Set it back. Did another program move"
            " the committed file, or remove pending files? Put one of the two files back; then start the query"
            " again, which repeats the commit."
        )
    if seen.is_foreign:
        raise OperatorRequired(
            f"{what} is decided and not committed: a foreign file has the target's name. Nothing was overwritten."
            " Move that file away; then start the query again, which repeats the commit."
        )
    if here != file.size_bytes:
        raise OutcomeUnknown(
            f"{what} was pre-committed with {file.size_bytes} bytes, and its"
            f" {'pending file' if seen.target_bytes is None else 'target'} now {_length(here)}: another program"
            " changed it, or the store lost a part. twopc changed nothing. Restore the file from a copy and start the"
            " query again, or give the transaction up with 'twopc abandon'."
        )
    return seen.target_bytes is None


def not_shown_yet(what: str) -> Retriable:
    """Return the error to raise while a store may be publishing a decided file that it does not show.

    Upholds: an answer that the store may change by itself is not final.
    """
    return Retriable(
        f"{what} is decided, and the store shows neither the committed file nor the whole pending one. It may be"
        " publishing the file at this moment, so the store is asked again before the file counts as lost."
    )


def obstacle_seen(seen: Sight, file: FileHandle) -> str | None:
    """Return why an undecided file can't be published, and what to do about it. Return None if it can be published."""
    if seen.target_bytes is not None:
        return "a file already has the target's name, and twopc never overwrites one. Move it away."
    if seen.pending_bytes is None:
        return (
            "the driver does not find the pending file. Do all processes of the query have the same disk, or the same"
            " store, at this path?"
        )
    if seen.pending_bytes != file.size_bytes:
        return f"for the driver, the pending file {_length(seen.pending_bytes)}; {file.size_bytes} were written."
    return None


def _length(size_bytes: int) -> str:
    return "is not a regular file" if size_bytes == NO_FILE else f"has {size_bytes} bytes"


def look_failed(error: OSError, what: str) -> TwoPhaseCommitError:
    """Return the error to raise if a look at a decided file fails. The file may be committed already."""
    if error.errno in REFUSING:
        return OperatorRequired(
            f"{what} is decided, and this process may not see whether it is committed: {error}. Nothing was changed."
            " Give this process the right to look at pending and committed files; then start the query again, which"
            " repeats the commit."
        )
    return commit_failed(error, what)


def commit_failed(error: OSError, what: str) -> TwoPhaseCommitError:
    """Return the error to raise if publishing a decided file fails. The file may have been published all the same."""
    if error.errno in MAY_PASS:
        return Retriable(f"{what} can't be committed yet: {error}")
    if error.errno in REFUSING:
        return OperatorRequired(
            f"{what} is decided and not committed: {error}. Its records are safe in the pending file. Give"
            " this process the right to commit them; then start the query again, which repeats the commit."
        )
    return OutcomeUnknown(
        f"{what} is decided, and the store does not report whether it is committed: {error}. Check the store; then"
        " start the query again, which repeats the commit."
    )


def settle_failed(error: OSError, what: str) -> TwoPhaseCommitError:
    """Return the error to raise if a published file can't be made durable, or its pending file can't be removed."""
    if error.errno in (SYNC_MAY_PASS if isinstance(error, NotSynced) else MAY_PASS):
        return Retriable(f"{what} is published, and the step after that has to be repeated: {error}")
    if isinstance(error, NotSynced):
        return OutcomeUnknown(
            f"{what} is published, and may not survive a power cut: {error}. Check the disk and the system's log; then"
            " start the query again, which repeats the commit."
        )
    if error.errno in REFUSING:
        return OperatorRequired(
            f"{what} is published, and its pending file can't be removed: {error}. Give this process the right to"
            " remove it; then start the query again, which repeats the commit."
        )
    return OutcomeUnknown(
        f"{what} is published, and its pending file may be left: {error}. Check the store; then start the query again,"
        " which repeats the commit."
    )


def write_failed(error: OSError, what: str) -> Exception:
    """Return the error to raise if ``what`` could not be written. The vote is no, and none of it is visible."""
    message = f"{what} could not be written: {error.strerror or error}. Nothing of it is visible"
    if error.errno in MAY_PASS:
        return OSError(error.errno, message, error.filename)
    if error.errno in REFUSING:
        return ConfigurationError(
            f"{message}. Set the option 'path' to a folder in which this process may create files: {error}"
        )
    return Refused(f"{message}. Correct what the store names, and start again: {error}")


def request_failed(error: Exception, url: str) -> Retriable | OperatorRequired:
    """Return the error to raise if a request to the store at ``url`` fails. The request may be repeated."""
    if isinstance(error, OSError) and error.errno in TEMPORARY:
        return Retriable(f"the file sink's store at {url} does not answer: {error}")
    return OperatorRequired(
        f"the file sink's store at {url} refused a request: {error}. Nothing is lost. Correct what the store names, and"
        " start again."
    )


def unreachable(error: OSError, url: str) -> TwoPhaseCommitError:
    """Return the error to raise if the store at ``url`` can't be used. Nothing has been written."""
    if error.errno in TEMPORARY:
        return Retriable(f"the file sink's store at {url} does not answer: {error}")
    return ConfigurationError(
        f"the file sink can't use {url}: {error}. Nothing was written. Check the options 'path' and 'storage_options',"
        " and the rights of its credentials."
    )
