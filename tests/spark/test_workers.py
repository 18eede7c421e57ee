"""The Python processes of tasks do not look through everything that they have loaded after each task."""

import gc
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Pipeline
from twopc.spark import TwoPhaseCommitDataSource


def by_foreach_batch(pipeline: Pipeline) -> None:
    pipeline.add_batch([{"id": 1, "name": "a"}])
    pipeline.run(pipeline.writer({"archive": pipeline.files()}))


def by_format(pipeline: Pipeline) -> None:
    pipeline.spark.dataSource.register(TwoPhaseCommitDataSource)
    options = {"sink": "files", "log": str(pipeline.log), "path": str(pipeline.folder / "archive"), "format": "json"}
    pipeline.spark.range(1, 2).write.format("twopc").options(**options).mode("append").save()


@pytest.fixture
def fresh_workers(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run in Python processes of their own: Spark starts others for another environment."""
    monkeypatch.setitem(spark.sparkContext.environment, "TWOPC_TEST", uuid.uuid4().hex)


@pytest.mark.long
@pytest.mark.usefixtures("fresh_workers")
@pytest.mark.parametrize("write", [by_foreach_batch, by_format])
def test_what_a_task_has_loaded_is_exempt_from_garbage_collection(
    pipeline: Pipeline, write: Callable[[Pipeline], None]
) -> None:
    write(pipeline)
    assert pipeline.archived_ids() == [1]
    looked = looks(pipeline.spark)
    assert looked.exempt > looked.collected


def looks(spark: SparkSession) -> Any:
    """How many objects the garbage collector looks at, and how many it does not, in the process of the next task."""

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        found = {"collected": len(gc.get_objects()), "exempt": gc.get_freeze_count()}
        yield pa.RecordBatch.from_pylist([found])

    return spark.range(0, 1, 1, 1).mapInArrow(look, "collected long, exempt long").first()
