"""One S3 server for all tests here; a bucket for each, reached through a proxy that can be told to lose replies."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import fsspec
import pytest

from tests.support.azurite_server import AzuriteServer, repeat
from tests.support.gcs_repeats import repeat_at_once
from tests.support.gcs_server import GcsServer
from tests.support.http_proxy import HttpProxy
from tests.support.s3_server import S3Server
from twopc.stores.gcs import gcs_client

_INSTALLED_FIRST = {"azurite", "gcs_server", "hdfs_server"}
"""Fixtures of emulators that come by npm, Go or Maven."""

_OF_MANY_REQUESTS = {
    "test_pruning_bounds_the_number_of_entries_also_where_its_process_is_killed_amid_it",
    "test_a_zombie_whose_slot_was_pruned_meanwhile_has_decided_nothing",
}
"""Tests of the contract that the gate runs on a disk and in memory alone."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the long run these tests, and those of these emulators: what stores have in common is tried on S3."""
    for item in items:
        is_slow = getattr(item, "originalname", "") in _OF_MANY_REQUESTS
        if is_slow or _INSTALLED_FIRST & {*getattr(item, "fixturenames", ())}:
            item.add_marker("long")


@dataclass(frozen=True)
class Place(ABC):
    """A bucket or container of the current test, and the proxy on the way to it."""

    scheme: ClassVar[str]

    name: str
    server: Any
    proxy: HttpProxy

    def url(self, folder: str) -> str:
        return f"{self.scheme}://{self.name}/{folder}"

    @property
    @abstractmethod
    def storage_options(self) -> dict[str, Any]:
        """The options of a client whose requests go through the proxy."""

    @abstractmethod
    def objects(self) -> list[str]:
        """Return what is there, by a client that shares nothing with the one under test."""


class Bucket(Place):
    """A bucket of S3."""

    scheme = "s3"
    server: S3Server

    @property
    def storage_options(self) -> dict[str, Any]:
        """Of a client that repeats nothing that a server has answered: the caller sees what the proxy does."""
        options = {**self.server.storage_options, "endpoint_url": self.proxy.url}
        return {**options, "config_kwargs": {"retries": {"max_attempts": 0}}}

    @property
    def repeating(self) -> dict[str, Any]:
        """A client that repeats requests by itself, as it does unless told otherwise."""
        return {**self.server.storage_options, "endpoint_url": self.proxy.url}

    def objects(self) -> list[str]:
        return [path.split("/", 1)[1] for path in _client(self.server).find(self.name)]


def _client(server: S3Server) -> Any:
    return fsspec.filesystem("s3", use_listings_cache=False, **server.storage_options)


@pytest.fixture
def bucket(s3_server: S3Server) -> Iterator[Bucket]:
    name = uuid.uuid4().hex
    _client(s3_server).mkdir(name)
    with HttpProxy(s3_server.endpoint_url) as proxy:
        yield Bucket(name, s3_server, proxy)


class Container(Place):
    """A container of Azure."""

    scheme = "abfs"
    server: AzuriteServer

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"connection_string": self.server.connection_string(self.proxy.url)}

    def signed(self, permission: str, expires_in_s: float = 3600) -> dict[str, Any]:
        """The options of a client that has a shared access signature and no key."""
        signature = f"SharedAccessSignature={self.server.signature(permission, expires_in_s)}"
        return {"connection_string": self.server.connection_string(self.proxy.url, signature)}

    def objects(self) -> list[str]:
        return self.server.blobs(self.name)


@pytest.fixture
def container(azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    repeat(monkeypatch, is_repeated=False)
    with HttpProxy(azurite.endpoint_url) as proxy:
        yield Container(azurite.make_container(), azurite, proxy)


class GcsBucket(Place):
    """A bucket of Google Cloud Storage."""

    scheme = "gs"
    server: GcsServer

    @property
    def storage_options(self) -> dict[str, Any]:
        return {**self.server.storage_options, "endpoint_url": self.proxy.url}

    def objects(self) -> list[str]:
        fs = gcs_client({**self.server.storage_options, "use_listings_cache": False})
        return [path.split("/", 1)[1] for path in fs.find(self.name)]


@pytest.fixture
def gcs_bucket(gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsBucket]:
    repeat_at_once(monkeypatch)
    name = uuid.uuid4().hex
    gcs_server.make_bucket(name)
    with HttpProxy(gcs_server.endpoint_url) as proxy:
        yield GcsBucket(name, gcs_server, proxy)
