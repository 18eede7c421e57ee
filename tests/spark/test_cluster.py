"""Two executors, each a process of its own: a missing backend, and a batch during which one executor is lost."""

import json
import os
from typing import Any

import pytest

from tests.spark.conftest import Pipeline, Topic
from tests.spark.driver import driver
from tests.support.spark_home import spark_home

pytestmark = [pytest.mark.long, pytest.mark.crash]


def seen(pipeline: Pipeline, topic: Topic) -> dict[str, Any]:
    """Run the driver, and return what it saw."""
    job = {"scene": "cluster", "folder": str(pipeline.folder), "kafka": topic.options}
    environment = {**os.environ, "SPARK_HOME": str(spark_home(pipeline.folder / "spark"))}
    with driver(job, environment) as process:
        assert process.wait(timeout=200) == 0, (pipeline.folder / "driver.log").read_text()
    found: dict[str, Any] = json.loads((pipeline.folder / "seen.json").read_text())
    return found


@pytest.mark.timeout(300)  # a driver and three executors start, each a JVM and a Python
def test_a_missing_backend_on_executors_is_named_and_a_lost_executor_loses_and_doubles_nothing(
    pipeline: Pipeline, topic: Topic
) -> None:
    for batch in range(4):  # of which Spark takes two at a time
        pipeline.add_batch([{"id": 100 * batch + number, "name": "a"} for number in range(100)])
    found = seen(pipeline, topic)

    # The backend is installed on the driver alone.
    assert "ConfigurationError: sink 'archive' can't be loaded on the executor" in found["missing"]
    assert "RoundAborted" not in found["missing"]
    assert "Install twopc-faulty 1.0 into that Python on every executor" in found["missing"]

    # With the backend on the executors, one executor is killed after a vote, with its part of the shuffle.
    assert found["faults_left"] == []
    assert found["stage_attempts"] > 1
    # The second batch failed before its decision with four partitions, and was repeated with one.
    assert "a fault at seal" in found["vetoed"]
    assert len(pipeline.decided(1)["archive"]) == 1

    expected = [100 * batch + number for batch in range(4) for number in range(100)]
    assert pipeline.archived_ids() == expected
    assert topic.shows([str(number) for number in expected])
    assert (pipeline.pending_files(), topic.ongoing()) == ([], [])
