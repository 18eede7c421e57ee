"""A service without Spark: read a batch from a source, write it to the sinks, decide, and repeat.

    with KafkaSource({"bootstrap.servers": "broker:9092"}, ["orders"]) as source:
        run(source, {"lake": lake}, lambda records: {"lake": records}, log="s3://bucket/log", owner="orders")

The log is the only state. With each batch it records the source position after the batch, so both are decided together,
and a start continues where the newest decided batch ended.
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
    """Records that a source has read, and its position after them.

    Attributes:
        records: one record batch, which is passed to ``route``. It may be empty, to record a position in the log.
        position: where the source continues after the records, as JSON. Other records never have the same position.
        offsets: the position as records for a ``kafka-offsets`` sink, or None.
    """

    records: pa.RecordBatch
    position: JsonValue
    offsets: pa.RecordBatch | None = None


class Source(Protocol):
    """A source that a loop reads from. Only one thread calls it."""

    def begin(self, position: JsonValue) -> None:
        """Continue at a ``Read.position``, or at the source's own beginning if it is None. Called once by each
        ``run``, before ``read``.

        Raises:
            TwoPhaseCommitError: the source no longer has the records after the position.
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
    """Read from a source and write each record to the sinks exactly once, until ``is_stopping`` returns True.

    A batch that was rolled back is run again with the same records if its failure is known to pass. Any other failure
    is raised, so that a supervisor restarts the process. If two processes use one log, the later one fences the other.

    Args:
        source: where to read.
        sinks: name → sink.
        route: returns the records for each sink. Called again if a batch is run again.
        log: see ``Coordinator``.
        owner: the service's name, the same after each restart.
        is_stopping: called before each batch. If it returns True, the loop ends with nothing in doubt.
        offsets: the name of the ``kafka-offsets`` sink in ``sinks``, which receives ``Read.offsets``.
        **coordinator: further arguments of ``Coordinator``.

    Raises:
        Fenced: another process now uses the log. End this one.
        TwoPhaseCommitError: any other error; ``twopc.errors`` lists which ones a restart may clear.
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
    # Within the round, so that an error of ``route`` that comes at each start is counted.
    written = dict(route(read.records)) if read.records.num_rows else {}
    if offsets is not None and read.offsets is not None:
        written[offsets] = read.offsets
    with Participant(sinks, round, partition=0) as participant:
        for name, records in written.items():
            participant.write(name, records)
        return [participant.pre_commit()]


def _until_decided(batch: Callable[[], object], batch_id: int, is_stopping: Callable[[], bool]) -> None:
    """Run a batch, and run it again if it was rolled back. A batch that is already decided is recognized by its reads.

    Upholds: a failure that is not known to pass ends the process, because failed starts are counted
    (``RepeatedFailure``).
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
