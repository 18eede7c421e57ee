"""Each output gets its rows, by its condition; rows that go nowhere are counted or refused; the plan runs once."""

import json
import signal
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import twopc
from tests.spark.conftest import Pipeline, Topic, finished_jobs, rows
from tests.spark.driver import driver
from twopc.errors import RecordRefused
from twopc.events import BatchFinished, Event
from twopc.spark import ForeachBatch, Output


class Routed:
    """Outputs to folders of one pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def to(self, name: str, where: str | None = None, columns: Any = ("*",)) -> Output:
        folder = self.pipeline.folder / "archive" / name
        return Output(twopc.create_sink("files", {"path": str(folder), "format": "json"}), columns, where)

    def writer(self, **outputs: Output) -> ForeachBatch:
        return self.pipeline.writer(outputs)

    def found(self, name: str) -> list[Any]:
        files = (self.pipeline.folder / "archive" / name).glob("part-*.json")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def ids(self, name: str) -> list[int]:
        return sorted(row["id"] for row in self.found(name))


@pytest.fixture
def routed(pipeline: Pipeline) -> Routed:
    return Routed(pipeline)


def refused(pipeline: Pipeline, writer: Any, plan: Any = lambda source: source) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        pipeline.run(writer, plan)
    return str(caught.value)


def test_each_row_goes_to_the_outputs_whose_condition_holds_for_it(routed: Routed) -> None:
    routed.pipeline.add_batch([*rows(*range(6)), {"id": None, "name": "none"}])
    writer = routed.writer(
        odd=routed.to("odd", "id % 2 = 1"), small=routed.to("small", "id < 2"), all=routed.to("all", columns=["name"])
    )
    routed.pipeline.run(writer)
    assert (routed.ids("odd"), routed.ids("small")) == ([1, 3, 5], [0, 1])
    assert len(routed.found("all")) == 7
    assert writer.last_progress is not None
    assert writer.last_progress.records == {"all": 7, "odd": 3, "small": 2}
    assert writer.last_progress.unrouted == 0


@pytest.mark.long
def test_rows_that_go_nowhere_are_counted_and_null_counts_as_false(routed: Routed, events: list[Event]) -> None:
    routed.pipeline.add_batch([*rows(*range(6)), {"id": None, "name": "none"}])
    routed.pipeline.add_batch(rows(7, 8))
    writer = routed.writer(odd=routed.to("odd", "id % 2 = 1"), small=routed.to("small", "id < 2"))
    routed.pipeline.run(writer, lambda source: source.repartition(3))
    assert [event.unrouted for event in events if isinstance(event, BatchFinished)] == [3, 1]
    assert "1 records to no sink" in str(writer.last_progress)


def test_a_task_without_a_row_for_an_output_begins_no_transaction_there(routed: Routed) -> None:
    routed.pipeline.add_batch(rows(1, 3, 5))
    routed.pipeline.run(routed.writer(odd=routed.to("odd", "id % 2 = 1"), even=routed.to("even", "id % 2 = 0")))
    decided = routed.pipeline.decided(0)
    assert {name: len(of_sink) for name, of_sink in decided.items()} == {"odd": 1, "even": 0}


@pytest.mark.long
def test_a_single_output_may_have_a_condition(routed: Routed) -> None:
    routed.pipeline.add_batch(rows(*range(4)))
    writer = routed.pipeline.writer(routed.to("few", "id > 2", ["id", "name AS text"]))
    routed.pipeline.run(writer)
    assert routed.found("few") == [{"id": 3, "text": "a"}]
    assert writer.last_progress is not None
    assert writer.last_progress.unrouted == 3


@pytest.mark.long
def test_the_columns_of_a_row_are_not_computed_where_the_condition_does_not_hold(routed: Routed) -> None:
    """A row that is invalid for one output, such as text that is no number, does not fail the batch."""
    routed.pipeline.add_batch([{"id": 1, "name": "17"}, {"id": 2, "name": "seventeen"}])
    routed.pipeline.run(
        routed.writer(
            valid=routed.to("valid", "name RLIKE '^[0-9]+$'", ["CAST(name AS INT) AS number"]),
            invalid=routed.to("invalid", "NOT name RLIKE '^[0-9]+$'", ["name"]),
        )
    )
    assert (routed.found("valid"), routed.found("invalid")) == ([{"number": 17}], [{"name": "seventeen"}])


def test_the_plan_is_evaluated_once_in_one_job(routed: Routed) -> None:
    routed.pipeline.add_batch(rows(*range(10)))
    before = len(finished_jobs(routed.pipeline.spark))
    routed.pipeline.run(routed.writer(odd=routed.to("odd", "id % 2 = 1"), even=routed.to("even", "id % 2 = 0")))
    assert len(finished_jobs(routed.pipeline.spark)) == before + 1


@pytest.mark.long
def test_a_row_that_goes_nowhere_may_fail_the_batch_before_its_decision(routed: Routed) -> None:
    routed.pipeline.add_batch(rows(*range(6)))
    outputs = {"low": routed.to("low", "id < 4"), "odd": routed.to("odd", "id % 2 = 1")}
    writer = routed.pipeline.writer(outputs, unrouted="refuse")
    says = refused(routed.pipeline, writer)
    assert "task 0, record 4: no output takes this row" in says
    assert RecordRefused.__name__ in says
    assert routed.pipeline.decided_batches() == []
    assert routed.found("low") == routed.found("odd") == []


@pytest.mark.variants
@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("nosuch = 1", "nosuch"),
        ("id + 1", "BOOLEAN"),
        ("id = ", "PARSE_SYNTAX_ERROR"),
        ("id = 1) OR (1 = 1", "PARSE_SYNTAX_ERROR"),
        ("count(*) > 1", "condition"),
        ("explode(array(true, false))", "condition"),
    ],
)
def test_a_condition_that_spark_refuses_is_named_before_anything_is_written(
    routed: Routed, where: str, says: str
) -> None:
    routed.pipeline.add_batch(rows(1))
    told = refused(routed.pipeline, routed.writer(some=routed.to("some", where), all=routed.to("all")))
    assert f"Spark refuses the condition {where!r} of output 'some'" in told
    assert says in told
    assert not routed.pipeline.log.exists()


@pytest.mark.variants
@pytest.mark.parametrize("where", ["count(*) > 1", "row_number() OVER (ORDER BY 1) = 1"])
def test_a_condition_of_several_rows_is_refused_though_no_column_is_named_beside_it(routed: Routed, where: str) -> None:
    """Spark would make one row of the batch for the aggregate, and the others would be lost."""
    routed.pipeline.add_batch(rows(1, 2, 3))
    told = refused(routed.pipeline, routed.writer(some=routed.to("some", where, ["1 AS id"])))
    assert f"Spark refuses the condition {where!r} of output 'some'" in told
    assert not routed.pipeline.log.exists()


def test_columns_that_spark_refuses_are_named(routed: Routed) -> None:
    routed.pipeline.add_batch(rows(1))
    told = refused(routed.pipeline, routed.writer(some=routed.to("some", "id > 0", ["nosuch"]), all=routed.to("all")))
    assert "Spark refuses the columns ['nosuch'] of output 'some'" in told


@pytest.mark.long
def test_a_condition_may_have_a_comment_and_names_that_must_be_quoted(routed: Routed) -> None:
    routed.pipeline.add_batch(rows(1, 2))
    routed.pipeline.run(
        routed.writer(some=routed.to("some", "`a.b` = 1 -- the first", ["`a.b` AS id"]), all=routed.to("all")),
        lambda source: source.withColumnRenamed("id", "a.b"),
    )
    assert routed.ids("some") == [1]


@pytest.mark.long
def test_columns_that_are_never_null_stay_so_beside_a_condition(routed: Routed) -> None:
    routed.pipeline.add_batch(rows(1, 2))
    shown: list[Any] = []

    class Sees(type(routed.to("some").sink)):  # type: ignore[misc]
        def validate(self, schema: Any) -> None:
            shown.append([(field.name, field.nullable) for field in schema])
            super().validate(schema)

    sink = Sees({"path": str(routed.pipeline.folder / "archive" / "some"), "format": "json"})
    outputs = {"some": Output(sink, ["coalesce(id, 0) AS id", "name"], "id = 1"), "all": routed.to("all")}
    routed.pipeline.run(routed.pipeline.writer(outputs))
    assert shown == [[("id", False), ("name", True)]]
    assert routed.ids("some") == [1]


KILLS = {0: "pre-committing", 1: "deciding", 2: "committing"}


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.timeout(300)  # four starts of a driver
def test_valid_rows_and_invalid_ones_are_each_once_in_their_places_though_the_driver_is_killed(
    pipeline: Pipeline, topic: Topic
) -> None:
    for batch in range(len(KILLS)):
        ids = range(batch * 9, batch * 9 + 9)
        pipeline.add_batch([{"id": row, "name": "invalid" if row % 3 else "valid"} for row in ids])
    job = {"scene": "routed", "folder": str(pipeline.folder), "kafka": topic.options, "kills": KILLS}
    for ends_by in [*[-signal.SIGKILL] * len(KILLS), 0]:
        with driver(job) as process:
            assert process.wait(timeout=120) == ends_by, (pipeline.folder / "driver.log").read_text()
    assert topic.shows([str(row) for row in range(0, 27, 3)])
    assert pipeline.archived_ids() == [row for row in range(27) if row % 3]
