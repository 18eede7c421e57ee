"""Drivers that write by ``format("twopc")`` are killed at different steps. The next driver finishes their batches."""

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Topic, decided_batches
from tests.spark.driver import driver, write_distinct

pytestmark = pytest.mark.crash

KILLS = {"seal": [], "commit": [0], "close": [0]}
"""The step of the first batch at which a driver is killed, and what is decided by then. At ``seal``, all tasks have
pre-committed; at ``commit``, the batch is decided; at ``close``, it is committed and Spark has not recorded it."""


def add_batches(folder: Path) -> None:
    """Add two batches. The second repeats the record of the first, which the state then knows."""
    for number, values in enumerate([["first"], ["first", "second"]]):
        file = folder / "source" / f"{number}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps({"value": f"{folder.name} {value}"}) + "\n" for value in values))
        os.utime(file, (number, number))


def decided(folder: Path) -> list[int]:
    return decided_batches(folder / "checkpoint" / "twopc-log")


@pytest.mark.long
@pytest.mark.timeout(300)  # three drivers at once, 20 s on a quiet machine
def test_a_driver_killed_at_any_step_gives_the_result_of_one_that_was_not(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    with ExitStack() as running:
        drivers = {}
        for step in KILLS:
            folder = tmp_path / step
            add_batches(folder)
            (folder / "faults").mkdir()
            (folder / "faults" / step).touch()
            options = {"sink": "faulty-kafka", "faults": str(folder / "faults"), **topic.options}
            job = {"scene": "data-source", "folder": str(folder), "options": options}
            drivers[step] = running.enter_context(driver(job))
        for step, process in drivers.items():
            assert process.wait(timeout=240) == -signal.SIGKILL, (tmp_path / step / "driver.log").read_text()
            assert decided(tmp_path / step) == KILLS[step]
            assert not (tmp_path / step / "checkpoint" / "commits" / "0").exists()
    assert set(topic.values()) <= {"close first"}  # which may lie behind a transaction that is still open

    for step in KILLS:
        write_distinct(spark, tmp_path / step, {"sink": "kafka", **topic.options})
        assert decided(tmp_path / step) == [0, 1]
    assert topic.shows([f"{step} {value}" for step in KILLS for value in ("first", "second")])
    assert topic.ongoing() == []
