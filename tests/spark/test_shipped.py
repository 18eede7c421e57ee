"""Sinks on their way to the executors."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import TYPE_CHECKING

import py4j
import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

import twopc
from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.spark import foreach_batch, refusals
from twopc.spark.output import Columns
from twopc.spark.pickled_sinks import Shipped, body
from twopc.spark.task import Task
from twopc.transactional_ids import Round
from twopc_files.sink import FileSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.spark.conftest import Pipeline

MODULE = """
from twopc_files.sink import FileSink

class Elsewhere(FileSink):
    pass
"""


def test_a_sink_arrives_bound_as_it_left(tmp_path: Path) -> None:
    sink = FileSink({"path": str(tmp_path / "archive"), "format": "json"})
    sink.bind("archive", "a-log")
    shipped: Shipped = pickle.loads(pickle.dumps(Shipped.of({"archive": sink})))  # noqa: S301  # as Spark does
    assert shipped.arrived()["archive"].transactional_ids == sink.transactional_ids


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileSink]:
    """A sink of a distribution that this process finds, and those that it starts do not."""
    (tmp_path / "elsewhere.py").write_text(MODULE)
    info = tmp_path / "twopc_elsewhere-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twopc-elsewhere\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text("[twopc]\nelsewhere = elsewhere:plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    invalidate_caches()
    yield import_module("elsewhere").Elsewhere({"path": str(tmp_path / "archive"), "format": "json"})
    sys.modules.pop("elsewhere", None)


def test_what_is_not_installed_is_told_by_name_with_what_to_install(
    elsewhere: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = Shipped.of({"archive": elsewhere})
    monkeypatch.undo()
    del sys.modules["elsewhere"]
    assert repr(shipped) == "Shipped()"  # a sink may hold credentials
    with pytest.raises(ConfigurationError) as refused:
        shipped.arrived()
    assert "sink 'archive' can't be loaded on the executor at" in str(refused.value)
    assert "No module named 'elsewhere'. Install twopc-elsewhere 2.1 into that Python" in str(refused.value)


@pytest.mark.spark
def test_a_batch_whose_tasks_lack_a_sink_is_refused_and_not_said_to_be_run_again(
    elsewhere: FileSink, pipeline: Pipeline
) -> None:
    raised: list[TwoPhaseCommitError] = []
    write = foreach_batch(elsewhere, log=str(pipeline.log))

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
    assert refused.message.endswith("on every executor, as on the driver.")
    assert pipeline.entries("decide") == []


# A task, where this package itself is missing. --------------------------------------------------------------------


class Spark(Exception):
    """The text of a task's traceback, which is all that PySpark passes on."""


@pytest.fixture
def executor(tmp_path: Path) -> Path:
    """The packages of an executor's Python: pyspark and nothing else."""
    for module in (pyspark, py4j):
        (tmp_path / module.__name__).symlink_to(Path(module.__file__ or "").parent)
    return tmp_path


def refused_at(executor: Path) -> str:
    """What the driver says of a task that ran in this Python, after naming the Python and the host."""
    code = "from pyspark import cloudpickle; import sys; list(cloudpickle.loads(sys.stdin.buffer.read())([]))"
    task = Task(Shipped({}), Columns((), in_structs=False), Round(1, 0))
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code],
        input=cloudpickle.dumps(body(task)),  # type: ignore[no-untyped-call]
        capture_output=True,
        cwd=executor,
        env={"PYTHONPATH": str(executor)},
        check=False,
    )
    with pytest.raises(ConfigurationError) as refused, refusals.of_tasks():
        raise Spark(ended.stderr.decode())
    where = f"the Python {sys.executable} of the executor at {socket.gethostname()} has no package 'twopc'"
    assert str(refused.value).startswith(where)
    assert "on every executor, as on the driver." in str(refused.value)
    return refused.value.message.removeprefix(where)


def add_foreign_twopc(executor: Path, *files: str) -> None:
    """The distribution that ``pip install twopc`` brings."""
    info = executor / "twopc-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twopc\nVersion: 1.2\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (executor / file).parent.mkdir(exist_ok=True)
        (executor / file).write_text("")


def test_an_executor_without_twopc_is_told_by_its_host_with_what_to_install(executor: Path) -> None:
    assert refused_at(executor).startswith(": install twopc-core and the distributions of the sinks")


def test_an_executor_with_another_projects_twopc_is_told_which_one_to_remove(executor: Path) -> None:
    add_foreign_twopc(executor, "twopc/__init__.py", "twopc/stars.py")
    refused = refused_at(executor)
    assert refused.startswith(" of this project, but the distribution 'twopc' 1.2 of another: run `pip uninstall twopc")
    assert "No module named 'twopc.spark'" in refused


def test_an_executor_with_both_in_one_folder_is_told_which_one_to_remove(executor: Path) -> None:
    (executor / "twopc").symlink_to(Path(twopc.__file__).parent)
    add_foreign_twopc(executor)
    (executor / "twopc-1.2.dist-info" / "RECORD").write_text("twopc/__init__.py,,\n")
    assert "another: run `pip uninstall twopc twopc-core`" in refused_at(executor)


def test_an_executor_where_twopc_cannot_be_loaded_is_told_why(executor: Path) -> None:
    (executor / "twopc").symlink_to(Path(twopc.__file__).parent)
    refused = refused_at(executor)
    assert refused.startswith(" that can be loaded: install twopc-core")
    assert "No module named" in refused
