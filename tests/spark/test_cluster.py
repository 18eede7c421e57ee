"""Two executors, each a process of its own: what they lack, and what becomes of a batch when one is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.kills import kill_all_of
from tests.support.spark_home import spark_home

if TYPE_CHECKING:
    from tests.spark.conftest import Pipeline, Topic

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.crash]

HERE = Path(__file__).parent


def seen(pipeline: Pipeline, topic: Topic) -> dict[str, Any]:
    """Run the driver, and what it saw."""
    job = {"folder": str(pipeline.folder), "backends": str(HERE / "backends"), "kafka": topic.options}
    log = pipeline.folder / "driver.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "tests.spark.cluster_driver", json.dumps(job)]
        environment = {**os.environ, "SPARK_HOME": str(spark_home(pipeline.folder / "spark"))}
        driver = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            assert driver.wait(timeout=200) == 0, log.read_text()
        finally:
            kill_all_of(driver)
    found: dict[str, Any] = json.loads((pipeline.folder / "seen.json").read_text())
    return found


@pytest.mark.timeout(300)  # a driver and three executors start, each a JVM and a Python
def test_a_cluster_tells_what_its_executors_lack_and_a_lost_executor_loses_and_doubles_nothing(
    pipeline: Pipeline, topic: Topic
) -> None:
    for batch in range(4):  # of which Spark takes two at a time
        pipeline.add_batch([{"id": 100 * batch + number, "name": "a"} for number in range(100)])
    told = seen(pipeline, topic)

    # The backend is installed on the driver alone.
    assert "ConfigurationError: sink 'archive' can't be loaded on the executor" in told["missing"]
    assert "RoundAborted" not in told["missing"]
    assert "Install twopc-faulty 1.0 into that Python on every executor" in told["missing"]

    # It is on the executors too, and one is killed after a vote, with its part of the shuffle.
    assert told["faults_left"] == []
    assert told["stage_attempts"] > 1
    # The second batch failed before its decision with four partitions, and was repeated with one.
    assert "a fault at seal" in told["vetoed"]
    assert len(pipeline.decided(1)["archive"]) == 1

    expected = [100 * batch + number for batch in range(4) for number in range(100)]
    assert pipeline.archived_ids() == expected
    assert topic.shows([str(number) for number in expected])
    assert (pipeline.staged(), topic.ongoing()) == ([], [])
