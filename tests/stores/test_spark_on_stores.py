"""Spark queries whose log and files are in a store. Their driver is killed amid phase two, and started again."""

import json
import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.files.conftest import Place
from tests.spark.driver import driver
from tests.support.azurite_server import AzuriteServer
from tests.support.gcs_server import BUILD_AT_MOST_S, GcsServer
from tests.support.hdfs_server import HOME, USER, HdfsServer
from tests.support.postgres_server import PostgresServer
from twopc.log.commit_log import read_tail
from twopc.log.store import open_store

pytestmark = [pytest.mark.crash, pytest.mark.long]

BATCHES = 3


@dataclass(frozen=True)
class Store:
    """Where a query keeps its files and its log.

    Attributes:
        environment: the options of the store's client.
        log_options: the same, for this process.
    """

    files: Place
    log: str
    environment: dict[str, str]
    log_options: dict[str, Any]


@pytest.fixture
def azure(azurite: AzuriteServer) -> Store:
    url, options = f"abfs://{azurite.make_container()}", azurite.storage_options
    environment = {"FSSPEC_ABFS_CONNECTION_STRING": options["connection_string"]}
    return Store(Place(f"{url}/orders", options), f"{url}/log", environment, options)


@pytest.fixture
def gcs(gcs_server: GcsServer) -> Store:
    bucket, options = uuid.uuid4().hex, gcs_server.storage_options
    gcs_server.make_bucket(bucket)
    environment = {f"FSSPEC_GS_{name.upper()}": value for name, value in options.items()}
    return Store(Place(f"gs://{bucket}/orders", options), f"gs://{bucket}/log", environment, options)


@pytest.fixture
def hdfs(hdfs_server: HdfsServer) -> Store:
    hdfs_server.start()  # what an earlier test has killed
    url, options = hdfs_server.url(f"{HOME}/{uuid.uuid4().hex}"), {"user": USER}
    return Store(Place(f"{url}/orders", options), f"{url}/log", {"FSSPEC_WEBHDFS_USER": USER}, options)


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Store]:
    """The files are on a disk."""
    with PostgresServer() as server:
        environment, options = {"PGPASSWORD": server.password}, {"password": server.password}
        yield Store(Place((tmp_path / "orders").as_uri()), server.log_url("orders"), environment, options)


def add_batches(folder: Path) -> list[str]:
    """Add a file per batch. Return the values of all."""
    (folder / "source").mkdir(parents=True)
    written = []
    for batch in range(BATCHES):
        values = [f"{batch} {number}" for number in range(10)]
        file = folder / "source" / f"{batch}.json"
        file.write_text("".join(json.dumps({"value": value}) + "\n" for value in values))
        os.utime(file, (batch, batch))
        written += values
    return written


@pytest.mark.timeout(BUILD_AT_MOST_S)
@pytest.mark.usefixtures("java_home")
@pytest.mark.parametrize("way", ["foreach_batch", "format"])
@pytest.mark.parametrize("name", ["azure", "gcs", "hdfs", "postgres"])
def test_a_query_whose_driver_is_killed_amid_its_commits_loses_and_doubles_nothing(
    way: str, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store: Store = request.getfixturevalue(name)
    values = add_batches(tmp_path)
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "committed").touch()  # one of two files
    job = {"scene": "files", "way": way, "folder": str(tmp_path), "path": store.files.url, "log": store.log}

    for code in (-signal.SIGKILL, 0):
        with driver(job, {**os.environ, **store.environment}) as process:
            assert process.wait(timeout=500) == code, (tmp_path / "driver.log").read_text()

    assert sorted(store.files.values()) == sorted(values)
    assert len(store.files.files()) == 2 * BATCHES
    tail = read_tail(open_store(store.log, **store.log_options))
    assert tail
    assert tail[1].decided == BATCHES - 1
