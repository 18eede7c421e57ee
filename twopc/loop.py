"""A service without Spark: read a batch from a source, write it to the sinks, decide, and begin anew.

    with KafkaSource({"bootstrap.servers": "broker:9092"}, ["orders"]) as source:
        run(source, {"lake": lake}, lambda records: {"lake": records}, log="s3://bucket/log", owner="orders")

The log is the only state. It holds, with each batch, the position in the source after it: so a batch and the step to
the next one are decided together, and a start continues where the newest decided batch ended.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from twopc.coordinator import Coordinator
from twopc.errors import Retriable, RoundAborted
from twopc.failures import passes
from twopc.participant import Participant
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import JsonValue, Vote
from twopc.transactional_ids import Round

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class Read:
    """What a source has read.

    Attributes:
        records: in one record batch, as ``route`` is given it. There may be none, to keep a position in the log.
        position: where the source continues after them, as JSON. Other records never have the same position.
        offsets: the position as records for a sink of ``kafka-offsets``, or None.
    """

    records: pa.RecordBatch
    position: JsonValue
    offsets: pa.RecordBatch | None = None


class Source(Protocol):
    """Where a loop reads. Only one thread calls it."""

    def begin(self, position: JsonValue) -> None:
        """Continue at a ``Read.position``, or at the source's own beginning if it is None. Called once by each
        ``run``, before ``read``.

        Raises:
            TwoPhaseCommitError: the source no longer has what comes after the position.
        """

    def read(self) -> Read | None:
        """Return the next records, or None if there are none for now. Waits for a bounded time.

        Raises:
            TwoPhaseCommitError: the source no longer has the next records, or refuses to be read.
        """


def run(
    source: Source,
    sinks: Mapping[str, TwoPhaseCommitSink[Any]],
    route: Callable[[pa.RecordBatch], Mapping[str, pa.RecordBatch]],
    *,
    log: Any,
    owner: str,
    is_stopping: Callable[[], bool] = lambda: False,
    offsets: str | None = None,
    **coordinator: Any,
) -> None:
    """Write everything that a source has to sinks, each record exactly once, until ``is_stopping``.

    A batch that was rolled back is run again, with the records that were read for it, if its failure is known to pass.
    Any other failure is raised, for a supervisor to start the process again. Of two processes on one log, the later one
    fences the other.

    Args:
        source: where to read.
        sinks: name → sink.
        route: returns what each sink gets of the records. Called again for a batch that is run again.
        log: see ``Coordinator``.
        owner: the service's name, the same after each restart.
        is_stopping: asked before each batch. If it returns True, the loop ends with nothing in doubt.
        offsets: the name of a sink of ``kafka-offsets`` among ``sinks``, which gets ``Read.offsets``.
        **coordinator: further arguments of ``Coordinator``.

    Raises:
        Fenced: another process runs on the same log now. End this one.
        TwoPhaseCommitError: any other error that a restart may or may not mend: see ``twopc.errors``.
    """
    with Coordinator(sinks, log, owner=owner, **coordinator) as deciding:
        position = deciding.recover().reads
        batch_id = deciding.next_batch_id
        with deciding.failures_counted():
            source.begin(position)
        while not is_stopping():
            with deciding.failures_counted():
                read = source.read()
            if read is None:
                continue
            phase_one = functools.partial(_write, sinks, route, read, offsets)
            batch = functools.partial(deciding.run, batch_id, phase_one, reads=read.position, follows=position)
            _until_decided(batch, batch_id, is_stopping)
            batch_id, position = batch_id + 1, read.position


def _write(
    sinks: Mapping[str, TwoPhaseCommitSink[Any]],
    route: Callable[[pa.RecordBatch], Mapping[str, pa.RecordBatch]],
    read: Read,
    offsets: str | None,
    round: Round,
) -> Iterable[Vote]:
    # Within the round, so that what ``route`` raises at each start is counted.
    written = dict(route(read.records)) if read.records.num_rows else {}
    if offsets is not None and read.offsets is not None:
        written[offsets] = read.offsets
    with Participant(sinks, round, partition=0) as participant:
        for name, records in written.items():
            participant.write(name, records)
        return [participant.pre_commit()]


def _until_decided(batch: Callable[[], object], batch_id: int, is_stopping: Callable[[], bool]) -> None:
    """Run a batch, again if it was rolled back. One that was decided before its error is recognized by what it read.

    Upholds: a failure that is not known to pass ends the process, as starts in a row are counted (``RepeatedFailure``).
    """
    pause_s = 0.1
    while True:
        try:
            batch()
        except (Retriable, RoundAborted) as error:
            if is_stopping() or not passes(error):
                raise
            logger.warning("batch %d is run again in %g s: %s", batch_id, pause_s, error)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            return
