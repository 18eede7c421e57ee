"""The sweep: rolls back every open, undecided transaction, so that none holds back readers. No I/O: the functions yield
the effects of ``effects``.

Recovery, failed rounds, batches and rests end with a sweep.
"""

from __future__ import annotations

import itertools
import logging

from twopc import effects
from twopc.effects import Life, Steps
from twopc.errors import Fenced, Retriable
from twopc.events import TransactionAborted
from twopc.failures import worst_of
from twopc.log import steps
from twopc.transaction import Committable, among


def sweep(life: Life, *, recovered: bool) -> Steps[None]:
    """Abort each sink's open, undecided transactions, and remove replay copies that are no longer needed.

    Raises:
        Fenced: a newer coordinator sweeps.
        Exception: a sink can't be swept. All others have been, because open transactions may hold locks.
    """
    errors: list[Exception] = []
    for name in life.members:
        try:
            yield from sweep_sink(life, name, recovered)
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001  # raised below, after all sinks are swept
            errors.append(error)
            level = logging.DEBUG if isinstance(error, Retriable) else logging.ERROR  # retries log a Retriable
            yield effects.Log(level, f"sweep of sink {name!r}: {error}")
    if errors:
        raise worst_of(errors)
    yield from remove_copies(life)


def sweep_sink(life: Life, name: str, recovered: bool) -> Steps[None]:
    """Abort and list again until nothing new is open. After an abort, a target system may have left a part open, which
    holds back readers."""
    aborted: list[Committable] = []
    while (found := (yield from undecided(life, name))) and found != aborted:
        for transaction in found:
            yield effects.Abort(name, transaction)
            yield effects.Tell(TransactionAborted(name, transaction, recovered, life.tail.owner))
        aborted = found


def undecided(life: Life, name: str) -> Steps[list[Committable]]:
    """List a sink's open transactions that the log has not decided. Raises Fenced if a newer incarnation has opened.

    Upholds: a zombie rolls back nothing of a newer coordinator. The order ensures this: list, then re-read the log,
    then abort exactly what was listed. Later transactions of a newer coordinator have another epoch or name, so an
    abort can't reach them.
    """
    listed = yield effects.List(name)
    if not listed:
        return []
    yield from steps.verify(life.log)
    spared = (c for d in life.tail.unresolved for of_sink in d.committables.values() for c in of_sink)
    return [*itertools.filterfalse(among(spared), listed)]


def remove_copies(life: Life) -> Steps[None]:
    """Remove the copies of batches that are known to be complete, and of undecided rounds.

    Upholds: a zombie removes nothing of a newer coordinator. The order ensures this: list, then re-read the log, then
    remove what was listed.
    """
    listed = []
    for name in [name for name, member in life.members.items() if member.has_copies]:
        listed += [(name, copy) for copy in (yield effects.ListCopies(name))]
    if not listed:
        return
    yield from steps.verify(life.log)
    needed = {c.replay_copy for parts in life.pending.values() for of_sink in parts.values() for c in of_sink}
    for name, copy in listed:
        if copy not in needed:
            yield effects.RemoveCopy(name, copy)
