"""What each error of a catalog or a store means. What is in no table stops the query: unknown is not temporary."""

import errno

import psycopg
import pyarrow as pa
import pymysql
import pytest
import requests
from pyiceberg import exceptions
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError, ProgrammingError

from twopc.errors import OperatorRequired, Retriable
from twopc_iceberg.outcomes import CatalogAnswer, Damaged, answer, asked_in_vain, reading


def of_postgres(message: str, state: str | None = None) -> OperationalError:
    class Refusal(Exception):
        pgcode = state  # as psycopg2's errors have it

    return OperationalError("SELECT 1", {}, Refusal(message))


def of_sqlite(message: str) -> OperationalError:
    return OperationalError("SELECT 1", {}, Exception(message))


def of_http(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(response=response)


def of_s3(code: str, more: str = "") -> OSError:
    return OSError(f"When reading information for key 'k' in bucket 'b': AWS Error {code} during HeadObject: {more}")


TEMPORARY = [
    *(exceptions.ServerError("x"), exceptions.ServiceUnavailableError("x"), exceptions.TooManyRequestsError("x")),
    exceptions.CommitStateUnknownException("x"),
    *(requests.ConnectionError("x"), requests.Timeout("x"), requests.exceptions.ChunkedEncodingError("x")),
    requests.exceptions.SSLError("EOF occurred in violation of protocol"),
    *(of_http(429), of_http(500), of_http(503)),
    of_postgres('connection to server at "db" (10.0.0.1), port 5432 failed: Connection refused'),
    of_postgres('connection to server at "db" failed: FATAL:  the database system is starting up'),
    of_postgres('connection to server at "db" failed: FATAL:  sorry, too many clients already'),
    of_postgres("server closed the connection unexpectedly"),
    *(of_postgres("x", "57P01"), of_postgres("x", "53100"), of_postgres("x", "40001"), of_postgres("x", "55P03")),
    InterfaceError("SELECT 1", {}, Exception("connection already closed")),
    OperationalError("SELECT 1", {}, psycopg.errors.AdminShutdown("terminating connection")),
    OperationalError("SELECT 1", {}, psycopg.OperationalError("failed to resolve host 'db'")),
    OperationalError("SELECT 1", {}, psycopg.OperationalError("the connection is lost")),
    *(OperationalError("SELECT 1", {}, pymysql.OperationalError(n, "x")) for n in (1040, 1053, 1213, 2003, 2013)),
    *(of_sqlite("database is locked"), of_sqlite("disk I/O error")),
    *(OSError(errno.ENOSPC, "x"), OSError(errno.EIO, "x"), FileNotFoundError("x"), TimeoutError("x")),
    *(of_s3("NETWORK_CONNECTION"), of_s3("SLOW_DOWN"), of_s3("UNKNOWN (HTTP status 503)")),
    of_s3("UNKNOWN", ": Unable to parse ExceptionName: InternalError Message: x"),
    *(of_s3("NO_SUCH_UPLOAD"), of_s3("UNKNOWN (HTTP status 400)", ": Unable to parse ExceptionName: InvalidPart x")),
]

REFUSED = [
    *(exceptions.ForbiddenError("x"), exceptions.UnauthorizedError("x"), exceptions.OAuthError("x")),
    *(exceptions.BadRequestError("x"), NotImplementedError("x"), PermissionError("x")),
    *(of_http(400), of_http(401), requests.exceptions.InvalidURL("x"), requests.exceptions.MissingSchema("x")),
    requests.exceptions.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
    ProgrammingError("SELECT 1", {}, Exception("permission denied for table iceberg_tables")),
]

UNKNOWN = [
    *(exceptions.RESTError("RESTError 422: x"), of_http(404), of_http(302), of_http(501)),
    of_s3("UNKNOWN (HTTP status 501)"),
    OperationalError("SELECT 1", {}, pymysql.OperationalError(1064, "a syntax error")),
    requests.TooManyRedirects("x"),
    of_postgres('connection to server at "db" failed: FATAL:  password authentication failed for user "me"'),
    of_postgres('connection to server at "db" failed: FATAL:  database "lake" does not exist'),
    of_postgres('connection to server at "db" failed: FATAL:  no pg_hba.conf entry for host "10.0.0.2"'),
    *(of_postgres("x", "42501"), of_postgres("x", "XX001")),
    *(of_sqlite("attempt to write a readonly database"), of_sqlite("unable to open database file")),
    DatabaseError("SELECT 1", {}, Exception("file is not a database")),
    *(OSError(errno.EROFS, "x"), OSError(errno.ENAMETOOLONG, "x"), OSError("x")),
    *(of_s3("NO_SUCH_BUCKET"), of_s3("UNKNOWN (HTTP status 403)"), of_s3("UNKNOWN (HTTP status 301)")),
    *(pa.ArrowInvalid("x"), ValueError("x"), UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates not allowed")),
]


MEANINGS: dict[CatalogAnswer, list[Exception]] = {
    CatalogAnswer.REPEAT: TEMPORARY,
    CatalogAnswer.REFUSED: REFUSED,
    CatalogAnswer.UNKNOWN: UNKNOWN,
    CatalogAnswer.CONFLICT: [exceptions.CommitFailedException("x")],
    CatalogAnswer.MISSING: [exceptions.NoSuchTableError("x"), of_sqlite("no such table: iceberg_tables")],
}


@pytest.mark.parametrize("means", MEANINGS)
def test_an_error_means_what_its_class_or_its_code_says(means: CatalogAnswer) -> None:
    assert [(error, answer(error)) for error in MEANINGS[means] if answer(error) is not means] == []


def test_what_is_not_temporary_stops_the_query_with_the_words_of_the_server() -> None:
    for error in (*REFUSED, *UNKNOWN):
        stops = asked_in_vain(error, "a look")
        assert isinstance(stops, OperatorRequired), error
        assert str(getattr(error, "orig", error)).strip() in str(stops)


def test_what_is_temporary_is_repeated() -> None:
    assert {type(asked_in_vain(error, "a look")) for error in TEMPORARY} == {Retriable}


def test_whatever_a_decoder_raises_names_the_file_and_what_a_store_raises_passes() -> None:
    for error in (EOFError(), AssertionError(), KeyError("x"), RecursionError()):
        with pytest.raises(Damaged, match="file s3://b/k is damaged"), reading("s3://b/k"):
            raise error
    for passing in (TimeoutError(), MemoryError()):
        with pytest.raises(type(passing)), reading("s3://b/k"):
            raise passing
