"""What an error of the store means is decided by its codes, and never by a name that a user has chosen."""

import errno

import aiohttp
import pytest
from botocore import exceptions as boto
from deltalake.exceptions import DeltaError

from twopc.errors import ConfigurationError, OperatorRequired, Retriable
from twopc_delta import outcomes
from twopc_delta.storage import Storage

DISK = "/data/403 access denied/not supported"
BUCKET = "s3://forbidden/403/schema error"


def failure(error: str | OSError, place: str = DISK) -> outcomes.Failure:
    return outcomes.Failure.of(OSError(error) if isinstance(error, str) else error, Storage.at(place, {}))


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (DISK, f"Generic LocalFileSystem error: Unable to open file {DISK}/_delta_log/1.json#1: timed out"),
        (DISK, "error at file:///data/403%20access%20denied/not%20supported/_delta_log/1.json: timed out"),
        (BUCKET, f"Generic S3 error: Error performing PUT http://host:9000/{BUCKET[5:]}/_delta_log/1.json: timed out"),
        (BUCKET, "Error performing GET https://forbidden.s3.amazonaws.com/403/x?token=403 in 2s: timed out"),
        (BUCKET, "<Error><Code>SlowDown</Code><Message>403 Forbidden, not supported</Message>"),
    ],
)
def test_no_word_of_a_path_a_url_or_a_servers_text_decides_the_error(place: str, text: str) -> None:
    given = failure(text, place)
    assert given.text == text
    for is_decided in (False, True):
        assert isinstance(outcomes.look_failed(given, "a look", is_decided), Retriable)
    assert isinstance(outcomes.commit_failed(given, "batch 1"), Retriable)


@pytest.mark.parametrize(
    "text",
    [
        f"Unable to open file {DISK}/_delta_log/1.json#1: Permission denied (os error 13)",
        'Os { code: 13, kind: PermissionDenied, message: "..." }',
        "Error performing GET http://host/b in 1ms - Server returned non-2xx status code: 403 Forbidden: ",
        "Server returned error response: <Error><Code>AccessDenied</Code><Message>No.</Message></Error>",
        "status code 400: <Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>",
        PermissionError("The Access Key Id you provided does not exist in our records."),
    ],
)
def test_a_refusal_of_the_store_needs_an_operator(text: str | PermissionError) -> None:
    given = failure(text)
    assert isinstance(outcomes.look_failed(given, "a look", is_decided=True), OperatorRequired)
    assert isinstance(outcomes.commit_failed(given, "batch 1"), OperatorRequired)


@pytest.mark.parametrize(
    "error",
    [
        "Kernel error -> Generic S3 error 402 Payment Required",
        "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
        OSError(errno.EPROTO, "An answer that nobody knows"),
        DeltaError("Kernel error: something new"),
    ],
)
def test_an_answer_that_is_in_no_table_stops_the_query_with_the_stores_words(error: str | Exception) -> None:
    """It was repeated for ever as no answer."""
    given = outcomes.Failure.of(OSError(error) if isinstance(error, str) else error, Storage.at(DISK, {}))
    told = (
        outcomes.look_failed(given, "a look", is_decided=False),
        outcomes.look_failed(given, "a look", is_decided=True),
        outcomes.commit_failed(given, "batch 1"),
        outcomes.put_refused(given, "table"),
    )
    kinds = [ConfigurationError, OperatorRequired, OperatorRequired, ConfigurationError]
    assert [type(each) for each in told] == kinds
    assert all(given.text in str(each) for each in told)


@pytest.mark.parametrize(
    "error",
    [
        "HTTP error error sending request client error (Connect) tcp connect error Connection refused (os error 111)",
        "error sending request client error (Connect) dns error failed to lookup address information",
        "HTTP error error sending request operation timed out",
        "Server returned non-2xx status code 503 Service Unavailable",
        "Server returned non-2xx status code 429 Too Many Requests",
        "Server returned non-2xx status code 500 Internal Server Error",
        "Server returned non-2xx status code 404 Not Found: <Error><Code>NoSuchUpload</Code></Error>",
        OSError(errno.EIO, "An error occurred (InvalidPart) when calling the CompleteMultipartUpload operation"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.ETIMEDOUT, "Could not reach it"),
    ],
)
def test_a_store_that_does_not_answer_is_repeated(error: str | OSError) -> None:
    given = failure(error)
    assert isinstance(outcomes.look_failed(given, "a look", is_decided=True), Retriable)
    assert isinstance(outcomes.commit_failed(given, "batch 1"), Retriable)
    assert isinstance(outcomes.put_refused(given, "table"), Retriable)


def test_a_request_that_a_store_does_not_have_is_not_repeated() -> None:
    given = failure("Server returned non-2xx status code 501 Not Implemented")
    assert not isinstance(outcomes.look_failed(given, "a look", is_decided=True), Retriable)


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (boto.NoCredentialsError(), errno.EACCES),
        (boto.EndpointConnectionError(endpoint_url="u"), errno.ETIMEDOUT),
        (aiohttp.ClientPayloadError("cut short"), errno.ETIMEDOUT),
        (aiohttp.ServerDisconnectedError(), errno.ETIMEDOUT),
        (aiohttp.InvalidURL("u"), errno.EPROTO),
        (aiohttp.NonHttpUrlClientError("u"), errno.EPROTO),
        (boto.ParamValidationError(report="an argument"), errno.EPROTO),  # in no table, and no error of a disk
    ],
)
def test_an_error_of_s3s_client_means_what_it_means_to_every_sink(error: Exception, number: int) -> None:
    with pytest.raises(OSError) as raised, Storage.at(BUCKET, {}).meaning():  # noqa: PT011  # its number is compared
        raise error
    assert raised.value.errno == number


@pytest.mark.parametrize("url", ["az://lake/t", "gs://lake/t"])
@pytest.mark.parametrize(
    ("number", "meant"), [(errno.EIO, errno.EPROTO), (errno.ENODEV, errno.EPROTO), (errno.EBUSY, errno.EBUSY)]
)
def test_an_answer_of_a_store_that_nobody_knows_is_no_error_of_a_disk(url: str, number: int, meant: int) -> None:
    """That of a disk may pass."""
    with pytest.raises(OSError) as raised, Storage.at(url, {}).meaning():  # noqa: PT011  # its number is compared
        raise OSError(number, "as the client has it")
    assert raised.value.errno == meant
