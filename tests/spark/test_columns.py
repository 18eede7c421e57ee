"""Each sink gets its columns by the names that they have in the batch, whatever those are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twopc.spark import foreach_batch
from twopc.spark.output import ALL, projected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Pipeline

pytestmark = pytest.mark.spark

PLAIN = ["id", "name AS text"]
NOT_PLAIN = [
    pytest.param(["id AS `a.b`"], {"a.b": 1}, id="with a dot, by which Spark looks into structs"),
    pytest.param(["id AS `a``b`", "id AS `a b`"], {"a`b": 1, "a b": 1}, id="that must be quoted"),
    pytest.param(["id", "name AS ID"], {"id": 1, "ID": "one"}, id="that are the same to Spark"),
    pytest.param(["named_struct('x', id) AS sink"], {"sink": {"x": 1}}, id="of the sink, and a struct"),
]


@pytest.mark.parametrize("by_plan", [False, True], ids=["of its own expressions", "of the batch"])
@pytest.mark.parametrize(("columns", "record"), [pytest.param(PLAIN, {"id": 1, "text": "one"}, id="plain"), *NOT_PLAIN])
def test_a_sink_alone_gets_columns(
    pipeline: Pipeline, columns: list[str], record: dict[str, object], by_plan: bool
) -> None:
    pipeline.add_batch([{"id": 1, "name": "one"}])
    if by_plan:
        write = foreach_batch(pipeline.files(), log=str(pipeline.log))
        pipeline.run(write, plan=lambda source: source.selectExpr(*columns))
    else:
        pipeline.run(foreach_batch((pipeline.files(), columns), log=str(pipeline.log)))
    assert pipeline.archived() == [record]


def test_only_several_sinks_or_names_that_python_cannot_hand_over_need_structs(spark: SparkSession) -> None:
    frame = spark.range(1)
    assert projected(frame, {"one": ALL})[0] is frame
    in_structs = [
        projected(frame, expressions)[1].in_structs
        for expressions in ({"one": ALL}, {"one": ["id"]}, {"one": ["id AS `a.b`"]}, {"one": ALL, "other": ALL})
    ]
    assert in_structs == [False, False, True, True]
