"""A checkpoint that is behind its log is refused before anything is written, and repaired by the command.

The same query without the loss runs beside it, and in the end both have written the same.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its customary name

from tests.spark.conftest import Pipeline, Topic
from tests.support.spark_session import write_all
from twopc.cli.commands import cli
from twopc.spark import TwoPhaseCommitDataSource

Plan: TypeAlias = "Callable[[DataFrame], DataFrame]"


@pytest.fixture(autouse=True, scope="module")
def data_source(spark: SparkSession) -> None:
    spark.dataSource.register(TwoPhaseCommitDataSource)


def repaired(pipeline: Pipeline) -> dict[str, Any]:
    """Run the repair command, and return its output."""
    arguments = ["checkpoint", "repair", str(pipeline.checkpoint), str(pipeline.log), "--yes", "--json"]
    done = CliRunner().invoke(cli, arguments)
    shown: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == 0, shown
    return shown


@dataclass
class Query:
    """A query by ``foreach_batch`` on its own files."""

    pipeline: Pipeline
    plan: Plan

    def add(self, *minutes: int) -> None:
        """Add a file with one event in each of these minutes."""
        first = sum(len(file.read_text().splitlines()) for file in (self.pipeline.folder / "source").glob("*"))
        self.pipeline.add_batch([{"id": n, "name": f"00:{minute:02d}"} for n, minute in enumerate(minutes, first)])

    def events(self, files_a_batch: int) -> DataFrame:
        source = self.pipeline.spark.readStream.schema("id LONG, name STRING")
        files = source.option("maxFilesPerTrigger", files_a_batch).json(str(self.pipeline.folder / "source"))
        return files.selectExpr("id", "name", "to_timestamp('2026-01-01 ' || name || ':00') AS at")

    def run(self, files_a_batch: int = 1) -> None:
        """Run the query over all files, in batches of so many files."""
        self.start(self.plan(self.events(files_a_batch)))

    def start(self, frame: DataFrame) -> None:
        write_all(frame.writeStream.foreachBatch(self.pipeline.writer()), self.pipeline.checkpoint)

    def lose(self, batches: int) -> int:
        """Remove the files of the newest batches, as a power cut does to files that Spark does not sync. Return the
        first of these batches."""
        folder = self.pipeline.checkpoint
        newest = max(int(file.name) for file in (folder / "offsets").glob("[0-9]*"))
        before = newest - batches
        kept = re.findall(r'"logOffset":(\d+)', (folder / f"offsets/{before}").read_text()) if before >= 0 else []
        numbered = {"offsets": before, "commits": before, "sources/0": int(kept[0]) if kept else before}
        for name, last in numbered.items():
            for file in [*(folder / name).glob("[0-9]*"), *(folder / name).glob(".[0-9]*")]:
                if int(re.findall(r"\d+", file.name)[0]) > last:
                    file.unlink()
        for file in (folder / "state").rglob("*"):  # whose versions count from 1
            version = re.match(r"\.?(\d+)\.", file.name)
            if version and int(version[1]) > before + 1:
                file.unlink()
        return before + 1


class ByFormat(Query):
    """The same query by ``format("twopc")``."""

    def start(self, frame: DataFrame) -> None:
        options = {"sink": "files", "path": str(self.pipeline.folder / "archive"), "format": "json"}
        writer = frame.writeStream.format("twopc").options(**options, log=str(self.pipeline.log))
        write_all(writer, self.pipeline.checkpoint)


def refusal(pipeline: Pipeline, start: Callable[[], None]) -> str:
    """Return the error with which a start is refused. Nothing is written."""
    before = pipeline.archived()
    with pytest.raises(StreamingQueryException) as refused:
        start()
    assert "twopc.errors.LogMismatch" in str(refused.value)
    assert pipeline.archived() == before
    assert pipeline.pending_files() == []
    return str(refused.value)


def written(pipeline: Pipeline) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in pipeline.archived())


# Files, with state and without. -----------------------------------------------------------------------------------


def plain(events: DataFrame) -> DataFrame:
    return events.select("id")


def counted(events: DataFrame) -> DataFrame:
    counts = events.withWatermark("at", "2 minutes").groupBy(F.window("at", "1 minute")).count()
    return counts.selectExpr("CAST(window.start AS STRING) AS minute", "count")


def deduplicated(events: DataFrame) -> DataFrame:
    return events.withWatermark("at", "2 minutes").dropDuplicates(["name", "at"]).select("id", "name")


def joined(events: DataFrame) -> DataFrame:
    """Join each event with the even ones of its minute, or with none. The plan has its source twice."""
    left = events.withWatermark("at", "1 minute")
    even = events.where("id % 2 = 0").selectExpr("id AS id2", "name AS name2", "at AS at2")
    near = F.expr("name = name2 AND at2 >= at - INTERVAL 1 MINUTE AND at2 <= at")
    return left.join(even.withWatermark("at2", "1 minute"), near, "leftOuter").select("id", "id2")


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "plan", "lost"),
    [
        (Query, plain, 2),
        (Query, plain, 4),
        (Query, counted, 3),
        (ByFormat, deduplicated, 1),
        (ByFormat, joined, 2),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_query_goes_on_exactly_where_it_was(
    pipeline: Pipeline, compacted: None, kind: type[Query], plan: Plan, lost: int
) -> None:
    query, control = (kind(pipeline.beside(name), plan) for name in ("lossy", "control"))
    for each in (query, control):
        for minute in range(max(lost, 2) + 2):  # four files at least, so that one is compact
            each.add(minute, minute + 1, minute)
        each.run()
        each.add(minute + 1, minute + 3, minute - 1)
        each.add(minute + 5, minute + 4, minute + 1)
    first = query.lose(lost)

    said = refusal(query.pipeline, lambda: query.run(2))
    assert f"batch {first} is decided in the commit log" in said or f"is at batch {first}, " in said
    shown = repaired(query.pipeline)
    assert shown["remaining"] == (0 if plan is plain else lost - 1)
    while shown["remaining"]:  # a query with state needs every batch, one by one
        refusal(query.pipeline, lambda: query.run(2))
        shown = repaired(query.pipeline)
    query.run(2)
    control.run(2)
    assert written(query.pipeline) == written(control.pipeline)
    for each in (query, control):
        each.add(16, 17)  # later than all
        each.run()
    assert written(query.pipeline) == written(control.pipeline)
    assert repaired(query.pipeline)["changes"] == []


@pytest.fixture
def compacted(spark: SparkSession) -> Iterator[None]:
    """Make every third file of a file source's log a compact one."""
    interval = "spark.sql.streaming.fileSource.log.compactInterval"
    spark.conf.set(interval, "3")
    yield
    spark.conf.unset(interval)


