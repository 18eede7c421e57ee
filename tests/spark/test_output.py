"""Each sink gets its columns, by the names that they have in the batch, whatever those are, and with Arrow's types."""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its customary name
from pyspark.sql.types import StructField, StructType, TimestampType, YearMonthIntervalType

import twopc
from tests.spark.conftest import Pipeline
from twopc.errors import ConfigurationError, SchemaMismatch
from twopc.spark import Output
from twopc.spark.output import ALL, Projection
from twopc.spark.records import arrow_schema
from twopc.testing import MemorySink, MemoryTarget

PLAIN = ["id", "name AS text"]
NOT_PLAIN = [
    pytest.param(["id AS `a.b`"], {"a.b": 1}, id="with a dot, by which Spark looks into structs"),
    pytest.param(["id AS `a``b`", "id AS `a b`"], {"a`b": 1, "a b": 1}, id="that must be quoted"),
    pytest.param(["named_struct('x', id) AS sink"], {"sink": {"x": 1}}, id="of the sink, and a struct"),
]


def test_an_output_takes_columns_as_well_as_texts(pipeline: Pipeline) -> None:
    pipeline.add_batch([{"id": number, "name": "one"} for number in range(4)])
    mixed = Output(pipeline.files(), [F.col("id").alias("key"), "name AS text", F.struct("id")], F.col("id") >= 2)
    pipeline.run(pipeline.writer({"sink": mixed}))
    assert pipeline.archived() == [{"key": key, "text": "one", "col3": {"id": key}} for key in (2, 3)]


def test_a_column_of_another_frame_is_refused_by_its_text(spark: SparkSession) -> None:
    other = spark.range(1).withColumnRenamed("id", "key")
    output = Output(MemorySink(MemoryTarget()), ["id", other["key"]])
    with pytest.raises(ConfigurationError, match=r"Spark refuses the columns \['id', Column<'key'>\] of output 'one'"):
        Projection({"one": output}).apply(spark.range(1))


@pytest.mark.variants
@pytest.mark.parametrize(
    "by_plan", [False, pytest.param(True, marks=pytest.mark.long)], ids=["of its own expressions", "of the batch"]
)
@pytest.mark.parametrize(("columns", "record"), [pytest.param(PLAIN, {"id": 1, "text": "one"}, id="plain"), *NOT_PLAIN])
def test_a_sink_alone_gets_columns(
    pipeline: Pipeline, columns: list[str], record: dict[str, object], by_plan: bool
) -> None:
    pipeline.add_batch([{"id": 1, "name": "one"}])
    if by_plan:
        write = pipeline.writer()
        pipeline.run(write, plan=lambda source: source.selectExpr(*columns))
    else:
        pipeline.run(pipeline.writer(Output(pipeline.files(), columns)))
    assert pipeline.archived() == [record]


def test_only_different_columns_or_names_that_python_cannot_hand_over_need_structs(spark: SparkSession) -> None:
    frame = spark.range(1)
    for outputs in ({"one": of()}, {"one": of(), "other": of()}):
        assert Projection(outputs).apply(frame)[0] is frame
    in_structs = [
        Projection(outputs).apply(frame)[1].in_structs
        for outputs in (
            {"one": of()},
            {"one": of(["id"])},
            {"one": of(["id AS `a.b`"])},
            {"one": of(where="id > 0"), "other": of(where="id < 2")},
            {"one": of(["id"], where="id > 0")},
            {"one": of(), "other": of(["id"])},
        )
    ]
    assert in_structs == [False, False, True, False, True, True]


@pytest.mark.parametrize("columns", [ALL, ["id"]], ids=["shared", "in structs"])
def test_each_sink_gets_its_rows_with_their_hashes_and_the_rest_is_unrouted(
    columns: Sequence[str], spark: SparkSession
) -> None:
    frame = spark.range(6).withColumn("id", F.when(F.col("id") != 3, F.col("id")))
    outputs = {"low": of(columns, "id < 2"), "high": of(columns, "id > 3"), "even": of(columns, "id % 2 = 0")}
    made, rows = Projection(outputs, ["low", "high"]).apply(frame)
    [batch] = made.toArrow().combine_chunks().to_batches()
    parts = {part.sink: part for part in rows.split(batch)}
    assert {name: part.records.to_pydict() for name, part in parts.items()} == {
        "low": {"id": [0, 1]},
        "high": {"id": [4, 5]},
        "even": {"id": [0, 2, 4]},
    }
    assert [None if part.hashes is None else len(set(part.hashes.to_pylist())) for part in parts.values()] == [
        2,
        2,
        None,
    ]
    assert (left := rows.unrouted(batch)) is not None
    assert left.to_pylist() == [False, False, False, True, False, False]
    assert rows.schemas(made) == dict.fromkeys(outputs, pa.schema([("id", pa.int64())]))


