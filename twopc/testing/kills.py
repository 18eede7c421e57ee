"""Processes that write one batch and are killed at one of its steps, each followed by one that starts again.

``kill_at_each_step`` starts a new Python, which imports the sink's module and forks twice for each step: a query that
kills itself there, and one on the same log that recovers and runs the batch again. A step is a call of a sink's method,
or a line of the sink's own code in a ``commit``, a ``complete`` and an ``announce``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from twopc.coordinator import Coordinator
from twopc.participant import Participant, Vote
from twopc.sink import TwoPhaseCommitSink
from twopc.testing.query import answered
from twopc.transactional_ids import Round

if TYPE_CHECKING:
    import pyarrow as pa

HANGS_AFTER_S = 60
"""No process here takes a second by itself. A target system that has just lost a client may let a new one wait; that
time comes on top."""

_CALLS = (
    "open",
    "validate",
    "begin",
    "write",
    "write_valid",
    "pre_commit",
    "seal",
    "commit",
    "commit_batch",
    "complete",
    "announce",
    "recover",
)
_CALL = "call of "
# What they change is decided, so the next process can't roll it back.
_BY_LINE = ("commit", "commit_batch", "complete", "announce")

_START = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from twopc.testing.kills import main; main()"

Trace: TypeAlias = "Callable[[FrameType, str, Any], Any]"


@dataclass(frozen=True, slots=True)
class Orders:
    """What the new Python is to do.

    Attributes:
        name: the sink's name in the query.
        module: what defines the sink's class.
        file: where that is, if it can't be imported by its name, such as a file of tests.
        sink: the sink, unbound and pickled.
        batches: the records of each query, by partition; one query is not killed.
        bad_records: how many records of each partition the sink refuses.
        folder: where the logs go.
        patience_s: how long a call that raises ``Retriable`` is repeated.
        hangs_after_s: how long a process may take.
    """

    name: str
    module: str
    file: str
    sink: bytes
    batches: Sequence[Sequence[pa.RecordBatch]]
    bad_records: int
    folder: Path
    patience_s: float
    hangs_after_s: float


def kill_at_each_step(
    name: str,
    sink: TwoPhaseCommitSink[Any],
    batches: Sequence[Sequence[pa.RecordBatch]],
    folder: Path,
    patience_s: float,
    bad_records: int = 0,
) -> list[str]:
    """Write each of ``batches`` by a query of its own, and kill each but the first at another step.

    ``patience_s`` is how long the target may give no answer. Of each record batch, ``bad_records`` are left out.

    Returns:
        The step at which each query was killed; fewer than ``batches`` where the sink has fewer steps.

    Raises:
        AssertionError: a process could not go on where the one before it was killed.
    """
    orders = Orders(
        name=name,
        module=type(sink).__module__,
        file=inspect.getfile(type(sink)),
        sink=pickle.dumps(sink),
        batches=batches,
        bad_records=bad_records,
        folder=folder,
        patience_s=patience_s,
        hangs_after_s=HANGS_AFTER_S + patience_s,
    )
    done = subprocess.run(  # noqa: S603  # this Python, and text of this module
        [sys.executable, "-c", _START],
        input=pickle.dumps(sys.path) + pickle.dumps(orders),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(done.stderr.decode(errors="replace"))
    steps: list[str] = json.loads((folder / "steps.json").read_text(encoding="utf-8"))
    return steps


# In the new Python. -------------------------------------------------------------------------------------------------


def main() -> None:
    """Follow the orders on standard input, and write the steps into a file beside the logs."""
    orders: Orders = pickle.load(sys.stdin.buffer)  # noqa: S301  # from the process that started this one
    _import(orders.module, orders.file)
    _require(orders, _forked(_write_and_take_notes, orders), "a batch without a kill")
    notes = json.loads(_notes(orders).read_text(encoding="utf-8"))
    steps = notes["steps"]
    for name in notes["modules"]:  # once, here, and not in every process
        with contextlib.suppress(Exception):  # such as a module that was never a file
            importlib.import_module(name)
    chosen = _chosen(steps, len(orders.batches) - 1)
    for number, step in enumerate(chosen, 1):
        _forked(_write, orders, number, _Steps(kill_at=step))
        _require(orders, _forked(_start_again, orders, number), f"the start after a kill at {steps[step]!r}")
    names = ["no kill", *(steps[step] for step in chosen)]
    (orders.folder / "steps.json").write_text(json.dumps(names), encoding="utf-8")


def _import(name: str, file: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _forked(run: Callable[..., None], orders: Orders, *arguments: object) -> int:
    """Run in a process of its own, killed when it hangs. Returns its exit code; below 0, the signal that killed it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, orders.hangs_after_s)
        run(orders, *arguments)
        code = 0
    except BaseException:  # noqa: BLE001  # whatever it is, the process that forked goes on
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _require(orders: Orders, code: int, what: str) -> None:
    if code == -signal.SIGALRM:
        sys.exit(f"{what} has not ended after {orders.hangs_after_s:g} s: raise patience_s if it needs longer")
    if code:
        sys.exit(f"{what} failed: see above")


