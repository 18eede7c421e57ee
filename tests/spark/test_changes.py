"""Of a batch's records of a key, the last one applies to an output with a key, as a record or as a delete."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its customary name

import twopc
from tests.spark.conftest import Pipeline
from tests.spark.keyed_tables import Tables, partitions, state
from twopc.errors import ConfigurationError, RecordRefused, Refused
from twopc.spark import Output
from twopc.spark.output import Projection
from twopc.testing import MemorySink, MemoryTarget


@pytest.fixture
def tables(spark: SparkSession) -> Tables:
    return Tables(spark)


def test_the_record_with_the_greatest_latest_by_applies_whatever_the_order_and_the_task(tables: Tables) -> None:
    target = tables.add()
    batch = [("u", 1, "old", 1), ("u", 1, "new", 3), ("d", 1, None, 2), ("u", 2, "b", 1), ("d", 2, None, 5)]
    for number in range(3):
        random.Random(number).shuffle(batch)  # noqa: S311  # an order, and no secret
        tables.apply(batch)
        assert state(target) == [(1, "new")]


def test_keys_that_a_collation_takes_for_equal_are_two_keys(tables: Tables) -> None:
    target = tables.add(key=["name"], columns=["id", "collate(name, 'UTF8_LCASE') AS name"])
    tables.apply([("u", 1, "a", 1), ("u", 2, "A", 2), ("u", 3, "b", 1), ("u", 4, "b", 2)])
    assert state(target) == [(1, "a"), (2, "A"), (4, "b")]


@pytest.mark.long
def test_batches_apply_in_their_order_whatever_their_records_are_ordered_by(tables: Tables) -> None:
    target = tables.add()
    tables.apply([("c", 1, "a", 10), ("c", 2, "b", 10)])
    tables.apply([("d", 1, None, 5), ("u", 2, "c", 5)])
    assert state(target) == [(2, "c")]
    tables.apply([("c", 1, "again", 1)])
    assert state(target) == [(1, "again"), (2, "c")]


def test_a_delete_of_what_is_not_there_is_no_error(tables: Tables) -> None:
    target = tables.add()
    tables.apply([("d", 7, None, 1)])
    assert state(target) == []


@pytest.mark.long
def test_a_delete_needs_its_key_and_an_order_alone(tables: Tables) -> None:
    """What it has for other columns is not computed: Spark would refuse to cast it."""
    target = tables.add(columns=["id", "CAST(name AS INT) AS name"])
    tables.apply([("c", 1, "5", 1), ("c", 2, "6", 1)])
    tables.apply([("d", 1, "no number", 2), ("u", 2, "8", 2)])
    assert state(target) == [(2, 8)]


@pytest.mark.advice("have several records with the greatest 'latest_by'")
def test_a_tie_is_refused_with_the_key_and_the_count_and_without_values(tables: Tables) -> None:
    tables.add(latest_by=F.col("at"))
    batch = [("u", 4711, "secret", 9), ("u", 4711, "other", 9), ("u", 1, "a", 1), ("u", 1, "a", 2), ("u", 1, "b", 1)]
    with pytest.raises(
        RecordRefused, match=r"1 keys of output 't' \(key id\) have several .*'struct\(at, offset\)'"
    ) as told:
        tables.apply(batch, tasks=1)
    assert "4711" not in str(told.value)
    assert "secret" not in str(told.value)
    tables = Tables(tables.spark)
    target = tables.add(latest_by="struct(at, name)")  # 'name' is what tells these apart
    tables.apply(batch, tasks=1)
    assert state(target) == [(1, "a"), (4711, "secret")]


def test_a_null_in_latest_by_is_refused_and_a_tie_below_the_last_is_none(tables: Tables) -> None:
    target = tables.add()
    tables.apply([("u", 1, "a", 1), ("u", 1, "b", 1), ("u", 1, "c", 2)])
    assert state(target) == [(1, "c")]
    with pytest.raises(RecordRefused, match=r"'latest_by' \(at\) of output 't' \(key id\) is null, .* in 1 records"):
        tables.apply([("u", 1, "a", 1), ("d", 1, None, None)], tasks=1)


@pytest.mark.long
@pytest.mark.parametrize("latest_by", ["struct(id, struct(at AS `a.b`))", "struct(at, id)", "array(struct(id, at))"])
def test_a_null_in_a_part_of_latest_by_is_refused_as_it_would_lose_to_each_record(
    tables: Tables, latest_by: str
) -> None:
    target = tables.add(latest_by=latest_by)
    tables.apply([("u", 1, "a", 1), ("u", 1, "b", 2), ("d", 2, None, 1)])
    assert state(target) == [(1, "b")]
    with pytest.raises(RecordRefused, match="is null, or has a part that is, in 1 records"):
        tables.apply([("u", 1, "a", 1), ("d", 1, None, None)], tasks=1)


@pytest.mark.advice("share their key in")
def test_without_latest_by_a_key_that_comes_twice_is_refused(tables: Tables) -> None:
    target = tables.add(latest_by=None)
    tables.apply([("u", 1, "a", 1), ("u", 2, "b", 1)])
    assert state(target) == [(1, "a"), (2, "b")]
    with pytest.raises(RecordRefused, match=r"2 records .* share their key in output 't' .* 'latest_by', such as 'at'"):
        tables.apply([("u", 1, "a", 1), ("d", 1, "b", 2)])
    tables = Tables(tables.spark)
    target = tables.add(latest_by="at")
    tables.apply([("u", 1, "a", 1), ("d", 1, "b", 2), ("u", 2, "b", 1)])
    assert state(target) == [(2, "b")]


@pytest.mark.long
def test_outputs_with_different_keys_and_orders_each_get_their_last_records(tables: Tables) -> None:
    by_id = tables.add("by_id", delete_where=None)
    by_name = tables.add("by_name", key=["name"], latest_by="-at", delete_where=None)
    both = tables.add("both", key=["id", "name"], latest_by="struct(at, op)")
    every = tables.add("every", key=[], columns=["id"])
    tables.apply([("u", 1, "a", 1), ("u", 1, "b", 2), ("u", 2, "a", 3), ("u", 2, "b", 4), ("v", 2, "b", 4)][:4])
    assert state(by_id) == [(1, "b"), (2, "b")]
    assert state(by_name) == [(1, "a"), (1, "b")]
    assert state(both) == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert len(every.visible) == 4


@pytest.mark.long
def test_an_output_without_a_key_gets_the_rows_of_a_key_in_their_order(tables: Tables) -> None:
    tables.add("keyed")
    every = tables.add("every", key=[], columns=["id", "at"])
    tables.apply([("u", id, "a", at) for at in (3, 1, 2, 5, 4) for id in (1, 2)])
    for id in (1, 2):
        assert [each["at"] for each in every.visible if each["id"] == id] == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_each_output_takes_its_rows_alone_and_those_of_none_are_counted(tables: Tables) -> None:
    low = tables.add("low", where="id < 3")
    high = tables.add("high", where=F.col("id") > 3, delete_where=F.col("op") == "d", latest_by=F.col("at"))
    tables.apply(
        [("u", 1, "a", 1), ("u", 1, "b", 2), ("u", 5, "c", 1), ("d", 5, "c", 2), ("u", 6, "c", 2), ("u", 3, "x", 1)]
    )
    assert (state(low), state(high)) == ([(1, "b")], [(6, "c")])
    assert tables.unrouted == [1]


def test_rows_that_an_output_does_not_take_are_not_all_in_one_task(tables: Tables) -> None:
    tables.add("low", where="id < 3")
    batch = (
        tables.spark.range(100)
        .selectExpr("'u' AS op", "CAST(id AS INT) AS id", "'a' AS name", "1 AS at")
        .repartition(4)
    )
    projection = Projection(tables.outputs)
    frame, found = projection.apply(batch)
    sizes = [len(part) for part in partitions(projection.by_key(frame, found, 4))]
    assert max(sizes) < 60


def test_a_row_has_its_task_whatever_its_place_among_the_rows_before_the_shuffle(tables: Tables) -> None:
    tables.add("low", where="id < 3")
    tables.add("every", key=[], columns=["id"])
    batch = tables.spark.range(100).selectExpr("'u' AS op", "CAST(id AS INT) AS id", "'a' AS name", "1 AS at")
    projection = Projection(tables.outputs)

    def ids_by_task(order: str) -> list[list[int]]:
        frame, found = projection.apply(batch.repartition(4, F.expr("id % 7")).sortWithinPartitions(F.expr(order)))
        return sorted(
            sorted(row["every"]["id"] for row in part) for part in partitions(projection.by_key(frame, found, 4))
        )

    assert ids_by_task("id") == ids_by_task("-id")


@pytest.mark.parametrize(("tasks", "shuffles"), [(1, 0), (4, 1)])
def test_the_batch_is_shuffled_by_the_key_only_where_it_is_not(tables: Tables, tasks: int, shuffles: int) -> None:
    tables.add("t")
    batch = tables.spark.range(100).selectExpr("'u' AS op", "id", "'a' AS name", "1 AS at")
    assert exchanges(tables, batch.coalesce(tasks), tasks) == shuffles
    if tasks > 1:
        assert exchanges(tables, batch.repartition(tasks, "id"), tasks) == 1  # its own


@pytest.mark.long
def test_outputs_with_the_same_changes_share_a_shuffle_and_each_gets_them(tables: Tables) -> None:
    copies = [tables.add(name, where="id < 9") for name in ("copy", "second-copy")]
    other = tables.add("other", where="id < 9", latest_by="-at")
    tables.apply([("u", 1, "a", 1), ("u", 1, "b", 2), ("u", 2, "c", 1), ("d", 2, None, 2), ("u", 9, "x", 1)])
    assert [state(each) for each in (*copies, other)] == [[(1, "b")], [(1, "b")], [(1, "a"), (2, "c")]]
    assert tables.unrouted == [1]
    batch = tables.spark.range(9).selectExpr("'u' AS op", "id", "'a' AS name", "1 AS at").repartition(4)
    assert exchanges(tables, batch, 4) == 1 + 2


def exchanges(tables: Tables, batch: DataFrame, tasks: int) -> int:
    projection = Projection(tables.outputs)
    frame, found = projection.apply(batch)
    plan = projection.by_key(frame, found, tasks)._jdf.queryExecution().executedPlan().toString()
    return str(plan).count("Exchange ")


@pytest.mark.long
def test_an_output_of_which_python_cannot_name_the_columns_works_as_well(tables: Tables) -> None:
    target = tables.add(key=["the id"], columns=["id AS `the id`", "name AS `a.b`"])
    tables.apply([("u", 1, "a", 1), ("d", 1, None, 2), ("u", 2, "b", 1)])
    assert state(target, "the id", "a.b") == [(2, "b")]


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "no column": ({"columns": ["name"]}, r"output 't' has no column 'id', .* the sink's key is id"),
    "another name": ({"columns": ["id AS ID", "name"]}, r"output 't' has no column 'id'"),
    "delete_where": ({"delete_where": "nothing = 1"}, r"Spark refuses the 'delete_where' 'nothing = 1' of output 't'"),
    "latest_by": ({"latest_by": "nothing"}, r"Spark refuses the 'latest_by' 'nothing' of output 't'"),
    "an order of maps": ({"latest_by": "map('a', at)"}, r"can't put the records of t in order"),
}


@pytest.mark.variants
@pytest.mark.parametrize("case", REFUSED)
def test_what_spark_refuses_is_named(tables: Tables, case: str) -> None:
    given, reason = REFUSED[case]
    tables.add(**given)
    with pytest.raises(ConfigurationError, match=reason):
        tables.apply([("u", 1, "a", 1)])


def test_a_sink_that_only_appends_takes_neither_deletes_nor_an_order(tmp_path: Path) -> None:
    files = twopc.create_sink("files", {"path": str(tmp_path), "format": "json"})
    for option in ("delete_where", "latest_by"):
        with pytest.raises(ConfigurationError, match=f"'{option}' of an Output needs .* FileSink only appends"):
            Output(files, **{option: "at"})
    with pytest.raises(ConfigurationError, match="Give the sink 'upsert_by'"):
        Output(MemorySink(MemoryTarget()), latest_by="at")
    with pytest.raises(ConfigurationError, match="'latest_by' of an Output must be an expression"):
        Output(MemorySink(MemoryTarget(), key=["id"]), latest_by=" ")


def test_a_sink_that_cannot_delete_refuses_it_before_the_first_batch(pipeline: Pipeline) -> None:
    class Undeletable(MemorySink):
        def validate_deletes(self) -> None:
            raise Refused("this table keeps its rows")

    pipeline.add_batch([{"id": 1, "name": "a"}])
    output = Output(Undeletable(MemoryTarget(), key=["id"]), delete_where="name IS NULL")
    with pytest.raises(Exception, match="this table keeps its rows"):
        pipeline.run(pipeline.writer(output))
    assert pipeline.decided_batches() == []
