"""The task of a batch on the executors, and the return of its vote or error to the driver.

PySpark passes only the text of a task's traceback to the driver. Without ``refusals_from_tasks``, a configuration error
would look like a failure worth retrying.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import logging
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row
from pyspark.sql.types import StructType

from twopc import errors
from twopc.effects import Wanted
from twopc.participant import Participant, Vote
from twopc.plugins import distribution_of
from twopc.sink import TwoPhaseCommitSink
from twopc.spark.bad_records import BadRecord
from twopc.spark.changes import CHANGE, Change, unordered_in
from twopc.spark.output import Part, Rows
from twopc.transaction import Committable
from twopc.transactional_ids import Round

VOTE_SCHEMA = StructType().add("vote", "string").add("unrouted", "long").add("bad_records", "string")
"""The row in which a task returns ``Written``, with vote and bad records as JSON. Built in Python, because parsing a
DDL string takes a call to the JVM."""


@dataclass(frozen=True)
class Written:
    """The result of a task attempt."""

    vote: Vote
    unrouted: int  # the number of rows that went to no sink
    bad_records: Sequence[BadRecord]  # the records that a sink refused

    def to_batch(self) -> pa.RecordBatch:
        """Return this as one row, to send to the driver."""
        vote = json.dumps({name: committable.to_json() for name, committable in self.vote.items()})
        row = {"vote": vote, "unrouted": self.unrouted}
        return pa.RecordBatch.from_pylist([{**row, "bad_records": json.dumps(self.bad_records)}])

    @classmethod
    def of(cls, row: Row) -> Written:
        """Return a task's result from the row that it sent."""
        vote = {name: Committable.from_json(value) for name, value in json.loads(row.vote).items()}
        bad = [BadRecord(*each) for each in json.loads(row.bad_records)]
        return cls(vote, row.unrouted, bad)


@dataclass(frozen=True)
class Task:
    """The function for ``mapInArrow``: takes the columns of all sinks, and returns one row with the result.

    Each task attempt has one participant, for all sinks together.
    """

    sinks: PickledSinks
    rows: Rows  # where a frame has the sinks' records
    round: Round
    refuses_unrouted: bool = False  # whether a row that goes to no sink fails the batch
    max_bad_records: int = 0  # how many records may be left out because a sink refuses them
    # The sinks and partitions to write if a part of a decided batch is computed again, else None.
    wanted: Wanted | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        with refusals_to_driver():
            # Spark numbers task attempts across an application, so a retry of a whole Spark stage has other numbers.
            written = self.write(self.sinks.load(), batches, context.partitionId(), context.taskAttemptId())
            spare_garbage_collection()
            yield written.to_batch()

    def write(
        self,
        sinks: Mapping[str, TwoPhaseCommitSink[Any]],
        batches: Iterable[pa.RecordBatch],
        partition: int,
        serial: int,
    ) -> Written:
        """Write and pre-commit the record batches of a partition. ``serial`` is unique among the round's attempts."""
        unrouted, bad = list[int](), list[BadRecord]()
        with Participant(
            sinks, self.round, partition=partition, serial=serial, max_bad_records=self.max_bad_records
        ) as participant:
            for part in gather(self._parts(batches, partition, unrouted)):
                add = participant.delete if part.deletes else participant.write
                refused = add(part.sink, part.records, part.hashes)
                bad += [BadRecord.of(each, part.sink, part.source_row) for each in refused]
            vote = participant.pre_commit()
        return Written(vote, sum(unrouted), bad)

    def _parts(self, batches: Iterable[pa.RecordBatch], partition: int, unrouted: list[int]) -> Iterator[Part]:
        """Yield each sink's parts of a partition's record batches. Append the number of rows that no sink gets to
        ``unrouted``."""
        read, unordered = 0, Counter[tuple[str, Change]]()
        for batch in batches if self._writes(partition) else ():
            if (left := self.rows.unrouted(batch)) is not None:
                if self.refuses_unrouted:
                    _refuse_unrouted(left, partition, read)
                unrouted.append(left.true_count)
            for name in self.rows.keyed:
                unordered.update(unordered_in(name, batch.column(CHANGE + name)))
            yield from (part for part in self.rows.split(batch) if self._writes(partition, part.sink))
            read += batch.num_rows
        for name, keyed in self.rows.keyed.items():
            keyed.refuse(name, unordered, partition)

    def _writes(self, partition: int, sink: str | None = None) -> bool:
        """Whether a partition's task writes to ``sink``, or to any sink if ``sink`` is None."""
        if self.wanted is None:
            return True
        return any(partition in partitions for name, partitions in self.wanted.items() if sink in (name, None))


