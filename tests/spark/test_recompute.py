"""What a target system has lost after the decision is computed again from the same input, if the plan allows it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException

import twopc
from tests.spark.conftest import Pipeline, Topic, descriptions, rows
from tests.support.observing import observing
from tests.support.raising import raising
from tests.support.rolling_back import roll_back
from tests.support.spark_session import write_all
from tests.support.topic_reader import records_of
from tests.support.waiting import until
from twopc import Committable, TwoPhaseCommitSink
from twopc.errors import TransactionLost
from twopc.events import Event, PhaseEntered, TransactionReplayed
from twopc.phases import Phase
from twopc.spark import Output, foreach_batch
from twopc.spark.output import Projection
from twopc_files.sink import FileSink
from twopc_kafka.client.control import control_of
from twopc_kafka.options import parse_options
from twopc_kafka.sink import KafkaSink
from twopc_kafka_broker import KafkaBroker

VALUE = ["CAST(id AS STRING) AS value"]


class Loses:
    """Has Kafka roll back what is open as a batch begins to be committed, as it does after a timeout."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.times = 0

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        if self.times and isinstance(event, PhaseEntered) and event.phase is Phase.COMMITTING:
            self.times -= 1
            for name in self.topic.ongoing():
                Producer({"bootstrap.servers": self.topic.servers, "transactional.id": name}).init_transactions(30)


@pytest.fixture
def loses(topic: Topic) -> Iterator[Loses]:
    with observing(Loses(topic)) as loses:
        yield loses


def replayed(events: list[Event]) -> int:
    return sum(isinstance(event, TransactionReplayed) for event in events)


@pytest.mark.parametrize("beside", [False, pytest.param(True, marks=pytest.mark.long)], ids=["alone", "beside files"])
def test_what_kafka_rolled_back_is_computed_again_in_the_same_batch(
    pipeline: Pipeline, topic: Topic, loses: Loses, events: list[Event], beside: bool
) -> None:
    pipeline.add_batch(rows(*range(10)))
    pipeline.add_batch(rows(*range(10, 13)))
    loses.times = 2
    outputs = {"orders": Output(topic.sink(), VALUE)}
    if beside:
        outputs["archive"] = Output(pipeline.files())
    writer = pipeline.writer(outputs, on_loss="recompute")
    pipeline.run(writer, lambda source: source.repartition(3))
    assert topic.shows([str(number) for number in range(13)])
    assert pipeline.archived_ids() == (list(range(13)) if beside else [])
    assert replayed(events) >= 2
    assert topic.ongoing() == []


@pytest.mark.long
def test_upserts_and_deletes_that_kafka_rolled_back_are_computed_again(
    pipeline: Pipeline, topic: Topic, loses: Loses, events: list[Event]
) -> None:
    pipeline.add_batch([{"id": 1, "name": "a"}, {"id": 2, "name": "a"}, {"id": 1, "name": "b"}])
    pipeline.add_batch([{"id": 2, "name": "gone"}, {"id": 3, "name": "a"}])
    loses.times = 2
    keyed = twopc.create_sink("kafka", {**topic.options, "upsert_by": "key"})
    columns = ["CAST(id AS STRING) AS key", "name AS value"]
    output = Output(keyed, columns, delete_where="name = 'gone'", latest_by="name")
    pipeline.run(
        foreach_batch(output, log=str(pipeline.log), on_loss="recompute"), lambda source: source.repartition(3)
    )

    def changes() -> list[tuple[bytes, bytes | None]]:
        found = records_of(topic.servers, topic.name)
        return sorted(((record.key, record.value) for record in found), key=str)

    until(lambda: changes() == [(b"1", b"b"), (b"2", None), (b"2", b"a"), (b"3", b"a")], timeout_s=10)
    assert replayed(events) >= 2


@pytest.mark.long
def test_bad_records_stay_out_of_what_is_computed_again(pipeline: Pipeline, topic: Topic, loses: Loses) -> None:
    pipeline.add_batch([*rows(1, 2, 3), {"id": 4, "name": "bad"}])
    pipeline.add_batch([{"id": 5, "name": "bad"}])
    loses.times = 1
    columns = ["CAST(id AS STRING) AS value", f"IF(name = 'bad', 'no topic!', '{topic.name}') AS topic"]
    orders = twopc.create_sink("kafka", {name: value for name, value in topic.options.items() if name != "topic"})
    writer = foreach_batch(
        {"orders": Output(orders, columns)}, log=str(pipeline.log), on_loss="recompute", bad_records=pipeline.files()
    )
    pipeline.run(writer)
    assert topic.shows(["1", "2", "3"])
    assert sorted(json.loads(each["row"])["id"] for each in pipeline.archived()) == [4, 5]


