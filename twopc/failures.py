"""Adds to errors where they occurred and what caused them, and finds out whether they are known to pass."""

from __future__ import annotations

import configparser
import contextlib
import errno
import hashlib
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from twopc.errors import (
    ConfigurationError,
    InDoubt,
    LogMismatch,
    OperatorRequired,
    RecordRefused,
    Refused,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)
from twopc.stores.errors import DISK_AWAY, TEMPORARY

PASSING = TEMPORARY | DISK_AWAY - {errno.ENOENT}
"""The errnos of outages. A missing file is not an outage, because nothing shows that it ever existed."""

_CHANGING = re.compile(r"\([^\s()]+ executor [^\s()]+\)|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b\w*\d\w*|\s+")
"""Parts of a lower-case message that may differ from one failure to the next: where Spark ran a task, unique ids, words
with digits, such as file names, and whitespace. Each pattern is tried only once per word, because an error may quote a
long text without blanks."""

_REFUSED_BY_LIBPQ = re.compile(
    r"(?<!LDAP )(?<!PAM )(?<!RADIUS )(?<!OAuth bearer )authentication failed|no password supplied"
    r"|pg_hba\.conf entry|is not permitted to log in|(role|database) .* does not exist"
    r"|no such (database|user)|permission denied (for database|to set )"
    r"|unrecognized configuration parameter|unsupported startup parameter|invalid value for parameter"
    r"|definition of service .* not found|invalid (\w+ value: |integer value |port number)"
    r"|certificate file .* does not exist|could not (load|read) (root |private key|certificate)|private key file "
    r"|certificate verify failed|(SSL|encryption) was required|does not match host name"
    r"|authentication method requirement|channel binding (is )?required|expected authentication request"
)
"""libpq and poolers report permanently refused connections in words only, without a SQLSTATE. If the server
authenticates through another system, it reports a wrong password and an outage of that system in the same words
(auth_failed in auth.c), so these are not treated as refusals."""

_OF_A_HOST = "connection to server "


def is_refused_by_libpq(words: str) -> bool:
    """Return whether the message of a failed connection reports a permanent refusal. If several hosts were tried, each
    host's message must report one."""
    if _OF_A_HOST not in words:
        return _REFUSED_BY_LIBPQ.search(words) is not None
    tried = words.split(_OF_A_HOST)[1:]
    refused = [_REFUSED_BY_LIBPQ.search(each) is not None for each in tried]
    # libpq tries a host with and without TLS, and a rule may reject one of these.
    return any(refused) and all(no or "pg_hba.conf rejects" in each for no, each in zip(refused, tried, strict=True))


CUT_OFF = (ssl.SSLEOFError, ssl.SSLSyscallError, ssl.SSLZeroReturnError)
"""TLS errors that an outage also causes."""


def is_bad_certificate(error: OSError) -> bool:
    """Return whether an error from loading a certificate or key is permanent. A missing mount or too many open
    files are not."""
    return isinstance(error, ssl.SSLError) or error.errno in {errno.ENOENT, errno.EACCES, errno.EISDIR, errno.EPERM}


BAD_OPTION_FILE = (configparser.Error, ValueError)
"""Errors that PyMySQL raises for an option file that it can't read, or that contains an invalid value."""


def bad_option_file(error: Exception, arguments: Mapping[str, Any]) -> ConfigurationError:
    """Return the error for a connection that PyMySQL can't make with these arguments. Its own error names the wrong
    argument, and is shown unless it may quote a line of an option file, or a letter of the password."""
    if not arguments.keys() & {"read_default_file", "read_default_group"} and not isinstance(error, UnicodeError):
        return ConfigurationError(f"'url' has something that PyMySQL does not take: {error}. Correct it.", option="url")
    return ConfigurationError(
        f"'url', or the option file that it names, has something that PyMySQL does not take ({type(error).__name__})."
        " In the file, each line must be 'name=value', below a line '[client]'.",
        option="url",
    )


_OF_A_STACK = ("at ", "File ", "... ")

OUTAGE, ABORTED, IN_DOUBT = "outage", "aborted", "in doubt"
"""Kinds of failures that are known to pass: a system did not answer, a round was rolled back, or the outcome of an
append to the log is unknown."""


@contextlib.contextmanager
def located(**known: Any) -> Iterator[None]:
    """Fill in known attributes of a ``TwoPhaseCommitError`` that the block raises."""
    try:
        yield
    except TwoPhaseCommitError as error:
        error.fill_in(**known)
        raise


@contextlib.contextmanager
def mapped(
    kind: type[Exception] | tuple[type[Exception], ...],
    failed: Callable[..., Exception],
    *what: Any,
    hides_cause: bool = False,
) -> Iterator[None]:
    """Raise ``failed(error, *what)`` for an error of a target system's client. ``hides_cause`` hides a client's error
    that may show secrets. An error that may show values of a refused record is always hidden. The project's own errors
    pass through."""
    try:
        yield
    except TwoPhaseCommitError:
        raise
    except kind as error:
        failure = failed(error, *what)
        hides_cause |= type(failure) in (Refused, RecordRefused)  # a traceback shows the cause, and Spark logs it
        raise failure from (None if hides_cause else _without_values(error))


_QUOTE_VALUES = frozenset(("IntegrityError", "DataError"))
"""The classes of Python's database API (PEP 249) whose errors quote values of a row, such as a duplicate key. Listed by
name, because every driver defines its own classes."""

