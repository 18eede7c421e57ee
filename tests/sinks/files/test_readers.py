"""Real readers, while batches of several files are committed one file at a time."""

import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from pyspark.sql import DataFrame, SparkSession

from twopc import Participant, Round
from twopc.errors import ConfigurationError
from twopc_files import committed_files
from twopc_files.batch_log import CommittedFile
from twopc_files.manifest import manifest
from twopc_files.sink import FileSink
from twopc_files.spark_metadata import spark_metadata

FILES = 3
"""Of a batch, with a record each."""


class Query:
    """Commits batches of ``FILES`` files through the sink, which keeps both logs."""

    def __init__(self, folder: Path, batch_logs: str = "spark,manifest", kept_for_s: float = 600) -> None:
        self.sink = FileSink({"path": str(folder), "batch_logs": batch_logs} if batch_logs else {"path": str(folder)})
        self.sink.bind("orders", "log")
        self._kept_for_s = kept_for_s

    def open(self) -> None:
        self.sink.open()
        for log in self.sink._logs:
            log._kept_for_s = self._kept_for_s
        self.sink.seal([], age_s=0)  # as of a first batch: it creates the logs

    def steps(self, batch_id: int) -> Iterator[bool]:
        """Run a batch, and pause after each file; yields whether the batch is complete."""
        votes = []
        for partition in range(FILES):
            with Participant({"orders": self.sink}, Round(1, batch_id), partition=partition) as participant:
                participant.write("orders", pa.record_batch({"batch": [batch_id], "partition": [partition]}))
                votes.append(participant.pre_commit()["orders"])
        yield False
        for vote in votes:
            self.sink.commit(vote)
            yield False
        self.sink.complete(batch_id, votes)
        yield True

    def run(self, *batch_ids: int) -> None:
        for batch_id in batch_ids:
            assert list(self.steps(batch_id))[-1]


Batches = dict[int, int]
"""Batch → how many of its records a reader saw."""

Reader = Callable[[Path], Batches]


def whole(count: int) -> Batches:
    return dict.fromkeys(range(count), FILES)


def by_duckdb(folder: Path) -> Batches:
    files = committed_files(str(folder))
    rows = duckdb.execute("SELECT batch FROM read_parquet(?)", [files]).fetchall() if files else []
    return Counter(batch for (batch,) in rows)


def by_pandas(folder: Path) -> Batches:
    files = committed_files(str(folder))
    return Counter(pd.concat(map(pd.read_parquet, files))["batch"]) if files else {}


def by_pyarrow(folder: Path) -> Batches:
    files = committed_files(folder.as_uri())
    return Counter(ds.dataset(files).to_table()["batch"].to_pylist()) if files else {}


def in_spark(frame: DataFrame) -> Batches:
    return Counter(row["batch"] for row in frame.select("batch").collect())


def by_spark(spark: SparkSession) -> Reader:
    return lambda folder: in_spark(spark.read.schema("batch long, partition long").parquet(str(folder)))


def by_listing(folder: Path) -> Batches:
    table = ds.dataset(str(folder), format="parquet").to_table()  # the folder, and not a word of any log
    return Counter(table["batch"].to_pylist()) if table.num_columns else {}


@pytest.mark.long
def test_at_every_step_of_phase_two_readers_see_whole_batches_and_a_listing_sees_committed_files(
    spark: SparkSession, folder: Path
) -> None:
    query = Query(folder)
    query.open()
    for batch_id in range(2):
        for committed, complete in enumerate(query.steps(batch_id)):
            for reader in (by_spark(spark), by_duckdb, by_pandas, by_pyarrow):
                assert reader(folder) == whole(batch_id + complete), reader
            seen = whole(batch_id) | {batch_id: min(committed, FILES)}
            assert Counter(by_listing(folder)) == Counter(seen)


@pytest.mark.parametrize("reader", [pytest.param("spark", marks=pytest.mark.long), "duckdb", "pandas", "pyarrow"])
def test_while_batches_are_committed_every_read_is_of_whole_batches(
    reader: str, spark: SparkSession, folder: Path
) -> None:
    read = {"spark": by_spark(spark), "duckdb": by_duckdb, "pandas": by_pandas, "pyarrow": by_pyarrow}[reader]
    query = Query(folder)
    query.open()
    enough, paused = threading.Event(), threading.Event()

    def commit() -> None:
        for batch_id in itertools.count():
            for _ in query.steps(batch_id):
                paused.set()  # a reader looks from here on, whatever is committed meanwhile
            if enough.is_set():
                return

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        seen: list[int] = []
        while thread.is_alive() and len(set(seen)) < 6:
            assert paused.wait(30)
            paused.clear()
            batches = read(folder)
            assert batches == whole(len(batches))
            seen.append(len(batches))
    finally:
        enough.set()
        thread.join()
    assert seen == sorted(seen)
    assert len(set(seen)) >= 4


