"""A driver that writes by ``format("twopc")`` is killed at every step and restarted: each record is there once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.spark.conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.crash]

HERE = Path(__file__).parent
KILLS = {"seal": 0, "close": 1, "commit": 2}
"""The step at which the driver is killed, and how many batches are decided by then: all tasks have pre-committed;
all is committed, and Spark has not noted the batch; decided and not committed."""


def add_batch(folder: Path, number: int) -> None:
    """A record that is new and one that the state knows from the batch before."""
    file = folder / "source" / f"{number:03d}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"id": id_}) + "\n" for id_ in (number, max(number - 1, 0))))
    os.utime(file, (number, number))


def run_driver(folder: Path, topic: Topic) -> int:
    """Run the driver to its end, by a fault or as asked. Returns its exit code."""
    options = {"sink": "faulty-kafka", "faults": str(folder / "faults"), **topic.options}
    job = {"folder": str(folder), "backends": str(HERE / "backends"), "options": options}
    command = [sys.executable, str(HERE / "data_source_driver.py"), json.dumps(job)]
    with (folder / "driver.log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True).wait(timeout=120)


def decisions(folder: Path) -> list[dict[str, Any]]:
    entries = [json.loads(file.read_text()) for file in sorted((folder / "checkpoint" / "twopc-log").glob("*.json"))]
    return [entry for entry in entries if entry["kind"] == "decide"]


@pytest.mark.timeout(300)  # four starts of a driver
def test_a_driver_killed_at_every_step_gives_the_result_of_one_that_was_not(
    java_home: str, tmp_path: Path, topic: Topic
) -> None:
    assert java_home
    faults = tmp_path / "faults"
    faults.mkdir()
    for number, (step, decided) in enumerate(KILLS.items()):
        add_batch(tmp_path, number)
        (faults / step).touch()
        assert run_driver(tmp_path, topic) == -signal.SIGKILL, (tmp_path / "driver.log").read_text()
        assert not (faults / step).exists()
        assert len(decisions(tmp_path)) == decided
    add_batch(tmp_path, len(KILLS))
    assert run_driver(tmp_path, topic) == 0, (tmp_path / "driver.log").read_text()

    assert topic.shows([str(number) for number in range(len(KILLS) + 1)])
    assert topic.ongoing() == []
    assert [entry["decided"] for entry in decisions(tmp_path)] == list(range(len(KILLS) + 1))
