"""A query in plain Python that is restarted after errors."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from twopc import Committable, Coordinator, Participant, Round, TwoPhaseCommitSink
from twopc.errors import Retriable, RoundAborted

STARTS_AT_MOST = 10
"""The most drivers that a batch may take."""


class RestartedQuery:
    """A query in plain Python. An error ends its driver, and a new one continues.

    Args:
        make_sink: returns a new sink.
        log: the folder of the commit log.
    """

    def __init__(self, make_sink: Callable[[], TwoPhaseCommitSink[Any]], log: Path) -> None:
        self._make_sink = make_sink
        self._log = log

    def run(self, batch_id: int, tasks: Sequence[pa.RecordBatch]) -> list[Exception]:
        """Write a batch with as many drivers as it takes. Return the errors on the way."""
        errors: list[Exception] = []
        while len(errors) < STARTS_AT_MOST:
            try:
                self._drive(batch_id, tasks)
                return errors
            except (RoundAborted, Retriable) as error:
                errors.append(error)
        raise AssertionError(f"{STARTS_AT_MOST} drivers could not write batch {batch_id}") from errors[-1]

    def _drive(self, batch_id: int, tasks: Sequence[pa.RecordBatch]) -> None:
        sink = self._make_sink()

        def write(round: Round) -> list[dict[str, Committable]]:
            of_task = pickle.dumps(sink)
            return [_vote(pickle.loads(of_task), round, number, each) for number, each in enumerate(tasks)]  # noqa: S301

        with Coordinator({"orders": sink}, self._log, owner="query", rest_interval_s=None) as coordinator:
            coordinator.run(batch_id, write)


def _vote(sink: TwoPhaseCommitSink[Any], round: Round, partition: int, batch: pa.RecordBatch) -> dict[str, Committable]:
    with Participant({"orders": sink}, round, partition=partition) as participant:
        participant.write("orders", batch)
        return participant.pre_commit()