@pytest.mark.long
def test_a_batch_from_kafka_is_recognized_after_a_restart_with_the_offsets_of_its_source(
    pipeline: Pipeline, topic: Topic, kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, events: list[Event]
) -> None:
    """Spark numbers the partitions of a Kafka source otherwise when it repeats the batch."""
    source = topic.beside(kafka_broker, partitions=4)
    source.fill(range(20), partitions=4)
    group = twopc.create_sink(
        "kafka-offsets",
        {"bootstrap.servers": topic.servers, "group.id": topic.name, "transactional.id.prefix": topic.prefix},
    )

    def run() -> None:
        writer = pipeline.writer({"orders": Output(topic.sink(), ["value"])}, on_loss="recompute", offsets=group)
        write_all(source.stream(pipeline.spark, 20).writeStream.foreachBatch(writer), pipeline.checkpoint)

    dies = raising(RuntimeError("the driver dies"))
    with monkeypatch.context() as patch:
        patch.setattr(KafkaSink, "commit_many", dies)
        patch.setattr(KafkaSink, "commit", dies)
        with pytest.raises(StreamingQueryException, match="the driver dies"):
            run()
    roll_back(control_of(parse_options(topic.options).control), topic.prefix)
    until(lambda: topic.ongoing() == [])
    run()
    assert topic.shows([str(number) for number in range(20)])
    assert replayed(events) == 5
    assert topic.ongoing() == []


def test_the_hash_of_a_record_depends_on_each_value_its_column_and_nothing_else(pipeline: Pipeline) -> None:
    records = [(1, "a"), (1, None), (None, "1"), (None, None), (2, "a"), (1, "")]
    columns = ["CAST(id AS STRING) AS key", "name AS value"]

    def hashes(order: list[Any], in_structs: bool) -> list[int]:
        frame = pipeline.spark.createDataFrame(order, "id LONG, name STRING")
        output = Output(pipeline.files(), columns)
        outputs = {"orders": output, "archive": output} if in_structs else {"orders": output}
        hashed, _ = Projection(outputs, ["orders"]).apply(frame)
        return [row["twopc hashes orders"] for row in hashed.collect()]

    found = hashes(records, in_structs=True)
    assert len(set(found)) == len(records)
    assert hashes(records[::-1], in_structs=False) == found[::-1]


@pytest.mark.variants
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("struct(CAST(NULL AS STRING) AS a, 'x' AS b) AS v", "struct('x' AS a, CAST(NULL AS STRING) AS b) AS v"),
        ("array(1) AS a, array(2, 3) AS b", "array(1, 2) AS a, array(3) AS b"),
        ("array(array(1), array(2, 3)) AS v", "array(array(1, 2), array(3)) AS v"),
        ("array(1, NULL) AS v", "array(NULL, 1) AS v"),
        ("array(CAST(NULL AS INT)) AS v", "CAST(array() AS ARRAY<INT>) AS v"),
        ("CAST(array() AS ARRAY<INT>) AS v", "CAST(NULL AS ARRAY<INT>) AS v"),
        (
            "array(struct('a' AS key, CAST(NULL AS STRING) AS value), struct('b' AS key, 'c' AS value)) AS headers",
            "array(struct('a' AS key, 'b' AS value), struct('c' AS key, CAST(NULL AS STRING) AS value)) AS headers",
        ),
        ("'a' AS key, 'b' AS value", "'a' AS value, 'b' AS key"),
    ],
)
def test_records_with_other_bounds_or_names_have_other_hashes(pipeline: Pipeline, one: str, other: str) -> None:
    def hash_of(columns: str, in_structs: bool) -> int:
        frame = pipeline.spark.range(1).selectExpr(f"struct({columns}) AS row")
        names = ["orders", "archive"] if in_structs else ["orders"]
        outputs = dict.fromkeys(names, Output(pipeline.files(), ["row.*"]))
        hashed, _ = Projection(outputs, ["orders"]).apply(frame)
        [row] = hashed.collect()
        found: int = row["twopc hashes orders"]
        return found

    assert hash_of(one, in_structs=False) != hash_of(other, in_structs=False)
    assert hash_of(one, in_structs=True) != hash_of(other, in_structs=True)


@pytest.mark.long
def test_the_hash_of_a_record_does_not_depend_on_the_session(pipeline: Pipeline) -> None:
    """Spark's size of null is null, or -1 without its ANSI mode, which a restarted query may lack."""
    hashes = set()
    for ansi in ("true", "false"):
        session = pipeline.spark.newSession()
        session.conf.set("spark.sql.ansi.enabled", ansi)
        frame = session.range(1).selectExpr("CAST(NULL AS ARRAY<INT>) AS headers")
        hashed, _ = Projection({"orders": Output(pipeline.files())}, ["orders"]).apply(frame)
        hashes.add(hashed.collect()[0]["twopc hashes orders"])
    assert len(hashes) == 1