_QUOTE_VALUES_IN_MYSQL = (1526, 1586)
"""MySQL's error codes for a missing partition and a duplicate key, which PyMySQL reports as neither of the classes
above."""


class WithoutValues(Exception):
    """Stands for an error of a database that may quote values of a record, as the cause of another error."""


def quotes_values(error: Exception) -> bool:
    """Return whether an error of a database's client, or of SQLAlchemy, may quote values of a record."""
    given = getattr(error, "orig", None) or error
    kinds = {each.__name__ for each in type(error).__mro__}
    return bool(_QUOTE_VALUES & kinds) or (given.args and given.args[0]) in _QUOTE_VALUES_IN_MYSQL


def _without_values(error: Exception) -> Exception:
    return WithoutValues(type(error).__name__) if quotes_values(error) else error


def older_log(what: str, newest: int, batch_id: int) -> LogMismatch:
    """Return the error for a commit log that is about to decide a batch that the target system ``what`` already has."""
    return LogMismatch(
        f"{what} has batch {newest} of this query, and the commit log is about to decide batch {batch_id}: the log was"
        " restored from an older copy, or lost entries. The batch was rolled back. Restore the newest log, and start"
        " again."
    )


STALE_S = 60.0
"""How long a database or catalog may show less than was committed to it. A lagging replica can't always be told from a
lost commit. Shorter than the coordinator's patience before a decision."""


class Lag:
    """How long a target system has shown less than was committed to it."""

    _since_s: float | None = None  # when it was first seen, by time.monotonic

    def end(self) -> None:
        """Record that the target system shows every batch."""
        self._since_s = None

    def failure(self, shows: str, advice: str) -> LogMismatch | Retriable:
        """Return the error for a batch that is not shown: Retriable until the system has lagged for ``STALE_S``, and
        LogMismatch after that."""
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s < STALE_S:
            return Retriable(f"{shows}: it is behind, or has lost a commit")
        return lost_batches(shows, advice)


def lost_batches(shows: str, advice: str) -> LogMismatch:
    """Return the error for a target system that lacks a committed batch. ``shows``: which batch the system had, and
    which batch it shows now. ``advice``: how to continue once the records are restored."""
    return LogMismatch(
        f"{shows}: it has lost a commit, or the table was restored from a copy or created again, or the sink wrote"
        f" elsewhere meanwhile. No batch is decided until that is settled. {advice}"
    )


def worst_of(errors: Sequence[Exception]) -> Exception:
    """Return the error that is least likely to go away by itself."""
    return max(errors, key=lambda error: (isinstance(error, OperatorRequired), not isinstance(error, Retriable)))


def sentence(error: TwoPhaseCommitError) -> str:
    """Return an error's message with a period at the end, so that another sentence can follow."""
    return f"{error.message.removesuffix('.')}."


class NotComputedAgain(Retriable):
    """Lost transactions of a decided batch could not be computed again. The cause shows whether that may pass."""


def cause_of(error: BaseException) -> BaseException:
    """Return the cause of an aborted round or a failed computation; the error itself if it is neither."""
    return (isinstance(error, RoundAborted | NotComputedAgain) and error.__cause__) or error


def is_outage(error: BaseException) -> bool:
    """Return whether an error is an outage: a system did not answer or a resource ran out, and nothing was refused. For
    an aborted round, its cause counts."""
    cause: BaseException | None = error
    while isinstance(cause, RoundAborted | NotComputedAgain):
        cause = cause.__cause__
    if isinstance(cause, OSError) and cause.errno in PASSING:
        return True
    return isinstance(cause, Retriable | ConnectionError | TimeoutError | socket.gaierror)


def passes(error: BaseException) -> bool:
    """Return whether a failure is known to pass, though it may come again.

    An append in doubt passes, but is never an outage, whatever the store's client raised. The failure is counted in a
    notice beside the log. If that worked, the store accepts reads and notices but no appends, and such a state may not
    end by itself.
    """
    return is_outage(error) or isinstance(cause_of(error), RoundAborted | InDoubt)


def identity(error: BaseException) -> str | None:
    """Return the key by which a repeated error is recognized: a hash of its class and words, or only its kind if it is
    known to pass. None for a definite answer that ends the query."""
    if isinstance(error, TwoPhaseCommitError) and not isinstance(error, Retriable | RoundAborted | InDoubt):
        return None
    cause = cause_of(error)
    if passes(error):
        return OUTAGE if is_outage(error) else IN_DOUBT if isinstance(cause, InDoubt) else ABORTED
    lines = [line for line in str(cause).splitlines() if not line.lstrip().startswith(_OF_A_STACK)]
    words = _CHANGING.sub(" ", "\n".join(lines).lower())
    return hashlib.sha256(f"{type(cause).__qualname__} {words}".encode()).hexdigest()[:16]


@contextlib.contextmanager
def decided_batch(batch_id: int) -> Iterator[None]:
    """Within the block, raise OperatorRequired in place of an error that is only valid for an undecided batch. Upholds:
    no error after the decision says that the batch is undecided."""
    try:
        yield
    except (Refused, RoundAborted) as error:
        raise OperatorRequired(
            f"batch {batch_id} is decided, and can't be finished now: {sentence(error)} Correct that and start again:"
            " the next start goes on with it.",
            sink=error.sink,
            batch_id=batch_id,
            transaction_id=error.transaction_id,
        ) from error