@pytest.mark.long
@pytest.mark.advice(", and comes again with other input")
def test_a_checkpoint_from_a_backup_goes_on_exactly_where_it_was(pipeline: Pipeline) -> None:
    query = Query(pipeline, plain)
    query.add(1, 2)
    query.run()
    shutil.copytree(pipeline.checkpoint, pipeline.folder / "backup")
    for _ in range(2):
        query.add(1)
        query.run()
    shutil.rmtree(pipeline.checkpoint)
    shutil.copytree(pipeline.folder / "backup", pipeline.checkpoint)
    query.add(4, 5)

    said = refusal(pipeline, lambda: query.run(3))
    assert ", and comes again with other input" in said
    assert "run 'twopc checkpoint repair'" in said
    assert re.search(r"files\.0\.1\.2: decided nothing, now {'path': 'file:", said)  # long values are cut
    assert repaired(pipeline)["goes_on_with"] == 2
    query.run()
    assert pipeline.archived_ids() == [0, 1, 2, 3, 4, 5]


# Other sources. ---------------------------------------------------------------------------------------------------


@dataclass
class FromKafka:
    pipeline: Pipeline
    topic: Topic
    starting: str = "earliest"

    def run(self) -> None:
        options = {"kafka.bootstrap.servers": self.topic.servers, "subscribe": self.topic.name}
        source = self.pipeline.spark.readStream.format("kafka").options(**options, startingOffsets=self.starting)
        query = Query(self.pipeline, plain)
        query.start(source.load().selectExpr("CAST(CAST(value AS STRING) AS LONG) AS id"))


@pytest.mark.long
def test_a_query_of_a_topic_goes_on_exactly_where_it_was(pipeline: Pipeline, topic: Topic) -> None:
    query = FromKafka(pipeline, topic)
    for first in (0, 100, 200):
        topic.fill(range(first, first + 100))
        query.run()
    assert Query(pipeline, plain).lose(1) == 2
    topic.fill(range(300, 340))

    said = refusal(pipeline, query.run)
    name = re.escape(topic.name)
    assert re.search(rf"sources\.0\.{name}\.0: decided 150, now 170 \(\+20\)", said)
    assert re.search(rf"sources\.0\.{name}: \+40 in all", said)
    [mismatch] = repaired(pipeline)["mismatches"]
    assert mismatch["records"] == {"0": 40}
    query.run()
    assert pipeline.archived_ids() == [*range(340)]


@pytest.mark.long
def test_the_first_batch_begins_where_it_began(pipeline: Pipeline, topic: Topic) -> None:
    query = FromKafka(pipeline, topic)
    topic.fill(range(100))
    query.run()
    assert Query(pipeline, plain).lose(1) == 0
    query.starting = json.dumps({topic.name: {"0": 10, "1": 10}})
    topic.fill(range(100, 150))

    refusal(pipeline, query.run)
    assert {"path": "sources/0/0", "action": "write"} in repaired(pipeline)["changes"]
    query.run()
    assert pipeline.archived_ids() == [*range(150)]


@pytest.mark.long
def test_a_query_of_a_rate_goes_on_exactly_where_it_was(pipeline: Pipeline) -> None:
    query = Query(pipeline, plain)

    def run(rows: int) -> None:
        source = pipeline.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        query.start(source.load().selectExpr("value AS id"))

    for _ in range(3):
        run(5)
    assert query.lose(1) == 2
    said = refusal(pipeline, lambda: run(50))
    assert "sources.0.offset: decided 15, now 60 (+45)" in said
    repaired(pipeline)
    run(5)
    assert pipeline.archived_ids() == [*range(20)]


@pytest.mark.parametrize("kind", [Query, pytest.param(ByFormat, marks=pytest.mark.long)])
def test_a_batch_that_was_noted_with_other_input_than_it_was_decided_with_has_no_follower(
    pipeline: Pipeline, kind: type[Query]
) -> None:
    """An older driver that slept while the batch was planned anew leaves this behind. With file sources, its offset may
    be the same number for other files. Then the entry's timestamp differs."""
    query = kind(pipeline, plain)
    for minute in range(3):
        query.add(minute)
        query.run()
    noted = pipeline.checkpoint / "offsets" / "2"
    noted.write_text(re.sub(r'"batchTimestampMs":\d+', '"batchTimestampMs":1', noted.read_text()))
    noted.with_name(".2.crc").unlink()
    query.add(3)
    said = refusal(pipeline, query.run)
    assert "would follow a batch 2 with other input" in said
    assert re.search(r"metadata\.batchTimestampMs: decided \d+, now 1", said)
    assert repaired(pipeline)["goes_on_with"] == 2
    query.run()
    assert pipeline.archived_ids() == [0, 1, 2, 3]
