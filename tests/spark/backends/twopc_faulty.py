"""The real backends, with faults at the steps of the protocol. Spark's processes find them by entry point.

The option ``faults`` is a folder. A file in it that is named for a step is a fault, which happens once at that step.
Its text is one of:

- ``raise <class>``: raise an error of ``twopc.errors``; without a class, a ``RuntimeError``
- ``die``: kill the process
- ``kill <process group>``: kill that group and the process
- ``lose``: kill the executor that runs the task, and the process
- ``fence <log>``: open the log as a newer coordinator
- ``hold <file>``: wait for a minute, then create the file, as a sign that the process was not ended
- ``orphan <file> <file>``: kill the process group named in the first file, then hold
- ``touch <file>``: no fault; create the file as a sign

A fault followed by ``once <file>`` waits until that file exists.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import twopc
from twopc import errors
from twopc.log import steps
from twopc.log.commit_log import on_store, read_tail
from twopc.log.store import open_store
from twopc_files.sink import FileSink
from twopc_kafka import KafkaSink

if TYPE_CHECKING:
    from twopc import Committable, TwoPhaseCommitSink


HELD_S = 60


class Faults:
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def at(self, step: str) -> None:
        file = self.folder / step
        try:
            fault, _, awaited = file.read_text().partition(" once ")
            if awaited and not Path(awaited).exists():
                return
            file.unlink()
        except FileNotFoundError:
            return  # there is no fault, or another task has taken it
        what, _, whom = fault.partition(" ")
        if what == "raise":
            raise getattr(errors, whom, RuntimeError)(f"a fault at {step}")
        if what == "touch":
            Path(whom).touch()
            return
        if what == "orphan":
            group, _, whom = whom.partition(" ")
            os.killpg(int(Path(group).read_text()), signal.SIGKILL)
        if what in ("hold", "orphan"):
            time.sleep(HELD_S)
            Path(whom).touch()
            return
        if what == "fence":
            tail = read_tail(open_store(whom))
            assert tail is not None
            store = open_store(whom)
            on_store(store, steps.open_log(store.url, tail[1].owner, None))
            return
        if what == "kill":
            os.killpg(int(whom), signal.SIGKILL)
        if what == "lose":
            os.kill(executor(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def executor() -> int:
    """The process of the executor that has started this Python worker, or the daemon that forked it."""
    return next(int(process.pid) for process in psutil.Process().parents() if process.name() == "java")


def faulty(backend: type[TwoPhaseCommitSink[Any]]) -> type[TwoPhaseCommitSink[Any]]:
    class Faulty(backend):  # type: ignore[misc, valid-type]  # a class of which there are two
        def __init__(self, options: Mapping[str, Any]) -> None:
            super().__init__({name: value for name, value in options.items() if name != "faults"})
            self.faults = Faults(options["faults"])
            self.completed = False

        def open(self) -> None:
            self.faults.at("open")
            super().open()

        def pre_commit(self, transaction: Any) -> Any:
            committable = super().pre_commit(transaction)
            self.faults.at("pre_commit")
            return committable

        def seal(self, committables: Sequence[Committable], age_s: float) -> Any:
            self.faults.at("seal")
            return super().seal(committables, age_s)

        def commit(self, committable: Committable) -> None:
            self.faults.at("commit")
            super().commit(committable)
            self.faults.at("committed")

        def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:
            self.faults.at("complete")
            super().complete(batch_id, committables)
            self.completed = True

        def close(self) -> None:
            super().close()
            if self.completed:
                self.faults.at("close")  # the log is closed, and Spark has not recorded the batch

    Faulty.__name__ = Faulty.__qualname__ = f"Faulty{backend.__name__}"
    return Faulty


FaultyFileSink = faulty(FileSink)
FaultyKafkaSink = faulty(KafkaSink)


class Files:
    @staticmethod
    @twopc.hookimpl
    def twopc_sink() -> type[TwoPhaseCommitSink[Any]]:
        return FaultyFileSink


class Kafka:
    @staticmethod
    @twopc.hookimpl
    def twopc_sink() -> type[TwoPhaseCommitSink[Any]]:
        return FaultyKafkaSink


files, kafka = Files(), Kafka()
