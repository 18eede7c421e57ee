"""Drivers that write by ``format("twopc")`` are killed, each at another step; the next one finishes what they began."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.data_source_driver import run_query
from tests.support.kills import Process, start_logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.crash]

HERE = Path(__file__).parent
KILLS = {"seal": [], "commit": [0], "close": [0]}
"""The step of the first batch at which a driver is killed, and what is decided by then: all tasks have pre-committed;
decided and not committed; committed, and Spark has not noted the batch."""


def add_batches(folder: Path) -> None:
    """The second batch repeats the record of the first, which the state knows if the batch came through it."""
    for number, values in enumerate([["first"], ["first", "second"]]):
        file = folder / "source" / f"{number}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps({"value": f"{folder.name} {value}"}) + "\n" for value in values))
        os.utime(file, (number, number))


def start_driver(folder: Path, topic: Topic) -> Process:
    options = {"sink": "faulty-kafka", "faults": str(folder / "faults"), **topic.options}
    job = {"folder": str(folder), "backends": str(HERE / "backends"), "options": options}
    return start_logged(folder / "driver.log", "-m", "tests.spark.data_source_driver", json.dumps(job))


def decided(folder: Path) -> list[int]:
    entries = [json.loads(file.read_text()) for file in sorted((folder / "checkpoint" / "twopc-log").glob("*.json"))]
    return [entry["decided"] for entry in entries if entry["kind"] == "decide"]


@pytest.mark.timeout(300)  # three drivers at once, 20 s on a quiet machine
def test_a_driver_killed_at_any_step_gives_the_result_of_one_that_was_not(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    drivers = {}
    for step in KILLS:
        add_batches(tmp_path / step)
        (tmp_path / step / "faults").mkdir()
        (tmp_path / step / "faults" / step).touch()
        drivers[step] = start_driver(tmp_path / step, topic)
    for step, driver in drivers.items():
        assert driver.wait(timeout=240) == -signal.SIGKILL, (tmp_path / step / "driver.log").read_text()
        assert decided(tmp_path / step) == KILLS[step]
        assert not (tmp_path / step / "checkpoint" / "commits" / "0").exists()
    assert set(topic.values()) <= {"close first"}  # which may lie behind a transaction that is still open

    for step in KILLS:
        run_query(spark, tmp_path / step, {"sink": "kafka", **topic.options})
        assert decided(tmp_path / step) == [0, 1]
    assert topic.shows([f"{step} {value}" for step in KILLS for value in ("first", "second")])
    assert topic.ongoing() == []
