"""Stores whose certificate the client does not trust: no repeat changes that, so it is no outage."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import twopc
from twopc import Coordinator
from twopc.errors import ConfigurationError, OperatorRequired
from twopc.testing import MemorySink, MemoryTarget


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server on 127.0.0.1 whose certificate nobody trusts."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1", "localhost").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):  # the client does not trust the certificate
                    context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


KEYS = {"key": "k", "secret": "s", "client_kwargs": {"region_name": "us-east-1"}}
AZURE = "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=a2V5;BlobEndpoint=https://{}/a"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        pytest.param("webhdfs://{}/log", {"use_https": True, "user": "me"}, id="webhdfs"),
        # These clients try it again for 8 to 90 s.
        pytest.param("s3://bucket/log", {**KEYS, "endpoint_url": "https://{}"}, id="s3", marks=pytest.mark.long),
        pytest.param(
            "gs://bucket/log", {"token": "anon", "endpoint_url": "https://{}"}, id="gs", marks=pytest.mark.long
        ),
        pytest.param("abfs://container/log", {"connection_string": AZURE}, id="abfs", marks=pytest.mark.long),
    ],
)
def test_a_log_in_a_store_whose_certificate_is_not_trusted_stops_the_query(
    address: str, url: str, options: dict[str, Any]
) -> None:
    given = {name: value.format(address) if isinstance(value, str) else value for name, value in options.items()}
    store = twopc.open_store(url.format(address), skip_instance_cache=True, **given)
    coordinator = Coordinator({"a": MemorySink(MemoryTarget())}, store, owner="me", start_timeout_s=5)
    with pytest.raises((ConfigurationError, OperatorRequired), match=r"(?i)certificate"):
        coordinator.recover()


def test_delta_rs_refuses_a_certificate_and_the_sink_says_so(address: str, tmp_path: Path) -> None:
    pytest.importorskip("twopc_delta")
    from deltalake import DeltaTable

    from twopc_delta.outcomes import Failure
    from twopc_delta.storage import Storage

    options = {"endpoint_url": f"https://{address}", "aws_access_key_id": "k", "aws_secret_access_key": "s"}
    options |= {"region": "us-east-1", "max_retries": "0"}
    with pytest.raises(Exception) as raised:  # noqa: PT011  # of delta-rs
        DeltaTable("s3://bucket/t", storage_options=options)
    failure = Failure.of(raised.value, Storage.at(str(tmp_path), {}))
    assert failure.is_refusal, failure.words


def test_pyarrow_refuses_a_certificate_and_the_sink_says_so(address: str) -> None:
    pytest.importorskip("twopc_iceberg")
    from pyarrow.fs import AwsDefaultS3RetryStrategy, S3FileSystem

    from twopc_iceberg.outcomes import CatalogAnswer, answer

    store = S3FileSystem(
        access_key="k",
        secret_key="s",  # noqa: S106  # of no server
        endpoint_override=address,
        region="us-east-1",
        retry_strategy=AwsDefaultS3RetryStrategy(max_attempts=1),
    )
    with pytest.raises(OSError, match="curlCode: 60") as raised:
        store.open_input_file("bucket/t/metadata.json")
    assert answer(raised.value) is CatalogAnswer.REFUSED, raised.value
