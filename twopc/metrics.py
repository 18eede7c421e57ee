"""The metrics of one batch, added up while it runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twopc.events import BatchFinished, CallRetried, Event, LeftOut, TransactionAborted, TransactionCommitted
from twopc.phases import Phase
from twopc.transaction import Committable


@dataclass(frozen=True, slots=True)
class Opening:
    """Metrics of opening an incarnation, which count for the batch for which it was opened."""

    phases_ms: tuple[tuple[str, float], ...] = ()  # the time in each phase, by name, in order
    retries: int = 0  # see ``BatchFinished``
    recovered: int = 0  # see ``BatchFinished``


NO_OPENING = Opening()


class Metrics:
    """Counts a coordinator's events and times its phases, from the call that runs a batch to the batch's end.
    ``opening`` contains the metrics of another process that opened the incarnation for the batch. ``phases_ms`` is the
    time in each finished phase."""

    def __init__(self, opening: Opening = NO_OPENING) -> None:
        self.phases_ms = dict(opening.phases_ms)
        self._retries = opening.retries
        self._recovered = opening.recovered
        self._since_s = 0.0
        self._lock = threading.Lock()  # phase two reports from several threads

    def leave(self, phase: Phase, now_s: float) -> None:
        """Count the time since the last phase was left. ``now_s`` is a reading of ``time.perf_counter``."""
        if phase not in (Phase.CLOSED, Phase.IDLE):
            self.phases_ms[phase.value] = (now_s - self._since_s) * 1000
        self._since_s = now_s

    @property
    def opening(self) -> Opening:
        """The metrics so far, for the process that runs the batch."""
        return Opening(tuple(self.phases_ms.items()), self._retries, self._recovered)

    def count(self, event: Event) -> None:
        with self._lock:
            match event:
                case CallRetried():
                    self._retries += 1
                case TransactionCommitted(recovered=True) | TransactionAborted(recovered=True):
                    self._recovered += 1

    def finished(
        self,
        owner: str,
        batch_id: int,
        already_decided: bool,
        committables: Mapping[str, Sequence[Committable]],
        left_out: LeftOut,
    ) -> BatchFinished:
        """Return the event. ``committables``: the decision's, by sink; empty if the batch was already decided."""
        return BatchFinished(
            batch_id=batch_id,
            already_decided=already_decided,
            records={name: sum(c.records or 0 for c in of_sink) for name, of_sink in committables.items()},
            bytes={name: sum(c.bytes or 0 for c in of_sink) for name, of_sink in committables.items()},
            transactions={name: len(of_sink) for name, of_sink in committables.items()},
            phases_ms=self.phases_ms,
            retries=self._retries,
            recovered=self._recovered,
            owner=owner,
            unrouted=left_out.unrouted,
            bad_records=left_out.bad_records,
        )
