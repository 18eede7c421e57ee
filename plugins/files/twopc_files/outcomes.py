"""What follows from what a store shows of a decided file, and from its errors: repeat it, call an
operator, or report that the outcome is unknown. It makes no request."""

from __future__ import annotations

import errno

from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    Retriable,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc_files.file_names import FileHandle
from twopc_files.stores.store import NO_FILE, Sight


def _numbers(*names: str) -> frozenset[int]:
    return frozenset(getattr(errno, name) for name in names if hasattr(errno, name))


BUSY = _numbers(
    *("EAGAIN", "EBUSY", "EINTR", "EMFILE", "ENFILE", "ENOMEM", "ENOLCK"),
    *("ESTALE", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ENOTCONN"),
    *("ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "EPIPE"),
)
"""The store was busy, or its network was. None of them moves a file half-way: what was done is seen on the repeat."""

MAY_PASS = BUSY | _numbers("ENOENT", "ENOSPC", "EDQUOT")
"""Errors of a commit that may pass. ENOENT: another process published the file between our look at it and our act.
ENOSPC and EDQUOT: the target's folder had no room for one more name. The pending file is whole meanwhile, so waiting
loses nothing."""

# An operator has to change something. Until then every repeat fails alike.
NEEDS_AN_OPERATOR = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP)
)

# EIO is in neither set: the store may have done it or not, and may answer differently when asked again.

SYNC_MAY_PASS = BUSY - {errno.EBUSY}
"""A kernel reports a failed write-back once, and the next fsync may succeed though the data never reached the disk (the
PostgreSQL project's "fsyncgate", 2018). So only errors that prove that the fsync never began are repeated."""


def is_to_be_published(seen: Sight, file: FileHandle, what: str, records: int | None) -> bool:
    """What to do about a decided file, from what its store shows: publish it, or nothing as it is published.

    Args:
        seen: what the store shows.
        file: what was pre-committed.
        what: the subject of the message: names batch, transaction and places.
        records: of the whole transaction.

    Raises:
        TransactionLost: nothing is there.
        OperatorRequired: something else has the target's name.
        OutcomeUnknown: what is there has another length.
    """
    here = seen.pending_bytes if seen.target_bytes is None else seen.target_bytes
    if here is None:
        raise TransactionLost(
            f"{what} is decided, and neither file is there: {records} records are lost, or were committed"
            " and then removed. Was the option 'path' of this sink changed? Set it back. Did another program move"
            " the committed file, or remove pending files? Put one of the two files back; then start the query"
            " again, which repeats the commit."
        )
    if seen.is_foreign:
        raise OperatorRequired(
            f"{what} is decided and not committed: a file that is not the transaction's has the target's name."
            " Nothing was overwritten. Move it away; then start the query again, which repeats the commit."
        )
    if here != file.size_bytes:
        raise OutcomeUnknown(
            f"{what} was pre-committed with {file.size_bytes} bytes, and its"
            f" {'pending file' if seen.target_bytes is None else 'target'} now {_length(here)}: it was changed by"
            " another program, or the store lost a part. Nothing was changed. Restore it from a copy and start the"
            " query again, or give it up with 'twopc abandon'."
        )
    return seen.target_bytes is None


def not_shown_yet(what: str) -> Retriable:
    """The error to raise where a store may be publishing a decided file that it does not show.

    Upholds: an answer that the store may change by itself is not final.
    """
    return Retriable(
        f"{what} is decided, and the store shows neither the committed file nor the whole pending one. It may be"
        " publishing it just now, so the store is asked again before the file counts as lost."
    )


def obstacle_seen(seen: Sight, file: FileHandle) -> str | None:
    """What would keep a file that is not decided yet from being published, and what to do about it."""
    if seen.target_bytes is not None:
        return "a file has the target's name already, and is never overwritten. Move it away."
    if seen.pending_bytes is None:
        return (
            "the pending file is not here. Do all processes of the query have the same disk, or the same store, at this"
            " path?"
        )
    if seen.pending_bytes != file.size_bytes:
        return f"the pending file {_length(seen.pending_bytes)} here, and was written with {file.size_bytes}."
    return None


def _length(size_bytes: int) -> str:
    return "is no plain file" if size_bytes == NO_FILE else f"has {size_bytes} bytes"


def look_failed(error: OSError, what: str) -> TwoPhaseCommitError:
    """The error to raise where a decided file could not be looked at, so that it may be committed already."""
    if error.errno in NEEDS_AN_OPERATOR:
        return OperatorRequired(
            f"{what} is decided, and this process may not see whether it is committed: {error}. Nothing was changed."
            " Give this process the right to look at pending and committed files; then start the query again, which"
            " repeats the commit."
        )
    return commit_failed(error, what, published=False)


def commit_failed(error: OSError, what: str, published: bool) -> TwoPhaseCommitError:
    """The error to raise for the store's answer to a commit.

    Args:
        error: the answer.
        what: the subject of the message, as above.
        published: the file is in place, and what failed is to make that survive a power cut.
    """
    if error.errno in (SYNC_MAY_PASS if published else MAY_PASS):
        return Retriable(f"{what} can't be committed yet: {error}")
    if published:
        return OutcomeUnknown(
            f"{what} is in place, and whether that survives a power cut is not known: {error}. Check the"
            " store and the system's log; then start the query again, which repeats the commit."
        )
    if error.errno in NEEDS_AN_OPERATOR:
        return OperatorRequired(
            f"{what} is decided and not committed: {error}. Its records are safe in the pending file. Give"
            " this process the right to commit them; then start the query again, which repeats the commit."
        )
    return OutcomeUnknown(
        f"{what} is decided, and the store does not report whether it is committed: {error}. Check the store; then"
        " start the query again, which repeats the commit."
    )


def write_failed(error: OSError, what: str) -> Exception:
    """The error to raise where ``what`` could not be written: its vote is no, and nothing of it is visible."""
    message = f"{what} could not be written: {error.strerror or error}. Nothing of it is visible"
    if error.errno in NEEDS_AN_OPERATOR:
        return ConfigurationError(
            f"{message}. Give the option 'path' a folder that this process may make files in: {error}"
        )
    return OSError(error.errno, message, error.filename) if error.errno else OSError(message)


def unreachable(error: OSError, url: str) -> TwoPhaseCommitError:
    """The error to raise where the store at ``url`` can't be used, before anything is written."""
    if error.errno in BUSY:
        return Retriable(f"the file sink's store at {url} does not answer: {error}")
    return ConfigurationError(
        f"the file sink can't use {url}: {error}. Nothing was written. Check the options 'path' and 'storage_options',"
        " and the rights that come with its credentials."
    )
