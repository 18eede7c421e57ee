"""Sinks on their way to the executors, where their distributions may not be installed."""

import pickle
import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from tests.spark.conftest import Pipeline
from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.spark.task import PickledSinks
from twopc_files.sink import FileSink

MODULE = """
from twopc_files.sink import FileSink

class Elsewhere(FileSink):
    pass
"""


def test_a_sink_arrives_bound_as_it_left(tmp_path: Path) -> None:
    sink = FileSink({"path": str(tmp_path / "archive"), "format": "json"})
    sink.bind("archive", "a-log")
    sinks: PickledSinks = pickle.loads(pickle.dumps(PickledSinks.of({"archive": sink})))  # noqa: S301  # as Spark does
    assert sinks.load()["archive"].transactional_ids == sink.transactional_ids


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileSink]:
    """A sink of a distribution that this process finds, and processes that it starts do not."""
    (tmp_path / "elsewhere.py").write_text(MODULE)
    info = tmp_path / "twopc_elsewhere-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twopc-elsewhere\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text("[twopc]\nelsewhere = elsewhere:plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    invalidate_caches()
    yield import_module("elsewhere").Elsewhere({"path": str(tmp_path / "archive"), "format": "json"})
    sys.modules.pop("elsewhere", None)


def test_a_sink_that_cannot_be_loaded_is_named_with_what_to_install(
    elsewhere: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = PickledSinks.of({"archive": elsewhere})
    monkeypatch.undo()
    del sys.modules["elsewhere"]
    assert repr(sinks) == "PickledSinks()"  # a sink may hold credentials
    with pytest.raises(ConfigurationError) as refused:
        sinks.load()
    assert "sink 'archive' can't be loaded on the executor at" in str(refused.value)
    assert "No module named 'elsewhere'. Install twopc-elsewhere 2.1 into that Python" in str(refused.value)


@pytest.mark.long
def test_a_batch_whose_tasks_lack_a_sink_is_refused_and_no_aborted_round(
    elsewhere: FileSink, pipeline: Pipeline
) -> None:
    raised: list[TwoPhaseCommitError] = []
    write = pipeline.writer(elsewhere)

    def noted(batch: DataFrame, number: int) -> None:
        try:
            write(batch, number)
        except TwoPhaseCommitError as error:
            raised.append(error)
            raise

    pipeline.add_batch([{"id": 1, "name": "a"}])
    with pytest.raises(StreamingQueryException):
        pipeline.run(noted)
    [refused] = raised
    assert type(refused) is ConfigurationError
    assert str(refused).startswith("sink 'sink' can't be loaded on the executor at")
    assert "on every executor, as on the driver." in str(refused)
    assert pipeline.entries("decide") == []