def _write_and_take_notes(orders: Orders) -> None:
    steps = _Steps()
    _write(orders, 0, steps)
    notes = {"steps": steps.reached, "modules": [*sys.modules]}
    _notes(orders).write_text(json.dumps(notes), encoding="utf-8")


def _notes(orders: Orders) -> Path:
    return orders.folder / "notes.json"


def _write(orders: Orders, number: int, steps: _Steps) -> None:
    sink = pickle.loads(orders.sink)  # noqa: S301  # as above
    steps.watch(sink)
    with _coordinator(orders, number, sink) as coordinator:
        coordinator.run(0, _phase_one(orders, number, sink))


def _start_again(orders: Orders, number: int) -> None:
    sink = pickle.loads(orders.sink)  # noqa: S301  # as above
    with _coordinator(orders, number, sink) as coordinator:
        coordinator.run(0, _phase_one(orders, number, sink))
        left = answered(orders.patience_s, lambda: list(sink.recover()))
        assert not left, f"still open after recovery: {left}"


def _coordinator(orders: Orders, number: int, sink: TwoPhaseCommitSink[Any]) -> Coordinator:
    log = (orders.folder / str(number)).as_uri()
    return Coordinator({orders.name: sink}, log, owner="contract", commits_at_once=1, rest_interval_s=None)


def _phase_one(orders: Orders, number: int, sink: TwoPhaseCommitSink[Any]) -> Callable[[Round], Iterable[Vote]]:
    def votes(round: Round) -> Iterable[Vote]:
        for partition, batch in enumerate(orders.batches[number]):
            sinks = {orders.name: sink}
            with Participant(sinks, round, partition=partition, max_bad_records=orders.bad_records) as participant:
                left_out = participant.write(orders.name, batch)
                assert len(left_out) == orders.bad_records, f"the sink refuses {left_out}"
                yield participant.pre_commit()

    return votes


def _chosen(steps: Sequence[str], most: int) -> list[int]:
    """The numbers of at most ``most`` steps: calls first, then lines, spread evenly."""
    calls = [number for number, step in enumerate(steps) if step.startswith(_CALL)]
    lines = [number for number, step in enumerate(steps) if not step.startswith(_CALL)]
    few = _spread(calls, most)
    return sorted([*few, *_spread(lines, most - len(few))])


def _spread(numbers: Sequence[int], most: int) -> list[int]:
    return [numbers[place * len(numbers) // most] for place in range(most)] if len(numbers) > most else [*numbers]


class _Steps:
    """The steps of this process, and the number of the one at which it kills itself."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.reached: list[str] = []
        self._kill_at = kill_at
        self._traced: set[str] = set()

    def watch(self, sink: TwoPhaseCommitSink[Any]) -> None:
        """See every call of ``sink`` from here on."""
        code = tuple(_code_of(sink))
        for name in _CALLS:
            setattr(sink, name, self._watched(name, getattr(sink, name), code))

    def _watched(self, name: str, method: Callable[..., Any], code: tuple[str, ...]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._reach(f"{_CALL}{name}")
            if name in self._traced or name not in _BY_LINE:
                return method(*arguments)
            self._traced.add(name)  # the lines of the first call are those of all
            sys.settrace(self._trace(name, code))
            try:
                return method(*arguments)
            finally:
                sys.settrace(None)

        return call

    def _trace(self, name: str, code: tuple[str, ...]) -> Trace:
        def trace(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001  # Python gives three
            file = frame.f_code.co_filename
            if not file.startswith(code):
                return None
            step = f"{name}, {Path(file).name} line {frame.f_lineno}"
            if event == "line" and step not in self.reached:  # a loop goes on as it began
                self._reach(step)
            return trace

        return trace

    def _reach(self, step: str) -> None:
        if len(self.reached) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.reached.append(step)


def _code_of(sink: TwoPhaseCommitSink[Any]) -> Iterable[str]:
    """The files of the sink's own classes, or the folders of their packages."""
    for kind in type(sink).__mro__[: type(sink).__mro__.index(TwoPhaseCommitSink)]:
        file, depth = Path(inspect.getfile(kind)), kind.__module__.count(".")
        yield f"{file.parents[depth - 1]}{os.sep}" if depth else str(file)
