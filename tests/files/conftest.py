"""What the tests of the file sink share: sinks on one folder, and a writer that has pre-committed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pytest

from twopc import Committable, Participant, Round
from twopc_files.sink import FileSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MakeSink: TypeAlias = "Callable[..., FileSink]"
PreCommit: TypeAlias = "Callable[..., Committable]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "orders"


@pytest.fixture
def make_sink(folder: Path) -> MakeSink:
    """A new sink on ``folder``, bound as a coordinator binds it: a process of its own, as far as it knows."""

    def make(log_id: str = "log", **options: str) -> FileSink:
        sink = FileSink({"path": str(folder), **options})
        sink.bind("orders", log_id)
        return sink

    return make


@pytest.fixture
def pre_commit(make_sink: MakeSink) -> PreCommit:
    """Have a participant pre-commit ``batch``; what it returns has been through the log."""

    def run(batch: pa.RecordBatch | None = None, batch_id: int = 0, partition: int = 0, **options: str) -> Committable:
        rows = pa.record_batch({"value": ["a", "b"]}) if batch is None else batch
        with Participant({"orders": make_sink(**options)}, Round(1, batch_id), partition) as participant:
            participant.write("orders", rows)
            vote = participant.pre_commit()
        return Committable.from_json(json.loads(json.dumps(vote["orders"].to_json())))

    return run