def _refuse_unrouted(rows: pa.BooleanArray, task: int, before: int) -> None:
    """Raise RecordRefused if a value in ``rows`` is true, which means that no sink gets the row. ``before`` is the
    number of the task's rows before these."""
    if (position := pc.index(rows, True).as_py()) >= 0:
        raise errors.RecordRefused(
            "no output takes this row: the condition of each is false or null for it, and 'unrouted' is 'refuse'."
            " Correct the conditions, or add an output for the rest, and start again.",
            task=task,
            record=before + position,
        )


@functools.cache
def spare_garbage_collection() -> None:
    """Exempt from garbage collection everything that the process has loaded. Called at the end of a task; only the
    first call of a process has an effect.

    PySpark collects garbage after each task (``manager`` in ``pyspark/daemon.py``). Traversing the modules of Arrow and
    a sink each time takes 50 ms of CPU, more than the task of a small batch. The price: the first task's reference
    cycles are never freed.
    """
    gc.collect()
    gc.freeze()


# Small parts are merged before a write. ----------------------------------------------------------------------------

ENOUGH_RECORDS = 8_192
ENOUGH_BYTES = 4 * 1024 * 1024
"""A part of this size is written immediately. Bounds the memory for waiting parts."""


@dataclass
class _Waiting:
    """A sink's parts, either of records or of deletes, that wait for more."""

    parts: list[Part] = field(default_factory=list)
    records: int = 0
    bytes: int = 0


def gather(parts: Iterable[Part]) -> Iterator[Part]:
    """Merge small parts of the same sink, in order. Records and deletes stay separate. A part that is large enough is
    yielded as it is.

    Spark passes 10,000 rows at a time. An output with a condition may get few of them, and each write has a fixed cost:
    0.4 ms to Kafka.
    """
    waiting: dict[tuple[str, bool], _Waiting] = {}
    for part in parts:
        kind = part.sink, part.deletes
        records, size = part.records.num_rows, part.records.nbytes
        if not records:
            continue
        if kind in waiting and _is_enough(records, size):
            yield _join(waiting.pop(kind).parts)
        of_sink = waiting.setdefault(kind, _Waiting())
        of_sink.parts.append(part)
        of_sink.records += records
        of_sink.bytes += size
        if _is_enough(of_sink.records, of_sink.bytes):
            yield _join(waiting.pop(kind).parts)
    yield from (_join(of_sink.parts) for of_sink in waiting.values())


def _is_enough(records: int, size_bytes: int) -> bool:
    return records >= ENOUGH_RECORDS or size_bytes >= ENOUGH_BYTES


def _join(parts: list[Part]) -> Part:
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(
        first,
        records=pa.concat_batches([each.records for each in parts]),
        hashes=None if first.hashes is None else pa.concat_arrays([each.hashes for each in parts]),
        source=None if first.source is None else pa.concat_arrays([each.source for each in parts]),
    )


# Objects sent to the executors, where distributions may not be installed. --------------------------------------------


