"""Declarative pipelines: flows that write to a sink by ``format("twopc")``."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.spark.conftest import Pipeline, Topic, decided_batches, rows
from tests.spark.driver import BACKENDS
from tests.support.kills import kill_all_of
from tests.support.pages import ROOT
from tests.support.pipelines import COMPLETED, FAULT_OF_SPARK_4_2, has_completed, make_project, run_command
from tests.support.spark_session import settings_of
from twopc.spark.data_source.flow import Flow

pytestmark = [
    pytest.mark.skipif(tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 1), reason="Spark 4.1 added pipelines")
]


class Project:
    """A pipeline with a sink ``orders`` and flows into it, run by a client. Each flow reads the files of one folder."""

    def __init__(self, pipeline: Pipeline, *flows: str, **options: str) -> None:
        self.frame: Callable[[int], Any] = self._ids
        self._flows = flows
        self.pipeline = pipeline
        self.options = {"sink": "files", "path": str(pipeline.folder / "archive"), "format": "json", **options}

    def flow(self, name: str) -> Path:
        """Return the folder of a flow's checkpoints and of its log."""
        return self.pipeline.folder / "storage" / "_checkpoints" / "orders" / name

    def run(self, *, full_refresh_all: bool = False, full_refresh: tuple[str, ...] = ()) -> str:
        """Run the pipeline. Return its events, and the error of a flow that failed."""
        from pyspark.errors import PySparkException
        from pyspark.pipelines.graph_element_registry import graph_element_registration_context
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

        client = self.pipeline.spark
        once = {"spark.sql.pipelines.maxFlowRetryAttempts": "0"}
        graph = create_dataflow_graph(client, default_catalog=None, default_database=None, sql_conf=once)
        with graph_element_registration_context(SparkConnectGraphElementRegistry(client, graph)):
            self._define()
        events = start_run(
            client,
            graph,
            full_refresh=full_refresh,
            full_refresh_all=full_refresh_all,
            refresh=(),
            dry=False,
            storage=(self.pipeline.folder / "storage").as_uri(),
        )
        seen = []
        try:
            for each in events:
                if "pipeline_event_result" in each:
                    seen.append(each["pipeline_event_result"].event.message)  # noqa: PERF401  # an error ends the loop
        except PySparkException as error:
            if FAULT_OF_SPARK_4_2 not in str(error):
                seen.append(str(error))
        return "\n".join(seen)

    def _define(self) -> None:
        from pyspark import pipelines

        pipelines.create_sink("orders", "twopc", self.options)
        for number, name in enumerate(self._flows):
            pipelines.append_flow(target="orders", name=name)(functools.partial(self.frame, number))

    def _ids(self, number: int) -> Any:
        return self.pipeline.source().selectExpr(f"id + {100 * number} AS id", "name")


@pytest.fixture
def project(connected: Pipeline) -> Project:
    """A pipeline with one flow that has run once."""
    made = Project(connected, "events")
    connected.add_batch(rows(1))
    made.run()
    return made


@pytest.mark.long
def test_a_flow_writes_each_record_once_and_goes_on_at_the_next_run(connected: Pipeline) -> None:
    project = Project(connected, "events")
    for ids in [(1, 2), (3,)]:
        connected.add_batch(rows(*ids))
    assert COMPLETED in project.run()
    connected.add_batch(rows(4))
    assert COMPLETED in project.run()
    assert connected.archived_ids() == [1, 2, 3, 4]
    assert connected.pending_files() == []
    assert decided_batches(project.flow("events") / "twopc-log") == [0, 1, 2]


@pytest.mark.long
def test_two_flows_into_one_sink_have_a_log_each(connected: Pipeline) -> None:
    project = Project(connected, "first", "second")
    for ids in [(1, 2), (3,)]:
        connected.add_batch(rows(*ids))
    assert COMPLETED in project.run()
    assert connected.archived_ids() == [1, 2, 3, 101, 102, 103]
    assert [decided_batches(project.flow(name) / "twopc-log") for name in ("first", "second")] == [[0, 1], [0, 1]]


@pytest.mark.long
@pytest.mark.advice("would write again what the sink has already")
def test_a_full_refresh_is_refused_until_its_checkpoint_is_deleted(connected: Pipeline, project: Project) -> None:
    for said in (project.run(full_refresh_all=True), project.run()):
        assert "a full refresh of flow 'events' would write again what the sink has already" in said
        assert f"delete file://{project.flow('events')}/1" in said
        assert connected.archived_ids() == [1]
        assert connected.pending_files() == []

    shutil.rmtree(project.flow("events") / "1")
    connected.add_batch(rows(2))
    assert COMPLETED in project.run()
    assert connected.archived_ids() == [1, 2]


