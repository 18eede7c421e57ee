"""Defects that are put into a query, to show that the checker finds them."""

import contextlib
import random
from contextlib import AbstractContextManager
from typing import Any

from tests.campaigns.seams import Seam, nothing, patched
from twopc.errors import Retriable

_DOUBLED_IN = 7
"""Every so many batches, a task writes a record twice or not at all."""

_COMMITTED_BY_TASKS = 0.05
"""The share of transactions that a task commits."""


def _first_record_twice(real: Any, batch: int, task: int, attempt: str, most: int) -> Any:
    for records in real(batch, task, attempt, most):
        yield records
        if batch % _DOUBLED_IN == 0 and task == 0:
            yield records.slice(0, 1)


def _last_record_lost(real: Any, batch: int, task: int, attempt: str, most: int) -> Any:
    for records in real(batch, task, attempt, most):
        yield records.slice(0, records.num_rows - (batch % _DOUBLED_IN == 0 and task == 0))


def _sometimes_committed(real: Any, self: Any) -> Any:
    vote = real(self)
    if random.random() < _COMMITTED_BY_TASKS:  # noqa: S311
        [sealed] = self._sinks["kafka"].seal([vote["kafka"]], 0.0)
        self._sinks["kafka"].commit(sealed)
    return vote


def _committed_together(real: Any, sinks: Any) -> None:
    for sink in sinks.values():
        sink.commits_last = False
    real(sinks)


def _silence_is_committed(real: Any, self: Any, committable: Any) -> None:
    with contextlib.suppress(Retriable):
        real(self, committable)


def _never(real: Any, *arguments: Any) -> bool:
    return False


_RECORDS = "tests.campaigns.jepsen.workload:record_batches"

DEFECTS = {
    "a record is written twice": (Seam(_RECORDS, _first_record_twice),),
    "a record is not written": (Seam(_RECORDS, _last_record_lost),),
    "a task commits by itself": (Seam("twopc.participant:Participant.pre_commit", _sometimes_committed),),
    "a decided batch is not recognized": (Seam("twopc.log.batch_identity:recognize", _never),),
    "offsets do not wait for the output": (Seam("twopc.coordinator:_check", _committed_together),),
    "no answer of PostgreSQL counts as committed": (
        Seam("twopc_postgres.sink:PostgresSink.commit", _silence_is_committed),
    ),
    "recovery commits nothing": (Seam("twopc.effects:Life.remember", nothing, "twopc.protocol:bound"),),
}
"""Name → seams. The simulation's mutants come on top."""


def planted(name: str) -> AbstractContextManager[None]:
    """Return a context in which the defect is in the code of this process. Without a name, nothing is changed.

    Raises:
        LookupError: there is no such defect.
    """
    if not name:
        return contextlib.nullcontext()
    return patched(_seams(name))


def _seams(name: str) -> tuple[Seam, ...]:
    if name in DEFECTS:
        return DEFECTS[name]
    from tests.campaigns.simulation.mutants import MUTANTS

    for mutant in MUTANTS:
        if mutant.name == name:
            return mutant.seams
    raise LookupError(f"there is no defect {name!r}; there are {', '.join(DEFECTS)}, and the simulation's mutants")
