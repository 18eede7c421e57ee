"""One S3 server for all tests here; a bucket for each, reached through a proxy that can be told to lose replies."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.http_proxy import HttpProxy
from tests.s3_server import S3Server

RETRIES = {"max_attempts": 1, "mode": "standard"}
"""Of the client, before it tells its caller. The default keeps a caller waiting for some ten seconds."""


@dataclass(frozen=True)
class Bucket:
    """A bucket of the current test, and the proxy on the way to it."""

    name: str
    server: S3Server
    proxy: HttpProxy

    @property
    def storage_options(self) -> dict[str, Any]:
        """One request, one reply: what the proxy does is what the caller sees."""
        options = {**self.server.storage_options, "endpoint_url": self.proxy.url}
        return {**options, "config_kwargs": {"retries": RETRIES}}

    @property
    def repeating(self) -> dict[str, Any]:
        """A client that repeats requests by itself, as it does unless told otherwise."""
        return {**self.server.storage_options, "endpoint_url": self.proxy.url}

    def url(self, folder: str) -> str:
        return f"s3://{self.name}/{folder}"

    def keys(self) -> list[str]:
        """What is there, by a client that shares nothing with the one under test."""
        listed = s3_client(self.server).list_objects_v2(Bucket=self.name).get("Contents", [])
        return [entry["Key"] for entry in listed]


def s3_client(server: S3Server) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106  # moto takes any
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 0}),
    )


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "moto.log") as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server) -> Iterator[Bucket]:
    name = uuid.uuid4().hex
    s3_client(s3_server).create_bucket(Bucket=name)
    with HttpProxy(s3_server.endpoint_url) as proxy:
        yield Bucket(name, s3_server, proxy)
