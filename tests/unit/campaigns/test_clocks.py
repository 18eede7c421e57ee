"""A stepped clock changes the wall clock of the processes of one host, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.jepsen.clocks import Clocks, why_not

PROGRAM = """
import sys, threading, time
import confluent_kafka
consumer = confluent_kafka.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
for _ in sys.stdin:
    began_s = time.monotonic()
    threading.Event().wait(0.1)
    consumer.poll(0.1)
    print(time.time(), began_s, time.monotonic() - began_s, flush=True)
"""


@pytest.mark.variants
@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_step_moves_the_wall_clock_at_once_and_no_wait_takes_longer(seconds: int, tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    clocks = Clocks(tmp_path / "clocks")
    command = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, **clocks.environment("driver1")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout
        looks = []
        for step in (0, seconds, -seconds):
            clocks.step("driver1", step)
            process.stdin.write("\n")
            process.stdin.flush()
            looks.append([float(value) for value in process.stdout.readline().split()])
        process.stdin.close()
    wall_s, monotonic_s, waited_s = zip(*looks, strict=True)
    assert wall_s[1] - wall_s[0] == pytest.approx(seconds, abs=30)
    assert wall_s[2] - wall_s[1] == pytest.approx(-seconds, abs=30)
    assert monotonic_s[2] - monotonic_s[0] < 30
    assert max(waited_s) < 5
