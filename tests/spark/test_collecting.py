"""A batch that is certainly small is written by the driver; any other, or one that it can't write, by tasks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

import twopc
from tests.spark.conftest import Pipeline, Topic, descriptions, dynamic_allocation, mortal
from tests.support.observing import Killed
from tests.support.spark_session import write_all
from tests.support.topic_reader import records_of
from tests.support.waiting import until
from twopc import Participant
from twopc.spark import Output, foreach_batch, tuning
from twopc.spark.task import Written
from twopc.spark.tuning import Collecting
from twopc_kafka_broker import KafkaBroker

PARTITIONS, BATCHES, RECORDS = 2, 4, 10
ON_DRIVER, BY_TASKS = True, False
FIRST_BY_TASKS = [BY_TASKS, *[ON_DRIVER] * (BATCHES - 1)]
"""The first batch after a start is not known to be small."""


@dataclass
class Copying:
    """A query that copies a topic to another one.

    Attributes:
        on_driver: of each batch, whether the driver has written it.
    """

    spark: SparkSession
    folder: Path
    source: Topic
    target: Topic
    on_driver: list[bool] = field(default_factory=list)

    def produce(self, batches: int = BATCHES, value: Callable[[int], str] = str) -> None:
        self.source.fill(map(value, range(batches * RECORDS)), PARTITIONS)

    def frame(self) -> DataFrame:
        return self.source.stream(self.spark, RECORDS)

    def run(
        self,
        plan: Callable[[DataFrame], DataFrame] = lambda source: source.select("value"),
        sinks: Any = None,
        **arguments: Any,
    ) -> None:
        """Run the query to the end of its topic. Raises StreamingQueryException."""
        writer = foreach_batch(sinks or self.target.sink(), log=f"{self.folder}/log", **arguments)
        write_all(plan(self.frame()).writeStream.foreachBatch(mortal(writer)), f"{self.folder}/checkpoint")

    def shows(self, batches: int = BATCHES) -> bool:
        return self.target.shows([str(number) for number in range(batches * RECORDS)])


@pytest.fixture
def copying(
    spark: SparkSession, topic: Topic, kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Copying:
    made = Copying(spark, tmp_path, topic.beside(kafka_broker, PARTITIONS), topic)
    write = Collecting.write

    def noted(self: Collecting, *arguments: Any) -> Written | None:
        found = write(self, *arguments)
        made.on_driver.append(found is not None)
        return found

    monkeypatch.setattr(Collecting, "write", noted)
    return made


@pytest.fixture
def driver_fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make the driver's next vote raise. Tasks run in other processes."""
    pre_commit = Participant.pre_commit
    raised: list[BaseException] = []

    def failing(self: Participant) -> Any:
        vote = pre_commit(self)
        if raised:
            raise raised.pop()
        return vote

    monkeypatch.setattr(Participant, "pre_commit", failing)
    return raised.append


def test_small_batches_are_written_by_the_driver_in_one_transaction(copying: Copying) -> None:
    copying.produce()
    copying.run()
    assert copying.on_driver == FIRST_BY_TASKS
    assert copying.shows()
    assert copying.target.ongoing() == []


@pytest.mark.long
def test_two_sinks_get_the_same_records(copying: Copying, pipeline: Pipeline) -> None:
    copying.produce(value=lambda number: f'{{"id":{number},"name":"a"}}')
    sinks = {"orders": copying.target.sink(), "archive": pipeline.files()}
    copying.run(lambda source: source.selectExpr("CAST(value AS STRING) AS value"), sinks)
    assert copying.on_driver == FIRST_BY_TASKS
    assert sorted(copying.target.values()) == sorted(row["value"] for row in pipeline.archived())
    assert len(pipeline.archived()) == BATCHES * RECORDS


@pytest.mark.long
def test_conditions_of_outputs_are_kept(copying: Copying, pipeline: Pipeline) -> None:
    copying.produce()
    sinks = {
        "orders": Output(copying.target.sink(), where="value < '2'"),
        "archive": Output(pipeline.files(), where="value >= '4'"),
    }
    copying.run(lambda source: source.selectExpr("CAST(value AS STRING) AS value"), sinks)
    assert copying.on_driver == FIRST_BY_TASKS
    values = [str(number) for number in range(BATCHES * RECORDS)]
    assert copying.target.shows([value for value in values if value < "2"])
    assert sorted(row["value"] for row in pipeline.archived()) == sorted(value for value in values if value >= "4")


