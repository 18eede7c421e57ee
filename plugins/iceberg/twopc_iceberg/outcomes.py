"""What an error of the catalog or of a store means. It makes no request.

A failed commit may have landed all the same: the request may be on its way, and answers get lost. So no error of a
commit is believed by itself. The table is loaded again; what is in it counts. See ``snapshot.py``.
"""

from __future__ import annotations

import re
from enum import Enum
from http import HTTPStatus

import pyarrow as pa
import requests
from pydantic import ValidationError as UnreadableError
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    UnauthorizedError,
    ValidationError,
    ValidationException,
)
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError, SQLAlchemyError

from twopc.errors import ConfigurationError, OperatorRequired, OutcomeUnknown, Retriable, TwoPhaseCommitError


class CatalogAnswer(Enum):
    """What to do about an error of a catalog or a store."""

    CONFLICT = "look again, then repeat"
    REPEAT = "repeat"
    MISSING = "missing"
    REFUSED = "refused"


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
"""What pyiceberg and its clients raise. NotImplementedError: HTTP's 501. ValueError: an update that does not fit the
metadata, such as a snapshot whose sequence number is taken."""

_DENIALS = (
    ForbiddenError,
    UnauthorizedError,
    AuthorizationExpiredError,
    OAuthError,
    PermissionError,
    NotImplementedError,
    ProgrammingError,
)
"""Refusals that have nothing to do with the state of the table. ProgrammingError: SQL for which a right is missing."""

_DENIED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

ANSWERS: tuple[tuple[tuple[type[Exception], ...], CatalogAnswer], ...] = (
    ((NoSuchTableError, NoSuchNamespaceError), CatalogAnswer.MISSING),
    ((CommitFailedException,), CatalogAnswer.CONFLICT),
    ((*_DENIALS, BadRequestError), CatalogAnswer.REFUSED),
    (
        (OperationalError, InterfaceError, RESTError, UnreadableError, requests.RequestException, OSError),
        CatalogAnswer.REPEAT,
    ),
)
"""Kinds of errors → what to do; the first that fits counts. Any other is a refusal. UnreadableError: an answer that the
specification does not have, such as the page of a proxy."""

_REFUSED_BY_STORE = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|INVALID_SIGNATURE|SIGNATURE_DOES_NOT_MATCH"
    r"|REQUEST_TIME_TOO_SKEWED|UNKNOWN \(HTTP status 40[13]\)) "
    r"|: Unable to parse ExceptionName: (ExpiredToken|XAdminUserNotFound) "
)
"""pyarrow reports these by text alone. XAdminUserNotFound: versitygw knows no such key."""

_MISSING_TABLES = ("no such table", "iceberg_tables")


def answer(error: Exception) -> CatalogAnswer:
    """Return what to do about an error of a request that may be repeated."""
    if isinstance(error, DBAPIError) and all(word in str(error.orig) for word in _MISSING_TABLES):
        return CatalogAnswer.MISSING  # SQLite reports by an operational error that there is no catalog
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return CatalogAnswer.REPEAT
    if is_denial(error):
        return CatalogAnswer.REFUSED
    return next((meaning for kinds, meaning in ANSWERS if isinstance(error, kinds)), CatalogAnswer.REFUSED)


def is_denial(error: Exception) -> bool:
    """Whether the request would be refused whatever the table looks like, such as for a missing right."""
    if isinstance(error, requests.HTTPError) and error.response is not None:  # of a server that gives out tokens
        return error.response.status_code in _DENIED
    return isinstance(error, _DENIALS)


def is_refused_by_store(error: Exception) -> bool:
    """Whether S3 refuses the credentials, by what pyarrow makes of its answer."""
    return isinstance(error, OSError) and _REFUSED_BY_STORE.search(str(error)) is not None


def asked_in_vain(error: Exception, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed request of the coordinator, ``what``, which may be repeated."""
    match answer(error):
        case CatalogAnswer.REPEAT | CatalogAnswer.CONFLICT:
            return Retriable(f"{what}: the catalog or the store gave no answer: {told(error)}")
        case CatalogAnswer.MISSING:
            return ConfigurationError(f"{what}: the catalog has no such table. Create it; the sink creates none.")
        case _:
            return OperatorRequired(
                f"{what}: the catalog or the store refuses: {told(error)}. Check the catalog's properties, grant the"
                " rights that the sink's README lists, and start again: recovery continues where it stopped."
            )


def commit_failed(error: Exception, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed commit. ``what`` names the decided batch."""
    if answer(error) is CatalogAnswer.MISSING:
        return OutcomeUnknown(
            f"{what}, and the catalog has no such table. Was it renamed? Set the option 'table' to its new name and"
            " start again. Was it dropped? Then the batch's records went with it, if they were there: give the"
            " transactions up with 'twopc abandon'."
        )
    return asked_in_vain(error, what)


def told(error: Exception) -> str:
    """Return the kind of an error and the first line of its text, which has no credentials and no SQL."""
    cause = getattr(error, "orig", None) or error
    text = str(cause).strip().partition("\n")[0]
    return f"{type(cause).__name__}: {text[:500]}" if text else type(cause).__name__
