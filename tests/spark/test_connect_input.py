"""What a batch reads, as a client of Spark Connect finds it in the checkpoint: without a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from twopc.checkpoint.folder import CheckpointFolder
from twopc.errors import LogMismatch
from twopc.spark.engine import ConnectInput


def plan(checkpoint: Path, batch_id: int) -> None:
    (checkpoint / "offsets").mkdir(exist_ok=True)
    (checkpoint / "offsets" / f"{batch_id}").write_text(
        f'v1\n{{"batchWatermarkMs":0}}\n{{"orders":{{"0":{batch_id}}}}}'
    )


@pytest.mark.long
def test_a_batch_that_is_run_again_reads_the_same_and_follows_the_same(tmp_path: Path) -> None:
    plan(tmp_path, 0)
    plan(tmp_path, 1)
    found = ConnectInput(CheckpointFolder(str(tmp_path)))
    with pytest.raises(LogMismatch, match=r"the newest batch in its checkpoint at .* is 1"):
        found.of_batch(2)
    first = found.of_batch(1)
    assert (first.reads["sources"], first.follows and first.follows["sources"]) == (
        [{"orders": {"0": 1}}],
        [{"orders": {"0": 0}}],
    )
    assert found.of_batch(1) == first
    plan(tmp_path, 2)
    assert found.of_batch(2).follows is None  # this process has planned the batch before
