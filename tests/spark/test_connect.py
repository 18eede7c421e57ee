"""Writing from a Spark Connect client. The server runs in the JVM of the tests' session."""

import json
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

import twopc
from tests.spark.conftest import Pipeline, rows
from tests.support.spark_session import write_all
from twopc.errors import LogMismatch
from twopc.spark import ForeachBatch, Output, foreach_batch
from twopc.spark.engine import ConnectEngine
from twopc_kafka_broker import KafkaBroker

pytestmark = pytest.mark.long

A_SLOW_START_S = 180


def options(pipeline: Pipeline, **more: str) -> dict[str, str]:
    path = str(pipeline.folder / "archive")
    return {"sink": "files", "path": path, "format": "json", "log": str(pipeline.log), **more}


def test_a_query_by_format_twopc_writes_each_record_once_and_goes_on_after_a_restart(connected: Pipeline) -> None:
    for batches in ([(1, 2), (3,)], [(4,)]):
        for ids in batches:
            connected.add_batch(rows(*ids))
        write_all(connected.source().writeStream.format("twopc").options(**options(connected)), connected.checkpoint)
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


def run(connected: Pipeline, writer: ForeachBatch) -> None:
    """Run the query over all added batches. The server gives its Python process ten seconds to begin, so the query is
    started again on a busy machine."""
    from pyspark.errors.exceptions.connect import SparkException

    deadline = time.monotonic() + A_SLOW_START_S
    while True:
        try:
            return connected.run(writer)
        except SparkException as slow:
            if "waiting for the Python worker to connect back" not in str(slow) or time.monotonic() > deadline:
                raise


def refused(connected: Pipeline, writer: ForeachBatch) -> str:
    from pyspark.errors.exceptions.connect import StreamingQueryException

    with pytest.raises(StreamingQueryException) as ended:
        run(connected, writer)
    return str(ended.value)


def of_two(connected: Pipeline, checkpoint: Path | None = None, log: Path | None = None) -> ForeachBatch:
    """Return a writer of even rows, by a Column of the client's, to one folder and all rows to another."""
    from pyspark.sql.connect.functions import col

    even = twopc.create_sink("files", {"path": str(connected.folder / "even"), "format": "json"})
    outputs = {"even": Output(even, ["id"], col("id") % 2 == 0), "archive": Output(connected.files())}
    return foreach_batch(outputs, log=str(log or connected.log), checkpoint=checkpoint or connected.checkpoint)


def even_ids(connected: Pipeline) -> list[int]:
    files = (connected.folder / "even").glob("part-*")
    return sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())


def test_foreach_batch_writes_to_two_sinks_in_one_decision_and_goes_on_after_a_restart(connected: Pipeline) -> None:
    for batches in ([(1, 2), (3,)], [(4, 6)]):
        for ids in batches:
            connected.add_batch(rows(*ids))
        run(connected, of_two(connected))
    assert connected.archived_ids() == [1, 2, 3, 4, 6]
    assert even_ids(connected) == [2, 4, 6]
    assert connected.decided_batches() == [0, 1, 2]
    assert connected.pending_files() == []


def test_upserts_and_deletes_apply(connected: Pipeline) -> None:
    for batch in ([(1, "a"), (2, "a"), (1, "b")], [(2, "gone"), (3, "a"), (3, "c")]):
        connected.add_batch([{"id": id, "name": name} for id, name in batch])
    database = connected.folder / "orders.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, name TEXT)")
        sink = twopc.create_sink("sql", {"url": f"sqlite:///{database}", "table": "orders", "upsert_by": "id"})
        output = Output(sink, ["id", "name"], delete_where="name = 'gone'", latest_by="name")
        run(connected, foreach_batch(output, log=str(connected.log), checkpoint=connected.checkpoint))
        assert connection.execute("SELECT id, name FROM orders ORDER BY id").fetchall() == [(1, "b"), (3, "c")]


def test_a_batch_that_spark_repeats_is_recognized(connected: Pipeline) -> None:
    connected.add_batch(rows(1, 2))
    run(connected, of_two(connected))
    for file in (connected.checkpoint / "commits").glob("*0*"):
        file.unlink()  # as if the server had died before Spark recorded the batch
    connected.add_batch(rows(3))
    run(connected, of_two(connected))
    assert connected.archived_ids() == [1, 2, 3]
    assert connected.decided_batches() == [0, 1]


def test_foreach_batch_without_the_checkpoint_is_refused_with_the_reason_and_the_way_out(connected: Pipeline) -> None:
    connected.add_batch(rows(1))
    said = refused(connected, connected.writer())
    assert "ConfigurationError: through Spark Connect, foreach_batch can't ask Spark" in said
    assert "foreach_batch(..., checkpoint=...)" in said
    assert not connected.log.exists()
    assert not Path(connected.folder / "archive").exists()


def test_a_checkpoint_of_another_query_is_refused_before_anything_is_written(connected: Pipeline) -> None:
    other = connected.beside("other")
    other.add_batch(rows(1))
    run(other, of_two(other))
    connected.add_batch(rows(2))
    said = refused(connected, of_two(connected, checkpoint=other.checkpoint))
    assert "belongs to query" in said
    assert "the session runs" in said
    assert "the query's id can't be read from" in refused(connected, of_two(connected, checkpoint=Path("/nowhere")))
    assert not connected.log.exists()


def test_another_query_on_the_same_log_and_a_deleted_checkpoint_are_refused(connected: Pipeline) -> None:
    connected.add_batch(rows(1))
    run(connected, of_two(connected))
    other = connected.beside("other")
    other.add_batch(rows(2))
    assert "the commit log belongs to query" in refused(other, of_two(other, log=connected.log))
    shutil.rmtree(connected.checkpoint)
    assert "the commit log belongs to query" in refused(connected, of_two(connected))
    assert connected.archived_ids() == [1]


def test_offsets_are_refused_by_name(connected: Pipeline, kafka_broker: KafkaBroker) -> None:
    group = {"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": "a-group"}
    offsets = twopc.create_sink("kafka-offsets", group)
    connected.add_batch(rows(1))
    writer = connected.writer(offsets=offsets, checkpoint=connected.checkpoint)
    assert "'offsets' does not work through Spark Connect" in refused(connected, writer)


def plan(checkpoint: Path, batch_id: int) -> None:
    (checkpoint / "offsets").mkdir(exist_ok=True)
    (checkpoint / "offsets" / f"{batch_id}").write_text(
        f'v1\n{{"batchWatermarkMs":0}}\n{{"orders":{{"0":{batch_id}}}}}'
    )


def test_a_batch_that_is_run_again_reads_the_same_and_follows_the_same(tmp_path: Path) -> None:
    plan(tmp_path, 0)
    plan(tmp_path, 1)
    found = ConnectEngine(None, str(tmp_path))
    with pytest.raises(LogMismatch, match=r"the newest batch in its checkpoint at .* is 1"):
        found.of_batch(2)
    first = found.of_batch(1)
    assert (first.reads["sources"], first.follows and first.follows["sources"]) == (
        [{"orders": {"0": 1}}],
        [{"orders": {"0": 0}}],
    )
    assert found.of_batch(1) == first
    plan(tmp_path, 2)
    assert found.of_batch(2).follows is None  # this process has planned the batch before