@pytest.mark.long
@pytest.mark.advice("would write again what the sink has already")
def test_a_refused_full_refresh_writes_everything_again_once_the_log_is_deleted(
    connected: Pipeline, project: Project
) -> None:
    assert "a full refresh of flow 'events'" in project.run(full_refresh_all=True)
    shutil.rmtree(connected.folder / "archive")
    shutil.rmtree(project.flow("events") / "twopc-log")
    connected.add_batch(rows(2))
    assert COMPLETED in project.run()
    assert connected.archived_ids() == [1, 2]


@pytest.mark.long
def test_a_full_refresh_with_a_log_elsewhere_is_refused(connected: Pipeline) -> None:
    project = Project(connected, "events", log=str(connected.log))
    connected.add_batch(rows(1))
    project.run()
    assert f"the commit log at {connected.log} belongs to the flow's earlier query" in project.run(
        full_refresh_all=True
    )
    assert connected.archived_ids() == [1]


@pytest.mark.long
def test_spark_does_not_refresh_a_sink_by_its_name(connected: Pipeline, project: Project) -> None:
    connected.add_batch(rows(2))
    assert "Flow 'events' is EXCLUDED" in project.run(full_refresh=("orders",))
    assert not (project.flow("events") / "1").exists()
    assert connected.archived_ids() == [1]


@pytest.mark.long
def test_two_flows_can_not_share_a_log(connected: Pipeline) -> None:
    project = Project(connected, "first", "second", log=str(connected.log))
    connected.add_batch(rows(1))
    assert "the commit log belongs to query" in project.run()
    assert len(connected.archived_ids()) <= 1


@pytest.mark.long
def test_spark_refuses_a_flow_that_is_no_stream(connected: Pipeline) -> None:
    project = Project(connected, "events")
    connected.add_batch(rows(1))
    files = connected.spark.read.schema("id LONG, name STRING").json(str(connected.folder / "source"))
    project.frame = lambda _: files
    assert "Flow 'events' has FAILED" in project.run()
    assert connected.archived_ids() == []


@pytest.mark.parametrize(
    ("checkpoint", "name", "flow"),
    [
        ("file:///s/_checkpoints/orders/events/0", "events", ("events", "file:///s/_checkpoints/orders/events", 0)),
        (
            "s3://b/_checkpoints/db/orders/events/12",
            "cat.db.events",
            ("events", "s3://b/_checkpoints/db/orders/events", 12),
        ),
        ("file:///s/_checkpoints/o/my%20flow/0", "my flow", ("my flow", "file:///s/_checkpoints/o/my%20flow", 0)),
        ("file:///s/_checkpoints/orders/events/0", "orders", None),
        ("file:///s/_checkpoints/orders/events/0", "", None),
        ("file:///s/checkpoints/orders/events/0", "events", None),
        ("file:///s/_checkpoints/orders/events", "events", None),
    ],
)
def test_a_flow_is_recognized_by_its_checkpoint_and_name(
    checkpoint: str, name: str, flow: tuple[str, str, int] | None
) -> None:
    assert Flow.of(checkpoint, name) == (Flow(*flow) if flow else None)


DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from twopc.spark import TwoPhaseCommitDataSource

spark = SparkSession.active()
spark.dataSource.register(TwoPhaseCommitDataSource)

dp.create_sink("orders", "twopc", {options!r})


@dp.append_flow(target="orders")
def values():
    return spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1).json({source!r})
"""


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.timeout(600)  # two runs, 15 s each on a quiet machine
def test_a_pipeline_killed_after_its_decision_is_completed_by_the_next_run(tmp_path: Path, topic: Topic) -> None:
    source, faults = tmp_path / "source", tmp_path / "faults"
    source.mkdir()
    faults.mkdir()
    for number, value in enumerate(["first", "second"]):
        (source / f"{number}.json").write_text(json.dumps({"value": value}))
        os.utime(source / f"{number}.json", (number, number))
    options = {"sink": "faulty-kafka", "faults": str(faults), **topic.options}
    make_project(tmp_path, DEFINITIONS.format(options=options, source=str(source)))

    assert run_to_its_end(tmp_path, kill_at=faults / "commit") == -signal.SIGKILL
    log = tmp_path / "storage" / "_checkpoints" / "orders" / "values" / "twopc-log"
    assert decided_batches(log) == [0]
    assert topic.values() == []

    assert run_to_its_end(tmp_path) == 0
    assert decided_batches(log) == [0, 1]
    assert topic.shows(["first", "second"])
    assert topic.ongoing() == []


def run_to_its_end(folder: Path, kill_at: Path | None = None) -> int:
    """Run ``spark-pipelines``. Return 0 if the run has completed, or the exit code. ``kill_at`` is the file of a fault
    that kills everything."""
    with (folder / "run.log").open("w") as log:
        process = subprocess.Popen(
            run_command(folder, settings_of({"spark.driver.host": "127.0.0.1"})),
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{BACKENDS}:{ROOT}"},
            start_new_session=True,
        )
    try:
        if kill_at is not None:
            kill_at.write_text(f"kill {process.pid}")
        code = process.wait(timeout=240)
    finally:
        kill_all_of(process)
    return 0 if has_completed(code, (folder / "run.log").read_text()) else code
