"""A loop on a ``Coordinator``, as a process: it runs batches until it is told to stop. Its tasks run elsewhere."""

import itertools
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Client
from pathlib import Path

import twopc
from tests.campaigns.jepsen.defects import planted
from tests.campaigns.jepsen.network import WORKERS
from tests.campaigns.jepsen.worker import Answer, Task
from tests.campaigns.jepsen.workload import TASKS, Settings, begun
from tests.support.kills import DiesIfWished
from twopc.errors import InDoubt, RoundAborted
from twopc.events import BatchFinished, Event
from twopc.participant import Vote

ATTEMPTS = 3
"""How many attempts of one partition may fail before the batch does."""

RIVAL_AFTER_S = 6.0
"""A task that is slower gets a rival."""

PAUSE_S = 0.2
"""Between a batch that failed and its repetition."""


class TaskFailed(Exception):
    """An attempt failed, or its worker is gone."""


def wish(settings: Settings, pid: int) -> Path:
    """Return the file that contains the moment at which a driver kills or pauses itself."""
    return Path(settings.folder) / f"die-{pid}"


class NotesRecognized:
    """An observer that records which batches were recognized."""

    def __init__(self, settings: Settings) -> None:
        self._history = settings.history()

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        if isinstance(event, BatchFinished) and event.already_decided:
            self._history.recognized(event.batch_id)


class Driver:
    """Runs the batches of one query."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._history, self._checkpoint = settings, settings.history(), settings.checkpoint()
        self._sinks = settings.sinks()
        self._coordinator = twopc.Coordinator(
            self._sinks,
            f"{settings.folder}/log",
            owner=settings.topic,
            replay_copies=f"{settings.folder}/copies" if settings.makes_copies else None,
        )
        self._next_batch = self._checkpoint.begin()
        self._threads = ThreadPoolExecutor(256)  # some hang for as long as a worker is paused

    def run(self) -> None:
        """Run batches until told to stop."""
        while not self._settings.stop.exists():
            try:
                self._coordinator.run(self._next_batch, self._phase_one, reads=self._next_batch)
            except (RoundAborted, InDoubt):  # after these, ``twopc.errors`` says, the batch is run again
                traceback.print_exc()
                time.sleep(PAUSE_S)
            else:
                self._history.done(self._next_batch)
                self._next_batch += 1
                self._checkpoint.advance(self._next_batch)
        self._coordinator.recover()  # it may be closed after an error
        self._coordinator.close()

    def _phase_one(self, round: twopc.Round) -> list[Vote]:
        serials = itertools.count()
        tasks = [self._threads.submit(self._partition, round, partition, serials) for partition in range(TASKS)]
        answers = [task.result() for task in tasks]
        self._history.voted(round.batch_id, [answer.attempt for answer in answers])
        return [answer.vote for answer in answers if answer.vote is not None]

    def _partition(self, round: twopc.Round, partition: int, serials: Iterator[int]) -> Answer:
        """Return the first successful attempt's answer. A failed one is repeated, and a slow one gets a rival."""
        running: set[Future[Answer]] = set()
        begun_s = failures = 0.0
        while True:
            if not running or (len(running) < 2 and time.monotonic() - begun_s > RIVAL_AFTER_S):
                task = Task(self._sinks, round, partition, next(serials))
                running.add(self._threads.submit(self._attempt, task))
                begun_s = time.monotonic()
            ended, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in ended:
                try:
                    return future.result()
                except TaskFailed:
                    failures += 1
                    if failures >= ATTEMPTS:
                        raise

    def _attempt(self, task: Task) -> Answer:
        host = random.choice(WORKERS)  # noqa: S311
        try:
            with Client(self._settings.worker(host), "AF_UNIX") as worker:
                worker.send(tuple(task))
                answer = Answer(*worker.recv())
        except (OSError, EOFError) as error:
            time.sleep(PAUSE_S)
            raise TaskFailed(f"the worker on {host} is gone: {error!r}") from error
        if answer.vote is None:
            raise TaskFailed(answer.error)
        return answer


def drive(run: Callable[[Settings], None]) -> None:
    """Run a query in this process, which is a driver, and end the process."""
    settings = begun()
    twopc.register_observer(DiesIfWished(wish(settings, os.getpid())))
    twopc.register_observer(NotesRecognized(settings))
    code = 1
    try:
        with planted(settings.defect):
            run(settings)
        code = 0
    except BaseException:  # noqa: BLE001  # whatever it is, the orchestrator starts another driver
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for paused workers don't end


if __name__ == "__main__":
    drive(lambda settings: Driver(settings).run())
