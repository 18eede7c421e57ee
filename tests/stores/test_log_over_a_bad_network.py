"""Two drivers race for a log, each over a network that delays, cuts and loses requests and answers."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import twopc
from tests.stores.conftest import Bucket, Container, GcsBucket
from tests.support.bad_network import BadNetwork
from tests.support.commit_log import CommitLog
from tests.support.gcs_server import BUILD_AT_MOST_S
from tests.support.hdfs_server import HOME, USER, HdfsServer
from tests.support.postgres_server import PostgresServer
from twopc import Committable, Round
from twopc.errors import Fenced, InDoubt, Retriable
from twopc.log.entries import Decision
from twopc.log.entry_json import parse
from twopc.log.store import LogStore

pytestmark = [pytest.mark.long, pytest.mark.timeout(BUILD_AT_MOST_S)]

RACE_S = 15.0


@dataclass(frozen=True)
class Log:
    """A log, and the bad network on the way to it."""

    network: BadNetwork
    near: LogStore
    far_url: str
    far_options: dict[str, Any]

    def far(self) -> LogStore:
        return twopc.open_store(self.far_url, **self.far_options)

    def decided(self) -> set[str]:
        """Return all transactions that the log has ever decided."""
        slots = self.near.slots()
        assert slots == list(range(len(slots)))
        entries = [parse(self.near.read(slot), str(slot)) for slot in slots]
        decisions = [decision for entry in entries for decision in entry.unresolved]
        return {each.transaction_id for decision in decisions for each in decision.committables["sink"]}


def of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


@pytest.fixture
def s3(bucket: Bucket) -> Iterator[Log]:
    with BadNetwork(of(bucket.proxy.url), 1) as network:  # the proxy makes moto's conditional writes atomic
        options = {**bucket.storage_options, "endpoint_url": network.url}
        near = twopc.open_store(bucket.url("log"), **bucket.storage_options)
        yield Log(network, near, bucket.url("log"), options)


@pytest.fixture
def azure(container: Container) -> Iterator[Log]:
    with BadNetwork(of(container.server.endpoint_url), 2) as network:
        options = {"connection_string": container.server.connection_string(network.url)}
        near = twopc.open_store(container.url("log"), **container.storage_options)
        yield Log(network, near, container.url("log"), options)


@pytest.fixture
def gcs(gcs_bucket: GcsBucket) -> Iterator[Log]:
    with BadNetwork(of(gcs_bucket.server.endpoint_url), 3) as network:
        options = {**gcs_bucket.storage_options, "endpoint_url": network.url}
        near = twopc.open_store(gcs_bucket.url("log"), **gcs_bucket.storage_options)
        yield Log(network, near, gcs_bucket.url("log"), options)


@pytest.fixture
def hdfs(hdfs_server: HdfsServer, tmp_path: Path) -> Iterator[Log]:
    hdfs_server.start()  # what an earlier test has killed
    path = f"{HOME}/{tmp_path.name}/log"
    with BadNetwork(("127.0.0.1", hdfs_server.port), 4) as network:
        near = twopc.open_store(hdfs_server.url(path), user=USER)
        yield Log(network, near, f"webhdfs://127.0.0.1:{network.port}{path}", {"user": USER})


@pytest.fixture
def postgres() -> Iterator[Log]:
    with PostgresServer() as server:
        url, password = server.log_url("orders"), {"password": server.password}
        with BadNetwork(server.socket, 5) as network:
            options = {**password, "host": "127.0.0.1", "port": network.port, "sslmode": "disable"}
            yield Log(network, twopc.open_store(url, **password), url, options)


def race(log: Log, driver: int) -> list[tuple[str, str]]:
    """Decide batch after batch for a while, and open the log again after each error. Return what each decision
    reported, by its transaction."""
    store, told, until = log.far(), list[tuple[str, str]](), time.monotonic() + RACE_S
    while time.monotonic() < until:
        try:
            opened = CommitLog.open(store, "query")
        except (InDoubt, Retriable):
            continue
        reported = "decided"
        while reported == "decided" and time.monotonic() < until:
            transaction_id = f"driver-{driver}-{len(told)}"
            following = 0 if opened.tail.decided is None else opened.tail.decided + 1
            committables = {"sink": (Committable(transaction_id, {}, 1),)}
            try:
                opened.decide(Decision(Round(opened.incarnation, following), committables))
            except (Fenced, InDoubt) as error:
                reported = type(error).__name__
            told.append((transaction_id, reported))
    return told


@pytest.mark.parametrize("name", ["s3", "azure", "gcs", "hdfs", "postgres"])
def test_what_a_driver_reports_of_its_decision_is_what_the_log_has(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: Log = request.getfixturevalue(name)
    monkeypatch.setattr("twopc.log.steps.ENTRIES_KEPT", 10**6)
    with ThreadPoolExecutor(2) as pool:
        told = [each for found in pool.map(lambda driver: race(log, driver), range(2)) for each in found]
    decided = log.decided()
    assert {transaction_id for transaction_id, reported in told if reported == "decided"} <= decided
    assert not {transaction_id for transaction_id, reported in told if reported == "Fenced"} & decided
    assert log.network.happened.keys() >= {"delayed", "request lost", "answer lost", "cut", "reset"}
