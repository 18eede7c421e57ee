"""Spark with Delta's own runtime reads what the sink writes; and the sink refuses what Spark's tables may demand."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.sinks.delta import test_contract
from tests.sinks.delta.conftest import Place
from tests.sinks.delta.test_readers import Reader
from tests.support.delta_spark import delta_session
from tests.support.spark_session import write_all
from twopc import Participant, Round
from twopc.errors import ConfigurationError, SchemaMismatch


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    spark = delta_session(tmp_path_factory.mktemp("warehouse"))
    yield spark
    spark.stop()


@pytest.fixture
def empty(tmp_path: Any) -> Place:
    return Place(str(tmp_path / "table"))


def make(spark: SparkSession, place: Place, columns: str, then: str = "") -> None:
    spark.sql(f"CREATE TABLE delta.`{place.path}` ({columns}) USING delta {then}")


def rows(spark: SparkSession, place: Place, where: str = "true", columns: str = "*") -> list[Any]:
    found = spark.sql(f"SELECT {columns} FROM delta.`{place.path}` WHERE {where}").collect()  # noqa: S608  # of the test
    return [row.asDict(recursive=True) for row in found]


@pytest.mark.parametrize(
    "then",
    [
        "",
        "PARTITIONED BY (value)",
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "TBLPROPERTIES ('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '1')",
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "TBLPROPERTIES ('delta.appendOnly' = 'true')",
    ],
)
def test_spark_reads_each_batch_once_from_a_table_that_it_made(spark: SparkSession, empty: Place, then: str) -> None:
    make(spark, empty, "value STRING, id INT", then)
    for batch_id in range(3):
        records = {"value": [f"a{batch_id}", "ü %/=:"], "id": pa.array([batch_id, None], pa.int32())}
        committable = empty.pre_commit(records, Round(1, batch_id))
        for _ in range(2):
            empty.sink().commit_batch(batch_id, [committable])
        spark.sql(f"INSERT INTO delta.`{empty.path}` VALUES ('spark', {batch_id})")  # noqa: S608  # of the test
    found = sorted((row["value"], row["id"] or 0) for row in rows(spark, empty))
    ours = [(f"a{number}", number) for number in range(3)] + [("ü %/=:", 0)] * 3
    assert found == sorted([*ours, *(("spark", number) for number in range(3))])
    assert [row["id"] for row in rows(spark, empty, "value = 'a1'")] == [1]


@pytest.mark.parametrize(
    ("named", "columns", "then"),
    [
        ("clustering", "value STRING", "CLUSTER BY (value)"),
        ("rowTracking", "value STRING", "TBLPROPERTIES ('delta.enableRowTracking' = 'true')"),
        ("inCommitTimestamp", "value STRING", "TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')"),
        ("columnMapping", "value STRING", "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"),
        ("columnMapping", "value STRING", "TBLPROPERTIES ('delta.columnMapping.mode' = 'id')"),
        ("generatedColumns", "value STRING, size INT GENERATED ALWAYS AS (length(value))", ""),
        ("identityColumns", "value STRING, id BIGINT GENERATED ALWAYS AS IDENTITY", ""),
        (
            "allowColumnDefaults",
            "value STRING, id INT DEFAULT 3",
            "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
        ),
        ("typeWidening", "value STRING", "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"),
        ("char", "value CHAR(3)", ""),
    ],
)
def test_a_table_of_spark_with_a_feature_that_the_sink_lacks_is_refused(
    spark: SparkSession, empty: Place, named: str, columns: str, then: str
) -> None:
    make(spark, empty, columns, then)
    follow(spark, empty, named)


def test_a_check_constraint_of_spark_is_refused(spark: SparkSession, empty: Place) -> None:
    make(spark, empty, "value STRING")
    spark.sql(f"ALTER TABLE delta.`{empty.path}` ADD CONSTRAINT long CHECK (length(value) > 3)")
    follow(spark, empty, "CHECK constraint 'long'")


def test_a_table_with_databricks_defaults_is_written_after_the_statements_of_one_refusal(
    spark: SparkSession, empty: Place
) -> None:
    properties = ("enableDeletionVectors", "enableInCommitTimestamps", "enableRowTracking")
    given = ", ".join(f"'delta.{name}' = 'true'" for name in properties)
    make(spark, empty, "value STRING", f"TBLPROPERTIES ({given}, 'delta.columnMapping.mode' = 'name')")
    follow(spark, empty, "columnMapping")


def follow(spark: SparkSession, place: Place, named: str) -> None:
    """Do what the refusal of a table says, and write to it; or to its copy, where it says that nothing else helps."""
    with pytest.raises(ConfigurationError, match=named) as refused:
        place.sink()
    statements = re.findall(r"ALTER TABLE … (.+?)(?=; its? |\. Nothing was written)", str(refused.value))
    for statement in statements:
        spark.sql(f"ALTER TABLE delta.`{place.path}` {statement}")
    if not statements:
        assert "Only a copy of the table lacks it: CREATE TABLE … USING delta AS SELECT" in str(refused.value)
        copy = Place(f"{place.path}-copy")
        spark.sql(f"CREATE TABLE delta.`{copy.path}` USING delta AS SELECT value FROM delta.`{place.path}`")  # noqa: S608
        place = copy
    place.sink().commit_batch(0, [place.pre_commit(["abcd"])])
    assert [row["value"] for row in rows(spark, place)] == ["abcd"]


def test_spark_reads_each_value_that_the_contract_draws(
    spark: SparkSession, empty: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract, read = test_contract.TestAppend(), by_spark(spark)
    contract.place = empty
    monkeypatch.setattr(contract, "readers", lambda: {"Spark": contract.read_by(read)})
    contract.test_a_value_that_is_drawn_is_refused_or_read_back_as_it_was_written()


def by_spark(spark: SparkSession) -> Reader:
    return lambda place: spark.read.format("delta").load(place.path).toArrow()


def test_an_append_leaves_deletion_vectors_of_spark_in_force(spark: SparkSession, empty: Place) -> None:
    make(spark, empty, "value STRING", "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    inserted = spark.createDataFrame([("a",), ("b",)], "value STRING").coalesce(1)
    inserted.write.format("delta").mode("append").save(empty.path)
    spark.sql(f"DELETE FROM delta.`{empty.path}` WHERE value = 'a'")  # noqa: S608  # of the test
    assert list(empty.folder.glob("deletion_vector_*"))
    empty.sink().commit_batch(0, [empty.pre_commit(["c", "d"])])
    spark.sql(f"DELETE FROM delta.`{empty.path}` WHERE value = 'c'")  # noqa: S608  # of the test
    empty.sink().commit_batch(1, [empty.pre_commit(["e"], Round(1, 1))])
    assert sorted(row["value"] for row in rows(spark, empty)) == ["b", "d", "e"]


def test_spark_skips_no_file_that_has_what_it_looks_for(spark: SparkSession, empty: Place) -> None:
    make(spark, empty, "value STRING, f DOUBLE, day DATE, at TIMESTAMP, amount DECIMAL(30, 10)")
    moment = datetime(2024, 1, 1, 0, 0, 0, 999_999, tzinfo=timezone.utc)
    long = "z" * 32 + "\U0010ffff"
    records = {
        "value": ["a", "z" * 40, long],
        "f": [1.0, math.nan, -0.0],
        "day": [date(1900, 1, 1)] * 3,
        "at": pa.array([moment] * 3, pa.timestamp("us", "UTC")),
        "amount": pa.array([Decimal("12345678901234567890.0123456789")] * 3, pa.decimal128(30, 10)),
    }
    empty.sink().commit_batch(0, [empty.pre_commit(records)])
    assert len(rows(spark, empty, "f > 100")) == 1  # NaN is greater than any number to Spark
    assert len(rows(spark, empty, f"value = '{'z' * 40}'")) == 1
    assert len(rows(spark, empty, f"value = '{long}'")) == 1
    assert len(rows(spark, empty, "day = DATE'1900-01-01'")) == 3
    assert len(rows(spark, empty, "at = TIMESTAMP'2024-01-01 00:00:00.999999Z'")) == 3
    assert len(rows(spark, empty, "amount >= 12345678901234567890.0123456789BD")) == 3


def test_optimize_vacuum_and_restore_of_spark_leave_an_undecided_batch_to_its_commit(
    spark: SparkSession, empty: Place
) -> None:
    make(spark, empty, "value STRING")
    for batch_id in range(3):
        empty.sink().commit_batch(batch_id, [empty.pre_commit([f"{batch_id}"], Round(1, batch_id))])
    decided = empty.pre_commit(["decided"], Round(1, 3))
    spark.sql(f"OPTIMIZE delta.`{empty.path}`")
    spark.sql(f"VACUUM delta.`{empty.path}` RETAIN 24 HOURS")
    spark.sql(f"RESTORE TABLE delta.`{empty.path}` TO VERSION AS OF 2")
    for _ in range(2):
        empty.sink().commit_batch(3, [decided])
    assert sorted(row["value"] for row in rows(spark, empty)) == ["0", "1", "decided"]


@pytest.mark.parametrize(
    "keep_up",
    [
        "OPTIMIZE delta.`{}`",
        "VACUUM delta.`{}` RETAIN 0 HOURS",
        "RESTORE TABLE delta.`{}` TO VERSION AS OF 1",
        "CREATE OR REPLACE TABLE delta.`{}` (value STRING) USING delta",
    ],
    ids=lambda statement: statement.partition(" delta")[0],
)
def test_no_upkeep_by_spark_is_taken_for_a_loss(spark: SparkSession, empty: Place, keep_up: str) -> None:
    """The fifth version gets a checkpoint, behind which Spark removes old entries. Killed trials have left files."""
    make(spark, empty, "value STRING", "TBLPROPERTIES ('delta.checkpointInterval' = '5')")
    sink = empty.sink()
    for batch_id in range(4):
        sink.commit_batch(batch_id, [empty.pre_commit([f"{batch_id}"], Round(1, batch_id), sink=sink)])
    for name in (".left.probe", ".left.aside"):
        (empty.log / name).touch()
    is_old = keep_up.startswith(("OPTIMIZE", "VACUUM"))  # the others need the entries, or reset the interval
    for path in empty.folder.glob("_*/*" if is_old else "_twopc/*"):
        os.utime(path, (1, 1))
    spark.sql(keep_up.format(empty.path))
    assert empty.receipt.exists()
    assert empty.entry_path(4).exists() is not is_old
    for batch_id, driver in ((4, sink), (5, empty.sink())):  # the one that runs, and a later one
        driver.commit_batch(batch_id, [empty.pre_commit([f"{batch_id}"], Round(1, batch_id), sink=driver)])
    assert {"4", "5"} <= {row["value"] for row in rows(spark, empty)}


def test_vacuum_of_spark_without_retention_loses_an_undecided_batch_aloud_and_leaves_notes(
    spark: SparkSession, empty: Place
) -> None:
    from twopc.errors import TransactionLost

    make(spark, empty, "value STRING")
    decided = empty.pre_commit(["decided"])
    spark.sql(f"VACUUM delta.`{empty.path}` RETAIN 0 HOURS")
    assert len(empty.notes()) == 1
    with pytest.raises(TransactionLost, match="VACUUM"):
        empty.sink().commit_batch(0, [decided])


def test_create_or_replace_of_spark_between_decision_and_commit_stops_the_query(
    spark: SparkSession, empty: Place
) -> None:
    from twopc.errors import OperatorRequired

    make(spark, empty, "value STRING")
    decided = empty.pre_commit(["decided"])
    other = spark.createDataFrame([], "value INT")
    other.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(empty.path)
    with pytest.raises(OperatorRequired):
        empty.sink().commit_batch(0, [decided])
    assert rows(spark, empty) == []


def test_a_stream_of_spark_reads_each_batch_once(spark: SparkSession, empty: Place, tmp_path: Any) -> None:
    make(spark, empty, "value STRING")
    for batch_id in range(12):  # over a checkpoint
        empty.sink().commit_batch(batch_id, [empty.pre_commit([f"{batch_id}"], Round(1, batch_id))])
    stream = spark.readStream.format("delta").load(empty.path).writeStream.format("memory").queryName("seen")
    write_all(stream, tmp_path / "checkpoint")
    seen = sorted(int(row["value"]) for row in spark.table("seen").collect())
    assert seen == list(range(12))


def test_a_stream_of_spark_stops_at_a_replaced_or_deleted_row_and_can_skip_its_version_as_a_whole(
    spark: SparkSession, empty: Place, tmp_path: Any
) -> None:
    make(spark, empty, "id BIGINT, name STRING", "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    kept = str(tmp_path / "rows")

    def streamed(**options: str) -> list[Any]:
        stream = spark.readStream.format("delta").options(**options).load(empty.path).writeStream
        write_all(stream.format("parquet").option("path", kept), tmp_path / "checkpoint")
        found = spark.read.schema("id BIGINT, name STRING").parquet(kept).collect()
        return sorted((row["id"], row["name"]) for row in found)

    def change(batch_id: int, ids: list[int], deleted: Sequence[int] = ()) -> None:
        with Participant({"orders": empty.sink(upsert_by="id")}, Round(1, batch_id), partition=0) as participant:
            if ids:
                participant.write("orders", pa.record_batch({"id": ids, "name": [f"{batch_id}"] * len(ids)}))
            if deleted:
                participant.delete("orders", pa.record_batch({"id": [*deleted], "name": [""] * len(deleted)}))
            batch = empty.sink(upsert_by="id").seal([participant.pre_commit()["orders"]], 0.0)
        empty.sink(upsert_by="id").commit_batch(batch_id, batch)

    change(0, [0])
    change(1, [1])
    assert streamed() == [(0, "0"), (1, "1")]
    change(2, [0, 2])
    with pytest.raises(Exception, match="skipChangeCommits"):
        streamed()
    assert streamed(skipChangeCommits="true") == [(0, "0"), (1, "1")]
    change(3, [], deleted=[2])
    with pytest.raises(Exception, match="skipChangeCommits"):
        streamed()
    change(4, [4])
    assert streamed(skipChangeCommits="true") == [(0, "0"), (1, "1"), (4, "4")]


def test_merge_schema_adds_a_column_as_spark_users_know_it(spark: SparkSession, empty: Place) -> None:
    make(spark, empty, "value STRING")
    empty.sink().commit_batch(0, [empty.pre_commit(["a"])])
    wider = pa.record_batch({"value": ["b"], "more": pa.array([1], pa.int64())})
    with pytest.raises(SchemaMismatch, match="merge_schema"):
        empty.sink().validate(wider.schema)
    sink = empty.sink(merge_schema=True)
    for _ in range(2):
        sink.validate(wider.schema)
    sink.commit_batch(1, [empty.pre_commit(wider, Round(1, 1), sink=sink)])
    assert rows(spark, empty, "more = 1") == [{"value": "b", "more": 1}]
    assert rows(spark, empty, "more IS NULL") == [{"value": "a", "more": None}]


@pytest.mark.parametrize(
    "then", ["", "'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '1', "], ids=["classic", "v2"]
)
def test_spark_reads_upserts_and_deletes_and_writes_beside_them(spark: SparkSession, empty: Place, then: str) -> None:
    make(spark, empty, "id BIGINT, name STRING", f"TBLPROPERTIES ({then}'delta.enableDeletionVectors' = 'true')")
    spark.sql(f"INSERT INTO delta.`{empty.path}` SELECT id, 'spark' FROM range(20)")  # noqa: S608  # of the test
    spark.sql(f"DELETE FROM delta.`{empty.path}` WHERE id = 19")  # noqa: S608  # of the test
    expected = dict.fromkeys(range(19), "spark")
    for batch_id in range(4):
        with Participant({"orders": empty.sink(upsert_by="id")}, Round(1, batch_id), partition=0) as participant:
            participant.write("orders", pa.record_batch({"id": [0, batch_id + 1], "name": [f"{batch_id}"] * 2}))
            participant.delete("orders", pa.record_batch({"id": [batch_id + 10], "name": [""]}))
            batch = empty.sink(upsert_by="id").seal([participant.pre_commit()["orders"]], 0.0)
        for _ in range(2):
            empty.sink(upsert_by="id").commit_batch(batch_id, batch)
        expected |= {0: f"{batch_id}", batch_id + 1: f"{batch_id}"}
        del expected[batch_id + 10]
        if batch_id == 1:
            spark.sql(f"UPDATE delta.`{empty.path}` SET name = 'updated' WHERE id = 8")  # noqa: S608  # of the test
            expected[8] = "updated"
        if batch_id == 2:
            spark.sql(f"OPTIMIZE delta.`{empty.path}`")
        assert sorted((row["id"], row["name"]) for row in rows(spark, empty)) == sorted(expected.items())
        bounds = rows(spark, empty, columns="count(*) AS n, min(id) AS low, max(id) AS high")[0]
        assert (bounds["n"], bounds["low"], bounds["high"]) == (len(expected), min(expected), max(expected))
