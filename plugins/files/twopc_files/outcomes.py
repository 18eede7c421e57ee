"""What an error of the file system means for a commit: repeat it, call a person, or nobody knows."""

from __future__ import annotations

import errno

from twopc.errors import ConfigurationError, OperatorRequired, OutcomeUnknown, Retriable, TwoPhaseCommitError

# The system was busy, or its network was. None of them moves a file half-way: what was done is seen on the
# repeat. ENOENT: another process renamed the file between our look at it and our rename. ENOSPC and EDQUOT:
# the target's folder had no room for one more name, and passes when somebody makes room; the staged file is
# whole meanwhile, and waiting loses nothing.
MAY_PASS = frozenset(
    getattr(errno, name)
    for name in (
        *("EAGAIN", "EBUSY", "EINTR", "EMFILE", "ENFILE", "ENOMEM", "ENOLCK", "ENOSPC", "EDQUOT"),
        *(
            "ENOENT",
            "ESTALE",
            "ETIMEDOUT",
            "EHOSTDOWN",
            "EHOSTUNREACH",
            "ENETDOWN",
            "ENETUNREACH",
            "ENOTCONN",
        ),
    )
    if hasattr(errno, name)
)

# A person has to change something, and until then every repeat fails alike.
NEEDS_A_PERSON = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP)
)

# EIO is in neither set: the disk may have done it or not, and may tell something else when asked again.

# A kernel reports a failed write-back once, and the next fsync may succeed though the data never reached the
# disk (the PostgreSQL project's "fsyncgate", 2018). So of an fsync's errors only those are repeated that say
# it never began.
SYNC_MAY_PASS = MAY_PASS - {errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EBUSY}


def commit_failed(error: OSError, what: str, renamed: bool) -> TwoPhaseCommitError:
    """The error to raise for what the file system said to a commit.

    Args:
        error: what it said.
        what: the subject of the message: names batch, transaction and paths.
        renamed: the file is in place, and what failed is to make that survive a power cut.
    """
    if error.errno in (SYNC_MAY_PASS if renamed else MAY_PASS):
        return Retriable(f"{what} can't be committed yet: {error}")
    if renamed:
        return OutcomeUnknown(
            f"{what} is in place, and whether that survives a power cut is not known: {error}. Check the"
            " disk and the system's log; then start the query again, which repeats the commit."
        )
    if error.errno in NEEDS_A_PERSON:
        return OperatorRequired(
            f"{what} is decided and not committed: {error}. Its records are safe in the staged file. Give"
            " this process the right to rename it; then start the query again, which repeats the commit."
        )
    return OutcomeUnknown(
        f"{what} is decided, and the file system does not say whether it is committed: {error}. Check the"
        " disk; then start the query again, which repeats the commit."
    )


def write_failed(error: OSError, what: str) -> Exception:
    """The error to raise where ``what`` could not be staged: its vote is no, and nothing of it is visible."""
    message = f"{what} could not be staged: {error.strerror or error}. Nothing of it is visible"
    if error.errno in NEEDS_A_PERSON:
        return ConfigurationError(
            f"{message}. Give the option 'path' a folder that this process may make files in: {error}"
        )
    return OSError(error.errno, message, error.filename) if error.errno else OSError(message)
