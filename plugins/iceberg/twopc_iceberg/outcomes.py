"""Classifies errors of catalogs and stores. No I/O.

A failed commit may have taken effect: its response may be lost, or the request may still be on its way. So the error of
a commit alone decides nothing. The table is reloaded, and its content decides. See ``snapshot.py``.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from enum import Enum
from http import HTTPStatus

import pyarrow as pa
import requests
from pydantic import ValidationError as UnreadableError
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    ValidationError,
    ValidationException,
)
from requests.exceptions import (
    ChunkedEncodingError,
    ContentDecodingError,
    InvalidHeader,
    InvalidJSONError,
    InvalidSchema,
    InvalidURL,
    MissingSchema,
)
from sqlalchemy.exc import DBAPIError, InterfaceError, ProgrammingError, SQLAlchemyError

from twopc.errors import ConfigurationError, OperatorRequired, OutcomeUnknown, Retriable, TwoPhaseCommitError
from twopc.stores.errors import DISK_AWAY, TEMPORARY, is_untrusted, of_status


class CatalogAnswer(Enum):
    """How to respond to an error of a catalog or a store."""

    CONFLICT = "look again, then repeat"
    REPEAT = "repeat"
    MISSING = "missing"
    REFUSED = "refused"
    UNKNOWN = "stop, with the words of the server"


CATALOG_ERRORS = (
    CommitFailedException,
    NoSuchTableError,
    NoSuchNamespaceError,
    NotImplementedError,
    RESTError,
    ValidationError,
    ValidationException,
    requests.RequestException,
    SQLAlchemyError,
    OSError,
    pa.ArrowException,
    UnreadableError,
    ValueError,
)
"""The errors that pyiceberg and its clients raise. NotImplementedError stands for HTTP 501. ValueError is an update
that does not fit the metadata, such as a snapshot whose sequence number is taken."""

_DENIALS = (
    ForbiddenError,
    UnauthorizedError,
    AuthorizationExpiredError,
    OAuthError,
    PermissionError,
    NotImplementedError,
    ProgrammingError,
)
"""Refusals that do not depend on the state of the table. ProgrammingError is SQL without the required privilege."""

_DENIED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

ANSWERS: tuple[tuple[tuple[type[Exception], ...], CatalogAnswer], ...] = (
    ((NoSuchTableError, NoSuchNamespaceError), CatalogAnswer.MISSING),
    ((CommitFailedException,), CatalogAnswer.CONFLICT),
    ((*_DENIALS, BadRequestError, InvalidURL, InvalidSchema, MissingSchema, InvalidHeader), CatalogAnswer.REFUSED),
    (
        (
            *(ServerError, ServiceUnavailableError, TooManyRequestsError, CommitStateUnknownException),
            *(requests.ConnectionError, requests.Timeout, ChunkedEncodingError, ContentDecodingError),
            *(InterfaceError, UnreadableError, InvalidJSONError),
        ),
        CatalogAnswer.REPEAT,
    ),
)
"""Classes of errors → how to respond; the first match counts. For other classes, the error's code decides, by the
tables below. An error that is in none of the tables stops the query, because an unknown error may not be temporary.
UnreadableError is a response that violates the specification, such as a proxy's error page."""

_BUSY_STORE = re.compile(
    r"AWS Error (NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT"
    r"|NO_SUCH_UPLOAD|UNKNOWN \(HTTP status (408|429|5(?!01)\d\d)\)) "
    r"|: Unable to parse ExceptionName: (InternalError|ServiceUnavailable|SlowDown|RequestTimeout|OperationAborted"
    r"|TooManyRequests|InvalidPart) "
)
"""pyarrow reports these only as text. NO_SUCH_UPLOAD, InvalidPart: a killed server has lost an upload or its parts, or
has completed it without responding. The next attempt begins a new upload."""

_BUSY_DATABASE = re.compile(
    # SQLite.
    r"database( table)? is locked|disk I/O error|database or disk is full|interrupted"
    # libpq, if it can't reach a server. A refusal by the server itself is FATAL.
    r"|connection to server .* failed: (?!.*FATAL)|could not (connect to|receive data from|send data to) server"
    r"|could not translate host name|failed to resolve host|the connection is (lost|closed)"
    r"|server closed the connection|SSL (SYSCALL|connection)|timeout expired"
    # A PostgreSQL server that is starting, stopping or full.
    r"|the database system is |too many (clients|connections)|remaining connection slots|terminating connection",
    re.DOTALL,
)

_BUSY_MYSQL = (
    *(1020, 1205, 1213, 3572),  # a changed row, a lock timeout, a deadlock
    *(1021, 1037, 1040, 1041, 1203),  # disk, memory, connections
    *(1053, 1158, 1159, 1160, 1161, 1290, 1836),  # a shutdown, the network, a temporarily read-only server
    *(2002, 2003, 2006, 2013, 2055),  # no connection
)
"""Transient error numbers of MySQL and MariaDB, and of their clients."""

_BUSY_SQLSTATE = ("08", "40", "53", "55P03", "55006", "57", "58")
"""Prefixes of transient SQLSTATEs: connections, serialization, resources, locks, operator intervention and system
errors."""


class Damaged(ValueError):
    """A file does not contain what was written. The message names the file."""


class Unsearchable(Damaged):
    """A file's rows can't be searched in its present form. The message says what to do."""