@dataclass(frozen=True)
class PickledSinks:
    """Pickled sinks by name, each with the distribution to install if it can't be loaded.

    Spark unpickles everything that it sends to a task before any of our code runs. If a distribution is missing,
    Spark's own error would only name a module.
    """

    _pickled: Mapping[str, tuple[bytes, str]] = field(repr=False)  # a sink may hold credentials

    @classmethod
    def of(cls, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> PickledSinks:
        dumps: Callable[[object], bytes] = cloudpickle.dumps
        return cls({name: (dumps(sink), distribution_of(type(sink))) for name, sink in sinks.items()})

    def load(self) -> dict[str, TwoPhaseCommitSink[Any]]:
        """Return the sinks, in a task. Raises ConfigurationError: a sink can't be loaded here. The message names the
        distribution to install, and the Python to install it into."""
        return {name: _load(name, *pickled) for name, pickled in self._pickled.items()}


def _load(name: str, pickled: bytes, distribution: str) -> TwoPhaseCommitSink[Any]:
    try:
        sink: TwoPhaseCommitSink[Any] = cloudpickle.loads(pickled)
    except (ImportError, AttributeError) as error:  # not installed, or in another version
        raise errors.ConfigurationError(
            f"sink {name!r} can't be loaded on the executor at {socket.gethostname()} by {sys.executable}:"
            f" {type(error).__name__}: {error}. Install {distribution} into that Python on every executor, as on the"
            " driver."
        ) from error
    return sink


class _HidesPickledTasks(logging.Filter):
    """Drops py4j's DEBUG lines for commands that contain pickled tasks, and so the sinks' credentials in base64."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "\nj" not in record.getMessage()  # marks an argument of bytes in py4j's protocol


for _logs_commands in ("py4j.clientserver", "py4j.java_gateway"):
    logging.getLogger(_logs_commands).addFilter(_HidesPickledTasks())


def portable(task: Callable[[Iterable[Any]], Iterator[Any]]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Wrap ``task`` in a function that Spark can unpickle even if this package is missing, or is another project's.

    The function then raises an error with the host and the distributions to install. Spark's own error would only name
    a module. The function is nested, so it is pickled by value, and needs its own imports.
    """
    dumps: Callable[[object], bytes] = cloudpickle.dumps
    pickled = dumps(task)

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import cloudpickle

        try:
            loaded = cloudpickle.loads(pickled)
        except (ImportError, AttributeError) as error:  # not installed, or in another version
            raise missing(error) from error
        yield from loaded(batches)

    def missing(error: Exception) -> ModuleNotFoundError:
        import socket
        import sys
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = f" of this project, but the distribution 'twopc' {version('twopc')} of another: run"
            found += " `pip uninstall twopc twopc-core` there, then"
        except PackageNotFoundError:
            found = ":" if getattr(error, "name", None) == "twopc" else " that can be loaded:"
        return ModuleNotFoundError(  # the driver looks for these words: _LACKS_TWOPC
            f"the Python {sys.executable} of the executor at {socket.gethostname()} has no package 'twopc'{found}"
            " install twopc-core and the distributions of the sinks there on every executor, as on the driver."
            f" ({type(error).__name__}: {' '.join(str(error).split())})"
        )

    return run


# Errors on their way to the driver. ----------------------------------------------------------------------------------


class TaskRefused(Exception):
    """A ``Refused`` error on its way from a task to the driver, as one line of JSON: class, message and attributes."""


_RAISED = re.compile(rf"^{re.escape(__name__)}\.{TaskRefused.__qualname__}: (.+)$", re.MULTILINE)

_LACKS_TWOPC = re.compile(r"^ModuleNotFoundError: (.* has no package 'twopc'.*)$", re.MULTILINE)
"""Matches the error of ``portable``."""

_UNFIT_PYTHON = re.compile(
    r"^(?:[\w.]+\.)?(?:ImportError|ModuleNotFoundError|PySparkImportError|PySparkRuntimeError): "
    r"(.*(?:\b(?:PyArrow|Pandas) >= |No module named '(?:pyarrow|pandas)[.']|PYTHON_VERSION_MISMATCH).*)$",
    re.MULTILINE,
)
"""Matches errors that Spark's worker raises before a task. On 4.0 to 4.2, a missing pyarrow is a
``ModuleNotFoundError`` there. Elsewhere PySpark raises ``PySparkImportError`` for pyarrow and pandas."""

_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor")


@contextlib.contextmanager
def refusals_to_driver() -> Iterator[None]:
    """In a task: raise ``TaskRefused`` from a ``Refused`` error, for ``refusals_from_tasks`` to recognize on the
    driver."""
    try:
        yield
    except errors.Refused as refused:
        attributes = {name: value for name, value in vars(refused).items() if not name.startswith("__")}
        # A user's sink may raise its own class, which the driver may lack.
        refusal = [refused.kind, str(next(iter(refused.args), "")), attributes]
        raise TaskRefused(json.dumps(refusal, default=str)) from refused


@contextlib.contextmanager
def refusals_from_tasks() -> Iterator[None]:
    """On the driver: re-raise a task's ``Refused`` error, with its class, message and attributes. Raises
    ConfigurationError: an executor's Python lacks a package that the task needs."""
    try:
        yield
    except Exception as error:
        for line in _RAISED.findall(str(error))[-1:]:  # the last one ended the task
            kind, reason, attributes = json.loads(line)
            refused: errors.Refused = getattr(errors, kind)(reason)
            vars(refused).update(attributes)
            raise refused from error
        for reason in _LACKS_TWOPC.findall(str(error))[-1:]:
            raise errors.ConfigurationError(reason) from None
        for reason in _UNFIT_PYTHON.findall(str(error))[-1:]:
            hosts = _LOST_TASK.findall(str(error))[-1:]
            raise errors.ConfigurationError(_unfit_message(reason, *hosts)) from None
        raise


def _unfit_message(reason: str, host: str | None = None) -> str:
    where = f"the executor at {host}" if host else "an executor"
    advice = (
        "Give the executors the driver's version of Python, and"
        if "PYTHON_VERSION_MISMATCH" in reason
        else "Executors run the Python that PYSPARK_PYTHON or spark.pyspark.python names:"
    )
    log = "" if host else " Spark's log names the host of the executor in a line that begins with 'Lost task'."
    return (
        f"the Python of {where} can't run the batch's tasks: {reason.rstrip('.')}. {advice} install twopc-core[spark]"
        f" and the distributions of the sinks into that Python on every executor, as on the driver.{log}"
    )