def of(columns: Sequence[str] = ALL, where: str | None = None) -> Output:
    return Output(MemorySink(MemoryTarget()), columns, where)


def test_foreach_batch_writes_timestamps(pipeline: Pipeline) -> None:
    archive = twopc.create_sink("files", {"path": str(pipeline.folder / "archive")})
    pipeline.add_batch([{"id": 1793138400}])
    pipeline.run(pipeline.writer(archive), lambda source: source.selectExpr("timestamp_seconds(id) AS at"))
    [file] = (pipeline.folder / "archive").glob("part-*")
    assert [row["at"].timestamp() for row in pq.read_table(file).to_pylist()] == [1793138400]


def test_a_timestamp_has_a_time_zone_in_every_version_of_spark() -> None:
    schema = arrow_schema(StructType([StructField("at", TimestampType())]))
    assert schema.field("at").type.tz == "UTC"


UNKEPT = [
    ("parse_json('1')", "VARIANT", r"to_json\(value\) AS value"),
    ("array(parse_json('1'))", "VARIANT", r"to_json\(value\) AS value"),
    ("INTERVAL '1' MONTH", "INTERVAL MONTH", r"CAST\(value AS STRING\) AS value"),
]


@pytest.mark.parametrize(("value", "of_spark", "way_out"), UNKEPT)
def test_a_type_that_a_sink_would_get_as_another_is_refused_by_name_and_the_advice_works(
    spark: SparkSession, value: str, of_spark: str, way_out: str
) -> None:
    frame = spark.range(1).selectExpr(f"{value} AS value")
    advice = re.compile(f"column 'value' has Spark's type {of_spark}, .*Write it as text, such as by ({way_out}),")
    found = []
    for outputs in ({"one": of()}, {"one": of(["value"]), "two": of(["1 AS id"])}):
        shown, rows = Projection(outputs).apply(frame)
        with pytest.raises(SchemaMismatch, match=advice) as refused:
            rows.schemas(shown)
        found += advice.findall(str(refused.value))
    shown, rows = Projection({"one": of([found[0]])}).apply(frame)
    assert rows.schemas(shown)["one"].field("value").type == pa.string()


@pytest.mark.parametrize(("name", "written"), [("of a`month", "`of a``month`"), ("größe", "`größe`")])
def test_the_advice_for_a_column_whose_name_must_be_quoted_has_it_quoted(name: str, written: str) -> None:
    schema = StructType([StructField(name, YearMonthIntervalType())])
    with pytest.raises(SchemaMismatch, match=rf"by CAST\({written} AS STRING\) AS {written}, or drop it"):
        arrow_schema(schema)


@pytest.mark.parametrize("is_sensitive", ["false", "true"])
@pytest.mark.parametrize(
    ("of_lower", "of_upper", "is_alike"),
    [
        (Output, Output, False),
        (lambda sink: Output(sink, where="id > 0"), Output, False),
        (lambda sink: Output(sink, where="id > 0"), lambda sink: Output(sink, where="id > 1"), True),
        (Output, lambda sink: Output(sink, ["id + 1 AS id"]), True),
    ],
    ids=["whole", "one with a condition", "both with a condition", "one with columns"],
)
def test_sinks_whose_names_differ_in_case_alone_are_refused_where_spark_takes_their_columns_for_one(
    is_sensitive: str, of_lower: Any, of_upper: Any, is_alike: bool, spark: SparkSession
) -> None:
    projection = Projection({"a": of_lower(MemorySink(MemoryTarget())), "A": of_upper(MemorySink(MemoryTarget()))})
    spark.conf.set("spark.sql.caseSensitive", is_sensitive)
    try:
        if is_alike and is_sensitive == "false":
            with pytest.raises(ConfigurationError, match="'a', 'A' of foreach_batch must have names that differ in"):
                projection.apply(spark.range(3))
        else:
            frame, _ = projection.apply(spark.range(3))
            assert len(frame.mapInArrow(lambda batches: batches, frame.schema).collect()) == 3
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
