"""A host of tasks: processes that take one task at a time, whichever driver sends it.

Like the workers of an executor, a task goes on when its driver is gone, and its answer then reaches nobody.
"""

import contextlib
import ctypes
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection, Listener
from typing import Any, NamedTuple

# Before the fork, so that a task need not wait for them.
import confluent_kafka  # noqa: F401
import psycopg  # noqa: F401
import pyarrow.parquet  # noqa: F401

import twopc
from tests.campaigns.jepsen import progress, workload
from tests.campaigns.jepsen.defects import planted
from tests.campaigns.jepsen.workload import PROGRESS, Settings, begun, new_attempt
from twopc.participant import Vote

SLOTS = 4
_PR_SET_PDEATHSIG = 1  # of prctl(2)

logger = logging.getLogger(__name__)


class Task(NamedTuple):
    """What a driver sends."""

    sinks: Mapping[str, twopc.TwoPhaseCommitSink[Any]]
    round: twopc.Round
    partition: int
    serial: int


class Answer(NamedTuple):
    """What it gets: the name of the attempt and its vote, or an error."""

    attempt: str
    vote: Vote | None
    error: str = ""


def main() -> None:
    settings, host = begun(), sys.argv[2]
    with contextlib.suppress(FileNotFoundError):
        os.unlink(settings.worker(host))  # noqa: PTH108  # of a worker that was killed
    with Listener(settings.worker(host), "AF_UNIX", backlog=64) as listener, planted(settings.defect):
        slots = {_fork(listener, settings) for _ in range(SLOTS)}
        while True:
            ended, _ = os.wait()
            slots ^= {ended, _fork(listener, settings)}


def _fork(listener: Listener, settings: Settings) -> int:
    """Start a process that takes tasks until it is killed, or its parent is."""
    parent, pid = os.getpid(), os.fork()
    if not pid:
        # It waits for a task, and would never notice. A process that stays keeps the campaign's disks in memory.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        while os.getppid() == parent:
            with contextlib.suppress(OSError, EOFError), listener.accept() as driver:
                _serve(driver, settings)
        os._exit(0)
    return pid


def _serve(driver: Connection, settings: Settings) -> None:
    task, attempt = Task(*driver.recv()), new_attempt()
    try:
        answer = Answer(attempt, _perform(task, attempt, settings))
    except Exception as error:
        logger.warning("%s: partition %d failed", task.round, task.partition, exc_info=True)
        answer = Answer(attempt, None, f"{type(error).__name__}: {error}")
    driver.send(tuple(answer))


def _perform(task: Task, attempt: str, settings: Settings) -> Vote:
    chance = random.Random()  # noqa: S311  # pauses
    with twopc.Participant(task.sinks, task.round, partition=task.partition, serial=task.serial) as participant:
        for batch in workload.record_batches(task.round.batch_id, task.partition, attempt, settings.records):
            for sink in task.sinks:
                if sink != PROGRESS:
                    participant.write(sink, batch)
            time.sleep(chance.uniform(0, settings.pace_s))
        if PROGRESS in task.sinks:
            participant.write(PROGRESS, progress.offsets(settings, task.round.batch_id, task.partition))
        return participant.pre_commit()


if __name__ == "__main__":
    main()
