"""Processes that write one batch and are killed at one of its steps, each followed by a process that starts again.

``killed_at_each_step`` forks two processes per step: a query that kills itself there, and one on the same log that
recovers and runs the batch again. A step is a call of a sink's method, or a line of the sink's own code in a
``commit``, ``complete`` or ``announce``. All processes are forked from one warm parent, a single-threaded Python that
has imported what the sinks need.
"""

from __future__ import annotations

import atexit
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
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from twopc.coordinator import Coordinator
from twopc.keyed import KeyedSink
from twopc.participant import Participant, Vote
from twopc.sink import TwoPhaseCommitSink
from twopc.testing.query import answered
from twopc.transactional_ids import Round

if TYPE_CHECKING:
    import pyarrow as pa

FEW = "TWOPC_KILLS"
"""The environment variable that limits the kills of each test, such as ``3@1217``: at most 3 steps, in run 1217 of the
suite. Successive run numbers choose other steps until each has had its turn. A suite that runs for every commit passes
its run number, or the commit's hash as a number. Two in three steps are calls; every third is a line of code. Without
``@``, the steps are the same in every run."""

HANGS_AFTER_S = 60
"""How long a process may take, besides the patience with the target system. No process takes a second by itself, but a
target system that has just lost a client may make a new client wait."""

_CALLS = (
    "open",
    "validate",
    "begin",
    "write",
    "write_valid",
    "delete",
    "pre_commit",
    "seal",
    "commit",
    "commit_batch",
    "complete",
    "announce",
    "recover",
)
_CALL = "call of "
# These change decided transactions, which the next process can't roll back.
_BY_LINE = ("commit", "commit_batch", "complete", "announce")

_START = "import sys; sys.path[:] = sys.argv[1:]; from twopc.testing.kills import serve; serve()"

