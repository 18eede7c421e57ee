"""A record that a sink refuses goes to another one in the same decision, with the reason and the row it comes from."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from pyspark.errors import StreamingQueryException

import twopc
from tests.sinks.delta.conftest import Place
from tests.spark.conftest import Pipeline, rows
from twopc.events import BatchFinished, Event
from twopc.sink import TwoPhaseCommitSink
from twopc.spark import BadRecords, Output


class Shop:
    """A table whose partition column takes no empty text, and a folder for what it refuses."""

    def __init__(self, pipeline: Pipeline, schema: pa.Schema, **properties: str) -> None:
        self.pipeline = pipeline
        self.table = Place(str(pipeline.folder / "archive" / "table"))
        DeltaTable.create(
            self.table.path, Schema.from_arrow(schema), partition_by=["name"], configuration=properties or None
        )

    @property
    def orders(self) -> TwoPhaseCommitSink[Any]:
        return twopc.create_sink("delta", {"path": self.table.path})

    @property
    def letters(self) -> TwoPhaseCommitSink[Any]:
        return twopc.create_sink("files", {"path": str(self.folder), "format": "json"})

    @property
    def folder(self) -> Path:
        return self.pipeline.folder / "archive" / "letters"

    def refused(self) -> list[dict[str, Any]]:
        found = [json.loads(line) for file in self.folder.glob("part-*.json") for line in file.read_text().splitlines()]
        return sorted(found, key=lambda each: str(each.get("row")))

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.table.rows())

    def run(self, orders: Any = None, plan: Any = lambda source: source, **arguments: Any) -> Any:
        sinks = orders or {"orders": self.orders}
        writer = self.pipeline.writer(sinks, **{"bad_records": self.letters, **arguments})
        self.pipeline.run(writer, plan)
        return writer


@pytest.fixture
def shop(pipeline: Pipeline) -> Shop:
    return Shop(pipeline, pa.schema({"id": pa.int64(), "name": pa.string()}))


def test_bad_records_go_to_their_sink_and_the_others_to_theirs(shop: Shop, events: list[Event]) -> None:
    shop.pipeline.add_batch([*rows(1, 2), {"id": 3, "name": ""}, {"id": 4, "name": ""}])
    shop.pipeline.add_batch(rows(5))
    writer = shop.run(plan=lambda source: source.repartition(2))
    assert shop.ids() == [1, 2, 5]
    assert [(each["sink"], json.loads(each["row"])) for each in shop.refused()] == [
        ("orders", {"id": 3, "name": ""}),
        ("orders", {"id": 4, "name": ""}),
    ]
    [reason] = {each["reason"] for each in shop.refused()}
    assert reason.startswith("column 'name': Delta's readers take an empty text")
    finished = [event for event in events if isinstance(event, BatchFinished)]
    assert [event.bad_records for event in finished] == [2, 0]
    assert finished[0].records == {"bad_records": 2, "orders": 2}
    assert "2 bad records" in str(finished[0])
    assert writer.last_progress.transactions == {"bad_records": 0, "orders": 1}


@pytest.mark.long
def test_the_row_is_the_one_that_the_record_was_made_from(shop: Shop) -> None:
    """Not the record: an output may have computed other columns, and may have other rows before it."""
    shop.pipeline.add_batch([*rows(1, 2, 3), {"id": 4, "name": "trap"}, *rows(5)])
    columns = ["id * 10 AS id", "nullif(name, 'trap') AS name", "if(name = 'trap', '', name) AS name2"]
    outputs = {
        "orders": Output(shop.orders, ["id * 10 AS id", "if(name = 'trap', '', name) AS name"], "id % 2 = 0"),
        "all": Output(twopc.create_sink("files", {"path": str(shop.pipeline.folder / "archive" / "all")}), columns),
    }
    shop.run(outputs)
    assert shop.ids() == [20]
    assert [json.loads(each["row"]) for each in shop.refused()] == [{"id": 4, "name": "trap"}]


@pytest.mark.long
def test_a_single_output_with_columns_of_its_own_tells_the_row_too(shop: Shop) -> None:
    shop.pipeline.add_batch([*rows(1), {"id": 2, "name": "trap"}])
    columns = ["id", "if(name = 'trap', '', name) AS name"]
    shop.run({"orders": Output(shop.orders, columns)})
    assert shop.ids() == [1]
    assert [json.loads(each["row"]) for each in shop.refused()] == [{"id": 2, "name": "trap"}]


@pytest.mark.long
def test_a_bad_record_that_is_the_last_of_its_key_hides_an_earlier_one_and_others_apply(pipeline: Pipeline) -> None:
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    shop = Shop(pipeline, schema, **{"delta.enableDeletionVectors": "true"})
    pipeline.add_batch([{"id": id, "name": "a"} for id in (1, 2, 3)])
    changes = [(1, "b"), (1, ""), (2, "gone"), (3, "c")]
    pipeline.add_batch([{"id": id, "name": name} for id, name in changes])
    keyed = twopc.create_sink("delta", {"path": shop.table.path, "upsert_by": "id"})
    output = Output(keyed, ["id", "name"], delete_where="name = 'gone'", latest_by="-length(name)")
    shop.run({"orders": output})
    assert sorted(shop.table.rows(), key=str) == [{"id": 1, "name": "a"}, {"id": 3, "name": "c"}]
    assert [json.loads(each["row"])["id"] for each in shop.refused()] == [1]


def test_columns_choose_what_becomes_of_a_bad_record(shop: Shop) -> None:
    shop.pipeline.add_batch([{"id": 7, "name": ""}])
    columns = ["concat(sink, ': ', get_json_object(row, '$.id')) AS value"]
    shop.run(bad_records=BadRecords(shop.letters, columns))
    assert shop.refused() == [{"value": "orders: 7"}]


@pytest.mark.long
def test_more_bad_records_than_a_batch_may_have_fail_it_before_its_decision(shop: Shop) -> None:
    shop.pipeline.add_batch([*rows(1), *({"id": number, "name": ""} for number in range(6))])
    with pytest.raises(StreamingQueryException, match="the sinks refused 6 records of the batch, more than"):
        shop.run(plan=lambda source: source.repartition(3), bad_records=BadRecords(shop.letters, limit=5))
    with pytest.raises(StreamingQueryException, match="3 records of the batch were refused before"):
        shop.run(bad_records=BadRecords(shop.letters, limit=3))
    assert (shop.ids(), shop.refused(), shop.pipeline.decided_batches()) == ([], [], [])


@pytest.mark.long
def test_without_a_sink_for_it_a_bad_record_fails_the_batch(shop: Shop) -> None:
    shop.pipeline.add_batch([*rows(1), {"id": 2, "name": ""}])
    with pytest.raises(StreamingQueryException, match="task 0, record 1, column 'name': Delta's readers"):
        shop.run(bad_records=None)
    assert (shop.ids(), shop.refused()) == ([], [])


VALUES: Mapping[str, Any] = {
    "make_date(12000, 1, 2)": "12000-01-02",
    "cast('12000-01-02 03:04:05Z' AS timestamp)": "12000-01-02 03:04:05.000000Z",
    "cast('2024-01-02 03:04:05Z' AS timestamp)": "2024-01-02T03:04:05+00:00",
    "array(cast(X'61FF' AS string))": ["a\\xff"],
    "make_ym_interval(1, 2)": "INTERVAL '1-2' YEAR TO MONTH",
    "make_interval(1, 2, 0, 4)": "1 years 2 months 4 days",
    "make_dt_interval(1, 2)": "1 day, 2:00:00",
    "parse_json('{\"a\": [1]}')": '{"a":[1]}',
    "map(named_struct('a', 1), X'00FF')": {'{"a": 1}': "AP8="},
    "array(double('nan'), 1.5D, null)": ["nan", 1.5, None],
    "named_struct('a', cast(null AS struct<b: int>), 'c', 1.50BD)": {"a": None, "c": "1.50"},
}


@pytest.mark.long
def test_a_row_is_returned_whatever_is_in_it(shop: Shop) -> None:
    """Else the record could not be left out, and its batch would fail for good."""
    shop.pipeline.add_batch([*rows(1), {"id": 2, "name": ""}])
    orders = {"orders": Output(shop.orders, ["id", "name"])}
    columns = [f"{value} AS extra{number}" for number, value in enumerate(VALUES)]
    zone = "spark.sql.session.timeZone"
    shop.pipeline.spark.conf.set(zone, "GMT+01:00")  # which Python does not know
    try:
        shop.run(orders, lambda source: source.selectExpr("*", *columns))
    finally:
        shop.pipeline.spark.conf.unset(zone)
    assert shop.ids() == [1]
    extra = {f"extra{number}": returned for number, returned in enumerate(VALUES.values())}
    assert [json.loads(each["row"]) for each in shop.refused()] == [{"id": 2, "name": "", **extra}]


@pytest.mark.long
def test_a_row_with_two_columns_of_one_name_is_returned_with_both(shop: Shop) -> None:
    shop.pipeline.add_batch([{"id": 2, "name": ""}])
    orders = {"orders": Output(shop.orders, ["id", "name"])}
    shop.run(
        orders, lambda source: source.selectExpr("*", "3 AS x", "4 AS x", "5 AS `twopc source row`", "6 AS orders")
    )
    expected = {"id": 2, "name": "", "x": 3, "x_2": 4, "twopc source row": 5, "orders": 6}
    assert [json.loads(each["row"]) for each in shop.refused()] == [expected]


@pytest.mark.long
def test_columns_may_make_no_record_of_a_bad_one(shop: Shop) -> None:
    shop.pipeline.add_batch([*rows(1), {"id": 2, "name": ""}])
    shop.run(bad_records=BadRecords(shop.letters, ["explode(filter(array(row), x -> length(x) > 100)) AS value"]))
    assert (shop.ids(), shop.refused()) == ([1], [])


def test_the_checkpoint_within_the_folder_of_bad_records_is_refused(shop: Shop) -> None:
    shop.pipeline.add_batch(rows(1))
    letters = twopc.create_sink("files", {"path": str(shop.pipeline.checkpoint), "format": "json"})
    with pytest.raises(StreamingQueryException, match="where sink 'bad_records' writes"):
        shop.run(bad_records=letters)
    assert shop.ids() == []


def test_columns_that_spark_refuses_are_named_before_anything_is_written(shop: Shop) -> None:
    shop.pipeline.add_batch(rows(1))
    with pytest.raises(StreamingQueryException, match=r"columns \['reasn'\] of output 'bad_records'"):
        shop.run(bad_records=BadRecords(shop.letters, ["reasn"]))
    assert (shop.ids(), shop.pipeline.decided_batches()) == ([], [])