@pytest.mark.long
def test_a_spark_stream_sees_each_batch_whole_and_once(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    query = Query(folder)
    query.open()
    stream = (
        spark.readStream.schema("batch long, partition long")
        .parquet(str(folder))
        .writeStream.format("memory")
        .queryName("seen_by_a_stream")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        for batch_id in range(10):  # beyond a compact entry
            for complete in query.steps(batch_id):
                stream.processAllAvailable()
                assert in_spark(spark.table("seen_by_a_stream")) == whole(batch_id + complete)
    finally:
        stream.stop()


@pytest.mark.long
def test_spark_reads_a_log_of_which_the_old_entries_are_gone(spark: SparkSession, folder: Path) -> None:
    query = Query(folder, kept_for_s=0)
    query.open()
    for last in (8, 19, 38):
        query.run(*range(len(by_listing(folder)), last + 1))
        assert by_spark(spark)(folder) == by_duckdb(folder) == whole(last + 1)
    assert len(list((folder / "_spark_metadata").iterdir())) < 20


@pytest.mark.variants
@pytest.mark.parametrize("first", [0, 25])
def test_a_log_that_is_begun_in_a_folder_with_batches_shows_them(first: int, spark: SparkSession, folder: Path) -> None:
    before = Query(folder, batch_logs="")
    before.run(*range(first + 1))
    assert by_spark(spark)(folder) == whole(first + 1)
    query = Query(folder)
    query.open()
    assert by_spark(spark)(folder) == by_pandas(folder) == whole(first + 1)
    for batch_id in range(first + 1, first + 4):
        query.run(batch_id)
        assert by_spark(spark)(folder) == by_pandas(folder) == whole(batch_id + 1)


def test_partition_columns_and_names_that_a_url_must_quote_are_read(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "Auftrge für 100% [a+b] #1"
    days = {"2024-01-01 10:00": "2024-01-01 10%3A00", "ü é": "ü é", "50%": "50%25", "a=b": "a%3Db"}
    files = []
    for name in days.values():
        path = folder / f"day={name}" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"batch": [0]}), path)
        files.append(CommittedFile(str(path.relative_to(folder)), path.stat().st_size, 1))
    for make in (spark_metadata, manifest):
        log = make(LocalFileSystem(), str(folder), "twopc.log.orders.")
        log.begin()
        assert sorted(file.path for file in log.files()) == sorted(file.path for file in files)
    assert {row["day"] for row in spark.read.parquet(str(folder)).collect()} == set(days)
    table = ds.dataset(committed_files(str(folder)), partitioning="hive").to_table()
    assert set(table["day"].to_pylist()) == set(days)
    rows = duckdb.execute(
        "SELECT day FROM read_parquet(?, hive_partitioning = true, hive_types_autocast = false)",
        [committed_files(str(folder))],
    ).fetchall()
    assert {day for (day,) in rows} == set(days)


def spark_writes(spark: SparkSession, folder: Path, beside: Path) -> None:
    """One batch of one record, by Spark's own file sink."""
    (beside / "source").mkdir()
    (beside / "source" / "0.csv").write_text("0\n")
    stream = (
        spark.readStream.schema("batch long")
        .csv(str(beside / "source"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(beside / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder))
    )
    stream.awaitTermination()


def test_the_log_that_sparks_own_sink_keeps_is_refused(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    spark_writes(spark, folder, tmp_path)
    with pytest.raises(ConfigurationError, match=r"_spark_metadata was written by another program"):
        Query(folder).open()
    assert in_spark(spark.read.parquet(str(folder))) == {0: 1}


def test_a_line_of_ours_is_what_spark_itself_writes(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """But for the name, the size and the time of a file."""
    query = Query(folder)
    query.open()
    query.run(0)
    ours = json.loads((folder / "_spark_metadata" / "1").read_text().splitlines()[2])
    theirs_folder = tmp_path / "spärk %"
    spark_writes(spark, theirs_folder, tmp_path)
    theirs = json.loads((theirs_folder / "_spark_metadata" / "0").read_text().splitlines()[1])
    assert list(ours) == list(theirs)
    varying = ("path", "size", "modificationTime")
    assert {k: v for k, v in ours.items() if k not in varying} == {k: v for k, v in theirs.items() if k not in varying}
    name = theirs["path"].rsplit("/", 1)[1]
    log: Any = spark_metadata(LocalFileSystem(), str(theirs_folder), "")
    assert log._format.encode("", [CommittedFile(name, 0)]).decode().count(theirs["path"]) == 1


def test_what_the_readme_shows_for_other_readers_runs(folder: Path) -> None:
    query = Query(folder)
    query.open()
    query.run(0, 1)
    readme = Path(__file__).parents[3] / "plugins" / "files" / "README.md"
    [code] = re.findall(r"```python\n(import duckdb.*?)```", readme.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace('"/data/orders"', repr(str(folder))), names)  # noqa: S102  # our own documentation
    assert Counter(row[0] for row in names["rows"]) == whole(2)
    assert Counter(names["frame"]["batch"]) == whole(2)
    assert Counter(names["table"]["batch"].to_pylist()) == whole(2)


def test_a_folder_without_a_manifest_is_a_clear_error(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no log of complete batches at .*Is .*the folder of a sink"):
        committed_files(str(folder))