class Lost:
    """A pipeline whose batch is decided and lost: the driver dies as it begins to commit, and the target system rolls
    the transactions back before the next start."""

    def __init__(self, pipeline: Pipeline, columns: list[str], partitions: int = 3) -> None:
        self.pipeline, self.columns, self.partitions = pipeline, columns, partitions
        pipeline.add_batch(rows(*range(10)))
        self.dies = pipeline.folder / "dies"
        self.dies.touch()
        assert "the driver dies" in self.refused()
        self.dies.unlink()
        for pending in (pipeline.folder / "archive" / "_twopc").iterdir():
            pending.unlink()

    def sink(self) -> TwoPhaseCommitSink[Any]:
        dies = self.dies

        class Forgetful(FileSink):
            may_time_out = True

            def commit(self, committable: Committable) -> None:
                if dies.exists():
                    raise RuntimeError("the driver dies")
                super().commit(committable)

        return Forgetful({"path": str(self.pipeline.folder / "archive"), "format": "json"})

    def run(self, on_loss: Any = "recompute", partitions: int = 0) -> None:
        output = Output(self.sink(), self.columns)
        writer = self.pipeline.writer({"archive": output}, on_loss=on_loss)
        self.pipeline.run(writer, lambda source: source.repartition(partitions or self.partitions))

    def refused(self, **options: Any) -> str:
        with pytest.raises(StreamingQueryException) as stopped:
            self.run(**options)
        return str(stopped.value)


@pytest.mark.long
def test_what_is_lost_while_the_driver_is_down_is_computed_again_when_spark_repeats_the_batch(
    pipeline: Pipeline, events: list[Event]
) -> None:
    lost = Lost(pipeline, ["id"])
    assert "start the query with on_loss='recompute'" in lost.refused(on_loss="stop")
    assert pipeline.archived() == []
    pipeline.add_batch(rows(10))
    lost.run()
    assert pipeline.archived_ids() == list(range(11))
    assert replayed(events) == 3
    assert pipeline.pending_files() == []


@pytest.mark.long
@pytest.mark.parametrize("expression", ["rand()", "uuid()", "current_timestamp()"])
def test_a_plan_that_yields_other_records_is_refused_with_the_reason(pipeline: Pipeline, expression: str) -> None:
    lost = Lost(pipeline, ["id", f"CAST({expression} AS STRING) AS other"])
    for _ in range(2):
        told = lost.refused()
        assert "does not yield the same records twice: it calls something like rand()" in told
        assert TransactionLost.__name__ in told
    assert pipeline.archived() == []
    assert pipeline.pending_files() == []


@pytest.mark.long
def test_another_number_of_partitions_is_refused_by_name_until_it_is_as_before(pipeline: Pipeline) -> None:
    lost = Lost(pipeline, ["id"])
    assert "its number of tasks" in lost.refused(partitions=2)
    lost.run()
    assert pipeline.archived_ids() == list(range(10))


def test_a_column_that_has_no_hash_is_refused_before_anything_is_written(pipeline: Pipeline) -> None:
    class Forgetful(FileSink):
        may_time_out = True

    pipeline.add_batch(rows(1))
    sink = Forgetful({"path": str(pipeline.folder / "archive"), "format": "json"})
    outputs = {"orders": Output(sink, ["map('a', id) AS counts"])}
    with pytest.raises(StreamingQueryException, match=r"on_loss='recompute' needs a hash.*to_json"):
        pipeline.run(pipeline.writer(outputs, on_loss="recompute"))
    assert not pipeline.log.exists()


@pytest.mark.long
def test_only_the_partitions_and_sinks_that_are_lost_are_written_again(
    pipeline: Pipeline, topic: Topic, loses: Loses
) -> None:
    pipeline.add_batch(rows(*range(10)))
    loses.times = 1
    outputs = {"orders": Output(topic.sink(), VALUE, "id = 7"), "archive": Output(pipeline.files())}
    writer = pipeline.writer(outputs, on_loss="recompute")
    pipeline.run(writer, lambda source: source.repartition(3, "id"))
    assert "twopc: compute again what is lost of batch 0 of orders, archive" in descriptions(pipeline.spark)
    assert topic.shows(["7"])
    assert len(list((pipeline.folder / "archive").glob("part-*"))) == len(pipeline.decided(0)["archive"])
