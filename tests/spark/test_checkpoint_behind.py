"""A checkpoint that is older than its log plans decided batches anew: refused before anything is written."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from twopc.spark import foreach_batch

if TYPE_CHECKING:
    from tests.spark.conftest import Pipeline

pytestmark = pytest.mark.spark


def add(pipeline: Pipeline, *ids: int) -> None:
    pipeline.add_batch([{"id": number, "name": "a"} for number in ids])


def run(pipeline: Pipeline) -> None:
    pipeline.run(foreach_batch(pipeline.files(), log=str(pipeline.log)))


def lose(pipeline: Pipeline, *batch_ids: int) -> None:
    """What a power cut does to files that Spark does not sync: those of the newest batches are gone."""
    for batch_id in batch_ids:
        for folder in ("offsets", "commits", "sources/0"):
            for name in (f"{batch_id}", f".{batch_id}.crc", f"{batch_id}.compact", f".{batch_id}.compact.crc"):
                (pipeline.checkpoint / folder / name).unlink(missing_ok=True)


def refusal(pipeline: Pipeline) -> str:
    with pytest.raises(StreamingQueryException) as refused:
        run(pipeline)
    assert "twopc.errors.LogMismatch" in str(refused.value)
    return str(refused.value)


def test_a_batch_that_is_planned_again_from_other_files_is_refused_before_anything_is_written(
    pipeline: Pipeline,
) -> None:
    add(pipeline, 1, 2)
    run(pipeline)
    add(pipeline, 3)
    run(pipeline)
    lose(pipeline, 1)
    add(pipeline, 4, 5)
    (pipeline.folder / "source" / "00001.json").unlink()

    said = refusal(pipeline)
    assert "batch 1 is decided in the commit log" in said
    assert re.search(r"files\.0\.1\.1\.path: decided '.*/00001\.json', now '.*/00002\.json'", said)
    assert pipeline.archived_ids() == [1, 2, 3]
    assert pipeline.staged() == []


def test_a_checkpoint_from_a_backup_is_refused_before_anything_is_written(pipeline: Pipeline) -> None:
    add(pipeline, 1, 2)
    run(pipeline)
    shutil.copytree(pipeline.checkpoint, pipeline.folder / "backup")
    add(pipeline, 3)
    run(pipeline)
    shutil.rmtree(pipeline.checkpoint)
    shutil.copytree(pipeline.folder / "backup", pipeline.checkpoint)
    add(pipeline, 4, 5)

    assert "batch 1 is decided in the commit log" in refusal(pipeline)
    assert pipeline.archived_ids() == [1, 2, 3]