Trace: TypeAlias = "Callable[[FrameType, str, Any], Any]"


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of a batch's steps at which processes are killed.

    Attributes:
        at_most: the most steps.
        run: the number of the run, which selects the steps. None: the steps are spread evenly.
    """

    at_most: int
    run: int | None = None

    @classmethod
    def given(cls, kills: int) -> Choice:
        """Return the choice for a test with up to ``kills`` kills, which the environment variable ``FEW`` may lower.

        Raises:
            ValueError: the variable is not understood.
        """
        text = os.environ.get(FEW)
        if not text:
            return cls(kills)
        few, at, run = text.partition("@")
        if not few.isdecimal() or (at and not run.isdecimal()):
            raise ValueError(f"{FEW}={text!r} is no number of kills, nor one with the number of a run, such as 3@1217")
        return cls(min(kills, int(few)), int(run) if at else None)

    def of(self, steps: Sequence[str]) -> list[int]:
        """Return the numbers of the chosen steps, in order."""
        calls = [number for number, step in enumerate(steps) if step.startswith(_CALL)]
        lines = [number for number, step in enumerate(steps) if not step.startswith(_CALL)]
        if self.run is None:  # calls first
            few = _spread(calls, self.at_most)
            return sorted([*few, *_spread(lines, self.at_most - len(few))])
        few = _in_turn(calls, max(self.at_most - self.at_most // 3, self.at_most - len(lines)), self.run)
        return sorted([*few, *_in_turn(lines, self.at_most - len(few), self.run)])


def _spread(numbers: Sequence[int], most: int) -> list[int]:
    return [numbers[place * len(numbers) // most] for place in range(most)] if len(numbers) > most else [*numbers]


def _in_turn(numbers: Sequence[int], most: int, run: int) -> list[int]:
    """Return the next ``most`` numbers after those that earlier runs took."""
    return [numbers[(run * most + place) % len(numbers)] for place in range(min(most, len(numbers)))]


@dataclass(frozen=True, slots=True)
class Orders:
    """The instructions for the processes of one test: what they write, and where.

    Attributes:
        name: the sink's name in the query.
        module: the module that defines the sink's class.
        file: the module's file, in case the module can't be imported by name, as with a file of tests.
        sink: the sink, unbound and pickled.
        batches: the records of each query, by partition; the first query is not killed.
        bad_records: how many records of each partition the sink refuses.
        deletes: the records that each partition deletes, besides ``batches``; empty if there are no deletes.
        folder: the folder for the logs.
        patience_s: how long a call that raises ``Retriable`` is repeated.
        hangs_after_s: how long a process may take.
    """

    name: str
    module: str
    file: str
    sink: bytes
    batches: Sequence[Sequence[pa.RecordBatch]]
    bad_records: int
    deletes: Sequence[Sequence[pa.RecordBatch]]
    folder: Path
    patience_s: float
    hangs_after_s: float


def killed_at_each_step(
    name: str,
    sink: TwoPhaseCommitSink[Any],
    batches: Sequence[Sequence[pa.RecordBatch]],
    folder: Path,
    patience_s: float,
    choice: Choice,
    bad_records: int = 0,
    deletes: Sequence[Sequence[pa.RecordBatch]] = (),
) -> Iterator[str]:
    """Write each of ``batches`` with a separate query, and kill each query but the first at a different step.

    ``patience_s``: how long the target system may fail to answer. ``bad_records``: how many records of each record
    batch are left out. ``deletes``: what each partition of each batch deletes.

    Yields:
        The step, after each kill and before the query starts again. The first is ``no kill``. If the sink has fewer
        steps, not all ``batches`` are written.

    Raises:
        AssertionError: a process could not continue where the previous process was killed.
    """
    orders = Orders(
        name=name,
        module=type(sink).__module__,
        file=inspect.getfile(type(sink)),
        sink=pickle.dumps(sink),
        batches=batches,
        bad_records=bad_records,
        deletes=deletes,
        folder=folder,
        patience_s=patience_s,
        hangs_after_s=HANGS_AFTER_S + patience_s,
    )
    _require(orders, _parent.call(_learn, orders), "a batch without a kill")
    steps: list[str] = json.loads(_notes(orders).read_text(encoding="utf-8"))["steps"]
    yield "no kill"
    for number, step in enumerate(choice.of(steps), 1):
        _parent.call(_forked, orders, _write, number, _Steps(step))
        yield steps[step]
        again = _parent.call(_forked, orders, _start_again, number)
        _require(orders, again, f"the start after a kill at {steps[step]!r}")


def _require(orders: Orders, code: int, what: str) -> None:
    if code == -signal.SIGALRM:
        raise AssertionError(
            f"{what} has not ended after {orders.hangs_after_s:g} s: raise patience_s if it needs longer"
        )
    if code:
        raise AssertionError(
            f"{_errors(orders).read_text(encoding='utf-8', errors='replace')}\n{what} failed: see above"
        )


def _notes(orders: Orders) -> Path:
    return orders.folder / "notes.json"


def _errors(orders: Orders) -> Path:
    return orders.folder / "errors.txt"


@dataclass(slots=True)
class _WarmParent:
    """A single-threaded Python from which processes are forked. This process may have threads, which a fork would lose.

    It starts at the first call and ends with this process. With each call, the parent adopts this process's
    environment.
    """

    _process: subprocess.Popen[bytes] | None = None
    _files: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, function: Callable[..., int], orders: Orders, *arguments: object) -> int:
        """Return ``function(orders, *arguments)``, called in the parent after it has imported the sink's module."""
        with self._lock:
            if self._files.setdefault(orders.module, orders.file) != orders.file:  # another module of the same name
                self._end()
                self._files[orders.module] = orders.file
            self._process = self._process or subprocess.Popen(  # noqa: S603  # this Python, and text of this module
                [sys.executable, "-c", _START, *sys.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            requests, answers = self._process.stdin, self._process.stdout
            assert requests is not None
            assert answers is not None
            try:
                here = [*sys.path], Path.cwd(), dict(os.environ)
                requests.write(pickle.dumps((*here, function, orders, arguments)))
                requests.flush()
                answer: int = pickle.load(answers)  # noqa: S301  # from the process that this one started
            except BaseException:  # a late answer would be taken for that of the next call
                self._end()
                raise
            return answer

    def end(self) -> None:
        """End the process. The next call starts a new one."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        self._files.clear()
        if process:
            process.kill()
            process.communicate()


_parent = _WarmParent()
atexit.register(_parent.end)


# In the warm parent and its children. -------------------------------------------------------------------------------


def serve() -> None:
    """Answer calls on standard input until it ends. Answers go to a copy of standard output, because sinks may print to
    standard output."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with contextlib.suppress(EOFError):
        while True:
            call = pickle.load(sys.stdin.buffer)  # noqa: S301  # from the process that started this one
            sys.path[:], folder, environment, function, orders, arguments = call
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            with _errors(orders).open("ab") as errors:
                os.dup2(errors.fileno(), sys.stderr.fileno())
            try:
                _import(orders.module, orders.file)
                answer = function(orders, *arguments)
            except Exception:  # noqa: BLE001  # the next call may be for another sink
                traceback.print_exc()
                answer = 1
            pickle.dump(answer, answers)
            answers.flush()


def _import(name: str, file: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _forked(orders: Orders, run: Callable[..., None], *arguments: object) -> int:
    """Run a function in a new process, which is killed if it hangs. Return its exit code; if negative, its signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, orders.hangs_after_s)
        run(orders, *arguments)
        code = 0
    except BaseException:  # noqa: BLE001  # the process that forked goes on in any case
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _learn(orders: Orders) -> int:
    """Write a batch without a kill, and import the modules that this needs, so that the forked processes need not
    import them."""
    code = _forked(orders, _write_and_take_notes)
    if code == 0:
        for name in json.loads(_notes(orders).read_text(encoding="utf-8"))["modules"]:
            with contextlib.suppress(Exception):  # for example, a module without a file
                importlib.import_module(name)
    return code


def _write_and_take_notes(orders: Orders) -> None:
    steps = _Steps()
    _write(orders, 0, steps)
    notes = {"steps": steps.reached, "modules": [*sys.modules]}
    _notes(orders).write_text(json.dumps(notes), encoding="utf-8")


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
                if orders.deletes:
                    participant.delete(orders.name, orders.deletes[number][partition])
                yield participant.pre_commit()

    return votes


class _Steps:
    """The steps of this process. ``kill_at``: the number of the step at which it kills itself."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.reached: list[str] = []
        self._kill_at = kill_at
        self._traced: set[str] = set()

    def watch(self, sink: TwoPhaseCommitSink[Any]) -> None:
        """Record each call of ``sink`` from now on."""
        code = tuple(_code_of(sink))
        for name in filter(partial(hasattr, sink), _CALLS):  # not every sink commits whole batches
            setattr(sink, name, self._watched(name, getattr(sink, name), code))

    def _watched(self, name: str, method: Callable[..., Any], code: tuple[str, ...]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._reach(f"{_CALL}{name}")
            if name in self._traced or name not in _BY_LINE:
                return method(*arguments)
            self._traced.add(name)  # later calls have the same lines
            sys.settrace(self._trace(name, code))
            try:
                return method(*arguments)
            finally:
                sys.settrace(None)

        return call

    def _trace(self, name: str, code: tuple[str, ...]) -> Trace:
        def trace(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001  # Python passes three
            file = frame.f_code.co_filename
            if not file.startswith(code):
                return None
            step = f"{name}, {Path(file).name} line {frame.f_lineno}"
            if event == "line" and step in self.reached:  # a loop's second turn, after a part is done
                step += " again"
            if event == "line" and step not in self.reached:
                self._reach(step)
            return trace

        return trace

    def _reach(self, step: str) -> None:
        if len(self.reached) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.reached.append(step)


def _code_of(sink: TwoPhaseCommitSink[Any]) -> Iterable[str]:
    """Yield the files of the sink's own classes, or the folders of their packages."""
    for kind in type(sink).__mro__[: type(sink).__mro__.index(TwoPhaseCommitSink)]:
        if kind is KeyedSink:  # it has no steps
            continue
        file, depth = Path(inspect.getfile(kind)), kind.__module__.count(".")
        yield f"{file.parents[depth - 1]}{os.sep}" if depth else str(file)