@pytest.mark.long
def test_a_record_without_a_value_is_written(copying: Copying) -> None:
    copying.produce()
    copying.run(
        lambda source: source.selectExpr("CAST(value AS STRING) AS key", "IF(offset % 2 = 0, value, NULL) AS value")
    )
    assert copying.on_driver == FIRST_BY_TASKS
    found = records_of(copying.target.servers, copying.target.name)
    assert sorted(record.key.decode() for record in found) == sorted(str(number) for number in range(BATCHES * RECORDS))


@pytest.mark.long
def test_the_driver_writes_where_spark_asks_for_executors_by_waiting_tasks(copying: Copying) -> None:
    copying.produce()
    with dynamic_allocation(copying.spark):
        copying.run()
    assert copying.on_driver == FIRST_BY_TASKS


@pytest.mark.parametrize(
    ("columns", "records", "is_told"),
    [
        ("value BINARY", 10_000, True),
        ("id LONG, at TIMESTAMP", 10_000, True),
        ("values ARRAY<STRING>", 1, False),
        (", ".join(f"c{number} LONG" for number in range(1_000)), 10_000, False),
        (", ".join(f"c{number} STRING" for number in range(1_000)), 10_000, False),
    ],
    ids=["bytes", "fixed", "array", "many numbers", "many texts"],
)
def test_the_driver_takes_only_columns_that_fit(columns: str, records: int, is_told: bool, spark: SparkSession) -> None:
    schema = spark.createDataFrame([], columns).schema
    assert (tuning._fits(schema, tuning.BYTES_AT_MOST // records) is not None) is is_told


@pytest.mark.long
def test_sparks_stop_while_the_driver_waits_for_records_ends_the_query_and_loses_nothing(copying: Copying) -> None:
    copying.produce()
    slow = "java_method('java.lang.Thread', 'sleep', CAST(20000 AS BIGINT)) IS NULL"  # no function of the user's
    write = foreach_batch({"slow": copying.target.sink()}, log=f"{copying.folder}/log")
    frame = copying.frame().selectExpr("value", f"IF(offset >= {RECORDS // PARTITIONS} AND {slow}, 1, 0) AS partition")
    stream = frame.select("value").where("partition < 2").writeStream.foreachBatch(write)
    query = stream.option("checkpointLocation", f"{copying.folder}/checkpoint").start()
    until(lambda: any("batch 1 of slow" in each for each in descriptions(copying.spark)))
    query.stop()
    assert query.exception() is None
    assert query.status["message"] == "Stopped"  # the query's thread has not died
    assert copying.on_driver == [BY_TASKS]  # of the first batch; the second was not left to tasks
    copying.run(sinks={"slow": copying.target.sink()})
    assert copying.shows()
    assert copying.target.ongoing() == []


@pytest.mark.long
@pytest.mark.parametrize("argument", [{"small_batches": "few-tasks"}, {"on_loss": "recompute"}], ids=str)
def test_an_argument_leaves_every_batch_to_tasks(argument: dict[str, Any], copying: Copying) -> None:
    copying.produce()
    copying.run(**argument)
    assert copying.on_driver == []
    assert copying.shows()


@pytest.mark.long
def test_a_batch_with_many_records_is_left_to_tasks(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "RECORDS_AT_MOST", RECORDS - 1)
    copying.produce()
    copying.run()
    assert copying.on_driver == [BY_TASKS] * BATCHES
    assert copying.shows()


def exploded(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("explode(array(value)) AS value")


def of_a_union(frame: DataFrame) -> DataFrame:
    return frame.select("value").union(frame.select("value").where("false"))


def by_a_function(frame: DataFrame) -> DataFrame:
    return frame.select(udf(lambda value: value, "binary")("value").alias("value"))


def with_headers(frame: DataFrame) -> DataFrame:
    """An array has no size that Spark tells."""
    return frame.selectExpr("value", "array(struct('a' AS key, value AS value)) AS headers")


@pytest.mark.long
@pytest.mark.parametrize("plan", [exploded, of_a_union, by_a_function, with_headers])
def test_a_batch_whose_size_the_plan_does_not_tell_is_left_to_tasks(
    plan: Callable[[DataFrame], DataFrame], copying: Copying
) -> None:
    copying.produce()
    copying.run(plan)
    assert copying.on_driver == [BY_TASKS] * BATCHES
    assert copying.shows()


@pytest.mark.long
def test_the_source_of_files_does_not_tell_how_many_records_a_batch_has(pipeline: Pipeline, copying: Copying) -> None:
    for number in range(BATCHES):
        pipeline.add_batch([{"id": number, "name": "a"}])
    pipeline.run(pipeline.writer())
    assert copying.on_driver == [BY_TASKS] * BATCHES
    assert pipeline.archived_ids() == [*range(BATCHES)]


@pytest.mark.long
def test_a_record_that_is_too_large_is_left_to_tasks_with_its_batch_and_some_after_it(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "BYTES_AT_MOST", 100 * RECORDS)
    monkeypatch.setattr(tuning, "PAUSE_BATCHES", 1)
    large = RECORDS + 3  # in the second batch

    def value(number: int) -> str:
        return "x" * 101 if number == large else str(number)

    copying.produce(value=value)
    copying.run()
    assert copying.on_driver == [BY_TASKS, BY_TASKS, BY_TASKS, ON_DRIVER]
    assert copying.target.shows([value(number) for number in range(BATCHES * RECORDS)])


@pytest.mark.long
def test_what_the_driver_can_not_write_is_rolled_back_and_written_by_tasks(
    copying: Copying, driver_fails: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "PAUSE_BATCHES", 1)
    driver_fails(OSError("no space left on the driver's disk"))
    copying.produce()
    copying.run()
    assert copying.on_driver == [BY_TASKS, BY_TASKS, BY_TASKS, ON_DRIVER]
    assert copying.shows()
    assert copying.target.ongoing() == []


@pytest.mark.long
def test_a_batch_of_which_the_plan_leaves_no_record_has_no_transaction(copying: Copying) -> None:
    copying.produce()
    copying.run(lambda source: source.select("value").where("CAST(CAST(value AS STRING) AS INT) NOT BETWEEN 20 AND 29"))
    assert copying.on_driver == FIRST_BY_TASKS
    assert copying.target.shows([str(number) for number in range(BATCHES * RECORDS) if not 20 <= number <= 29])
    assert copying.target.ongoing() == []


@pytest.mark.long
def test_what_spark_does_not_send_to_the_driver_is_written_by_tasks(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = copying.spark._jsc.sc().conf()
    monkeypatch.setattr(tuning, "PAUSE_BATCHES", 0)
    settings.set("spark.driver.maxResultSize", "100000")  # the votes of tasks have a few kB
    try:
        copying.produce(value=lambda number: f"{number:020000}")
        copying.run()
    finally:
        settings.set("spark.driver.maxResultSize", "1g")
    assert copying.on_driver == [BY_TASKS] * BATCHES
    assert copying.target.shows([f"{number:020000}" for number in range(BATCHES * RECORDS)])


@pytest.mark.long
def test_a_driver_that_is_killed_while_it_writes_loses_and_doubles_nothing(
    copying: Copying, driver_fails: Callable[[BaseException], None]
) -> None:
    copying.produce()
    driver_fails(Killed())
    with pytest.raises(StreamingQueryException):
        copying.run()
    assert copying.shows(batches=1)
    copying.run()
    assert copying.shows()
    assert copying.target.ongoing() == []


@pytest.mark.long
def test_a_record_that_a_sink_refuses_is_named_as_tasks_name_it(copying: Copying) -> None:
    copying.produce(batches=1)
    copying.run()
    copying.produce(batches=2)
    with pytest.raises(StreamingQueryException, match=r"partition 99 .* does not exist|RecordRefused"):
        copying.run(lambda source: source.selectExpr("value", "IF(offset >= 10, 99, 0) AS partition"))
    assert copying.on_driver[-1] is BY_TASKS


@pytest.mark.long
def test_the_driver_writes_records_of_the_schema_that_tasks_write(copying: Copying, tmp_path: Path) -> None:
    copying.produce()
    columns = [
        "value", "CAST(value AS STRING) AS text", "CAST(NULL AS STRING) AS nothing", "'constant' AS constant",
        "CAST(value AS STRING) = '1' AS flag", "offset", "partition", "CAST(partition AS TINYINT) AS tiny",
        "CAST(partition AS SMALLINT) AS small", "CAST(partition AS FLOAT) AS single",
        "CAST(offset AS DOUBLE) AS double", "CAST(offset AS DECIMAL(30, 2)) AS decimal", "timestamp",
        "CAST(timestamp AS DATE) AS date", "CAST(timestamp AS TIMESTAMP_NTZ) AS local",
    ]  # fmt: skip
    path = tmp_path / "parquet"
    copying.run(
        lambda source: source.selectExpr(*columns), twopc.create_sink("files", {"path": str(path), "format": "parquet"})
    )
    assert copying.on_driver == FIRST_BY_TASKS
    files = sorted(path.glob("part-*"), key=lambda file: file.stat().st_mtime)
    schemas = [pq.read_schema(file) for file in files]
    assert len(files) == PARTITIONS + BATCHES - 1
    assert all(schema.equals(schemas[0], check_metadata=True) for schema in schemas)
