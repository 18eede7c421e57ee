"""Fixtures of several folders: one Spark session, as a process has one context at most, and the end of each module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.hdfs_server import HdfsServer, why_not
from tests.support.spark_home import set_java_and_python
from tests.support.spark_session import session
from twopc import resting
from twopc.testing import SinkContract
from twopc_kafka.client import cluster, control
from twopc_kafka_broker import spark_kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


KILLS_IN_THE_CONTRACT = SinkContract.test_a_process_killed_at_any_step_neither_loses_nor_doubles_a_record.__name__


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the test of the contract that kills processes its mark: the contract ships without this project's marks."""
    for item in items:
        if item.name.partition("[")[0] == KILLS_IN_THE_CONTRACT:
            item.add_marker(pytest.mark.crash)


@pytest.fixture(scope="module", autouse=True)
def nothing_of_a_module_goes_on_after_it() -> Iterator[None]:
    """Coordinators that a test has not closed would rest, and connections look for brokers that are gone, with more and
    more sockets: py4j can select none above the 1023rd."""
    yield
    for coordinator in tuple(resting._resting):
        resting._resting.discard(coordinator)
        coordinator._busy.set()
    for of_process in (control._controls, cluster._clusters):
        while of_process._kept:
            of_process._kept.popitem()[1].close()


@pytest.fixture(scope="session")
def java_home() -> str:
    """A Java for Spark, in the environment of this process and of the drivers that it starts."""
    return set_java_and_python()


@pytest.fixture(scope="session")
def spark(java_home: str) -> Iterator[SparkSession]:
    """One session for all tests. A task is tried twice: master ``local`` alone would not try again."""
    import pyspark

    assert java_home
    settings = {
        # Several record batches per task, so that a transaction is begun before the last record is read.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    jars = ":".join(map(str, spark_kafka_jars(pyspark.__version__)))
    running = session("local[2,2]", settings, jars=jars, log_level="OFF")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """One HDFS for all tests of a process."""
    if why := why_not():
        pytest.skip(why)
    with HdfsServer(tmp_path_factory.mktemp("hdfs")) as server:
        yield server