@contextlib.contextmanager
def reading(location: str | None) -> Iterator[None]:
    """Convert errors of decoding a file: any unexpected exception means that the file is damaged.

    Raises:
        Damaged: the file is damaged. The message names the file. Errors of the catalog and the store, and MemoryError,
            pass through.
    """
    try:
        yield
    except (OSError, MemoryError, SQLAlchemyError, NoSuchTableError, Damaged):
        raise
    except Exception as error:
        raise Damaged(f"file {location} is damaged: {told(error)}") from error


_REFUSED_BY_STORE = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|INVALID_SIGNATURE|SIGNATURE_DOES_NOT_MATCH"
    r"|REQUEST_TIME_TOO_SKEWED|UNKNOWN \(HTTP status 40[013]\)) "
    r"|: Unable to parse ExceptionName: (ExpiredToken|XAdminUserNotFound) "
)
"""pyarrow reports these only as text. XAdminUserNotFound: versitygw does not know the key. AWS responds to a HEAD
request with an expired token with a bare 400."""

_MISSING_TABLES = ("no such table", "iceberg_tables")


def answer(error: Exception) -> CatalogAnswer:
    """Return how to respond to the error of a request that may be repeated."""
    if isinstance(error, DBAPIError) and all(word in str(error.orig) for word in _MISSING_TABLES):
        return CatalogAnswer.MISSING  # SQLite reports a missing catalog as an operational error
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return CatalogAnswer.REPEAT
    if is_denial(error):
        return CatalogAnswer.REFUSED
    if (found := next((meaning for kinds, meaning in ANSWERS if isinstance(error, kinds)), None)) is not None:
        return found
    return CatalogAnswer.REPEAT if _is_busy(error) else CatalogAnswer.UNKNOWN


def _is_busy(error: Exception) -> bool:
    """Return whether an error's code is transient."""
    match error:
        case requests.HTTPError(response=requests.Response(status_code=status)):
            return of_status(status) == errno.EBUSY
        case DBAPIError():
            # psycopg2 has pgcode, psycopg 3 sqlstate.
            state = getattr(error.orig, "pgcode", None) or getattr(error.orig, "sqlstate", None) or ""
            if next(iter(getattr(error.orig, "args", ())), None) in _BUSY_MYSQL:
                return True
            return state.startswith(_BUSY_SQLSTATE) or (not state and bool(_BUSY_DATABASE.search(str(error.orig))))
        case OSError():
            kinds = FileNotFoundError | ConnectionError | TimeoutError  # pyarrow's errors have no errno
            return (
                error.errno in TEMPORARY | DISK_AWAY or isinstance(error, kinds) or bool(_BUSY_STORE.search(str(error)))
            )
        case _:
            return False


def is_denial(error: Exception) -> bool:
    """Return whether the request would be refused in any state of the table, such as for a missing privilege."""
    if isinstance(error, requests.HTTPError) and error.response is not None:  # from a token server
        return error.response.status_code in _DENIED
    return isinstance(error, _DENIALS) or is_untrusted(error)


def is_refused_by_store(error: Exception) -> bool:
    """Return whether S3 refuses the credentials, judging by pyarrow's error text."""
    return isinstance(error, OSError) and _REFUSED_BY_STORE.search(str(error)) is not None


def asked_in_vain(error: Exception, what: str) -> TwoPhaseCommitError:
    """Return the error to raise for a failed request of the coordinator that may be repeated. ``what`` names the
    request."""
    match answer(error):
        case CatalogAnswer.REPEAT | CatalogAnswer.CONFLICT:
            return Retriable(f"{what}: the catalog or the store gave no answer: {told(error)}")
        case CatalogAnswer.MISSING:
            return ConfigurationError(f"{what}: the catalog has no such table. Create it; the sink creates none.")
        case _ if isinstance(error, Unsearchable):
            return OperatorRequired(f"{what}: {error}, and start again.")
        case _ if isinstance(error, Damaged):
            return OperatorRequired(
                f"{what}: {error}. Restore the file, or roll the table back to what can be read, and start again."
            )
        case CatalogAnswer.UNKNOWN:
            return OperatorRequired(
                f"{what}: the catalog or the store has an answer that the sink does not know: {told(error)}. See what"
                " it means and start again: recovery continues where it stopped."
            )
        case _:
            return OperatorRequired(
                f"{what}: the catalog or the store refuses: {told(error)}. Check the catalog's properties, grant the"
                " rights that the sink's README lists, and start again: recovery continues where it stopped."
            )


def commit_failed(error: Exception, what: str) -> TwoPhaseCommitError:
    """Return the error to raise for a failed commit. ``what`` names the decided batch."""
    if answer(error) is CatalogAnswer.MISSING:
        return OutcomeUnknown(
            f"{what}, and the catalog has no such table. Was it renamed? Set the option 'table' to its new name and"
            " start again. Was it dropped? Then the batch's records went with it, if they were there: create another"
            " one, and give the transactions up with 'twopc abandon'."
        )
    return asked_in_vain(error, what)


def told(error: Exception) -> str:
    """Return the class of an error and the first line of its text, which contains neither credentials nor SQL."""
    cause = getattr(error, "orig", None) or error
    text = str(cause).strip().partition("\n")[0]
    return f"{type(cause).__name__}: {text[:500]}" if text else type(cause).__name__
