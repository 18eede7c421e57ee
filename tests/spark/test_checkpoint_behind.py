"""A checkpoint that is behind its log: refused before anything is written, and mended by the command.

The same query without the loss runs beside it, and in the end both have written the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException

from twopc.cli.commands import cli
from twopc.spark import TwoPhaseCommitDataSource, foreach_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.spark.conftest import Pipeline

pytestmark = pytest.mark.spark

Plan: TypeAlias = "Callable[[DataFrame], DataFrame]"


def repaired(pipeline: Pipeline, *options: str) -> dict[str, Any]:
    """What the command shows."""
    arguments = ["checkpoint", "repair", str(pipeline.checkpoint), str(pipeline.log), "--yes", "--json", *options]
    done = CliRunner().invoke(cli, arguments)
    shown: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == 0, shown
    return shown


@dataclass
class Query:
    """A query by ``foreach_batch``, on files: each is a batch, unless told otherwise."""

    pipeline: Pipeline
    plan: Plan = field(default=lambda events: events)
    output_mode: str = "append"

    def add(self, *minutes: int) -> None:
        """A file with an event in each of these minutes."""
        ids = [self.seen() + n for n in range(len(minutes))]
        self.pipeline.add_batch(
            [{"id": n, "name": f"{at // 60:02d}:{at % 60:02d}"} for n, at in zip(ids, minutes, strict=True)]
        )

    def seen(self) -> int:
        return sum(len(file.read_text().splitlines()) for file in (self.pipeline.folder / "source").glob("*"))

    def events(self, files_a_batch: int) -> DataFrame:
        files = self.pipeline.spark.readStream.schema("id LONG, name STRING").option(
            "maxFilesPerTrigger", files_a_batch
        )
        rows = files.json(str(self.pipeline.folder / "source"))
        return rows.selectExpr("id", "name AS at_text", "to_timestamp('2026-01-01 ' || name || ':00') AS at")

    def run(self, files_a_batch: int = 1) -> None:
        self.start(self.plan(self.events(files_a_batch)))

    def start(self, frame: DataFrame) -> None:
        write = foreach_batch(self.pipeline.files(), log=str(self.pipeline.log))
        query = frame.writeStream.foreachBatch(write).outputMode(self.output_mode)
        query.option("checkpointLocation", str(self.pipeline.checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()

    def refusal(self, files_a_batch: int = 1) -> str:
        """What a start is refused with. Nothing is written."""
        before = self.pipeline.archived()
        with pytest.raises(StreamingQueryException) as refused:
            self.run(files_a_batch)
        assert "twopc.errors.LogMismatch" in str(refused.value)
        assert self.pipeline.archived() == before
        assert self.pipeline.staged() == []
        return str(refused.value)

    def lose(self, *batch_ids: int) -> None:
        """What a power cut does to files that Spark does not sync: those of the newest batches are gone."""
        for batch_id in batch_ids:
            for folder in ("offsets", "commits", "sources/0"):
                for name in (f"{batch_id}", f".{batch_id}.crc", f"{batch_id}.compact", f".{batch_id}.compact.crc"):
                    (self.pipeline.checkpoint / folder / name).unlink(missing_ok=True)

    def written(self) -> list[str]:
        return sorted(json.dumps(row, sort_keys=True) for row in self.pipeline.archived())


class ByFormat(Query):
    """The same by ``format("twopc")``."""

    def start(self, frame: DataFrame) -> None:
        options = {"sink": "files", "path": str(self.pipeline.folder / "archive"), "format": "json"}
        query = frame.writeStream.format("twopc").options(**options, log=str(self.pipeline.log))
        query.option("checkpointLocation", str(self.pipeline.checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()


def counts(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  # its customary name

    grouped = events.withWatermark("at", "2 minutes").groupBy(F.window("at", "1 minute")).count()
    return grouped.selectExpr("CAST(window.start AS STRING) AS minute", "count")


def deduplicated(events: DataFrame) -> DataFrame:
    distinct = events.withWatermark("at", "2 minutes").dropDuplicates(["at_text", "at"])
    return distinct.select("id", "at_text")


def joined(events: DataFrame) -> DataFrame:
    """Each event with those of the same minute that have an even number, or with none. One source, twice in the plan."""
    from pyspark.sql.functions import expr

    left = events.selectExpr("id", "at_text", "at").withWatermark("at", "1 minute")
    even = (
        events.where("id % 2 = 0")
        .selectExpr("id AS id2", "at_text AS text2", "at AS at2")
        .withWatermark("at2", "1 minute")
    )
    both = left.join(even, expr("at_text = text2 AND at2 >= at - INTERVAL 1 MINUTE AND at2 <= at"), "leftOuter")
    return both.select("id", "id2")


PLANS: Mapping[str, Plan] = {
    "counts": counts,
    "deduplicated": deduplicated,
    "joined": joined,
    "plain": lambda e: e.select("id"),
}


@pytest.fixture(autouse=True, scope="module")
def data_source(spark: Any) -> None:
    spark.dataSource.register(TwoPhaseCommitDataSource)


@pytest.mark.parametrize("kind", [Query, ByFormat], ids=["foreach_batch", "format"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("lost", [1, 3])
def test_a_query_goes_on_where_it_was(pipeline: Pipeline, kind: type[Query], plan: str, lost: int) -> None:
    query, control = (kind(pipeline.beside(name), PLANS[plan]) for name in ("lossy", "control"))
    for each in (query, control):
        for minute in range(5):
            each.add(minute, minute + 1, minute)
        each.run()
        each.add(5, 7, 3)
        each.add(9, 8, 5)
    query.lose(*range(5 - lost, 5) if plan == "plain" else range(len(query.pipeline.entries("decide")))[-lost:])
    first = len(list((query.pipeline.checkpoint / "offsets").glob("[0-9]*")))

    said = query.refusal(2)
    assert f"batch {first} is decided in the commit log" in said
    for _ in range(lost if plan != "plain" else 1):
        shown = repaired(query.pipeline)
        assert shown["changes"]
        if shown["remaining"]:
            query.refusal(2)
    query.run(2)
    control.run(2)
    assert query.written() == control.written()
    for each in (query, control):
        each.add(15, 16)
        each.run()
    assert query.written() == control.written()
    assert repaired(query.pipeline)["changes"] == []
