"""Writing from a Spark Connect client. The server runs in the JVM of the tests' session."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import rows
from twopc.spark import TwoPhaseCommitDataSource, foreach_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Pipeline

pytestmark = pytest.mark.spark

A_SLOW_START_S = 180


@pytest.fixture(scope="module")
def client(spark: SparkSession) -> Iterator[Any]:
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    context = spark.sparkContext._jsc.sc()
    service = spark._jvm.org.apache.spark.sql.connect.service.SparkConnectService  # type: ignore[union-attr]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1")
    context.conf().set("spark.connect.grpc.binding.port", str(port))
    service.start(context)
    session = RemoteSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    session.dataSource.register(TwoPhaseCommitDataSource)
    yield session
    session.stop()
    service.stop(getattr(service, "stop$default$1")(), getattr(service, "stop$default$2")())


@pytest.fixture
def connected(client: Any, pipeline: Pipeline) -> Pipeline:
    return type(pipeline)(client, pipeline.folder)


def options(pipeline: Pipeline, **more: str) -> dict[str, str]:
    path = str(pipeline.folder / "archive")
    return {"sink": "files", "path": path, "format": "json", "log": str(pipeline.log), **more}


def test_a_query_by_format_twopc_writes_each_record_once_and_goes_on_after_a_restart(connected: Pipeline) -> None:
    for batches in ([(1, 2), (3,)], [(4,)]):
        for ids in batches:
            connected.add_batch(rows(*ids))
        query = (
            connected.source()
            .writeStream.format("twopc")
            .options(**options(connected, checkpointLocation=str(connected.checkpoint)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert sorted(connected.archived(), key=lambda row: int(row["id"])) == rows(1, 2, 3, 4)
    assert connected.decided_batches() == [0, 1, 2]
    assert connected.pending_files() == []


def test_a_batch_write_that_is_repeated_is_there_once(connected: Pipeline) -> None:
    data = connected.spark.sql("SELECT id, 'a' AS name FROM range(1, 4)")
    for _ in range(2):
        data.write.format("twopc").mode("append").options(**options(connected, batch_id="0")).save()
    assert sorted(connected.archived(), key=lambda row: int(row["id"])) == rows(1, 2, 3)
    assert connected.decided_batches() == [0]
    assert connected.pending_files() == []


def _why_it_ended(connected: Pipeline) -> str:
    """Return the error of a query with ``foreach_batch``. The server gives its Python process ten seconds to begin, so
    the query is tried again on a busy machine."""
    from pyspark.errors.exceptions.connect import SparkException, StreamingQueryException

    deadline = time.monotonic() + A_SLOW_START_S
    while True:
        try:
            connected.run(foreach_batch(connected.files(), log=str(connected.log)))
        except StreamingQueryException as ended:
            return str(ended)
        except SparkException as slow:
            if "waiting for the Python worker to connect back" not in str(slow) or time.monotonic() > deadline:
                raise


def test_foreach_batch_is_refused_with_the_reason_and_the_way_out_and_nothing_is_written(connected: Pipeline) -> None:
    connected.add_batch(rows(1))
    said = _why_it_ended(connected)
    assert "ConfigurationError: foreach_batch does not work through Spark Connect" in said
    assert "does not know its query's id" in said
    assert "Use writeStream.format('twopc')" in said
    assert not connected.log.exists()
    assert not Path(connected.folder / "archive").exists()
