"""The figures of one batch, added up while it runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from twopc.events import BatchFinished, CallRetried, Event, TransactionAborted, TransactionCommitted
from twopc.phases import Phase
from twopc.transaction import Committable


class Figures:
    """Counts what a coordinator tells and times its phases, from the call that brings a batch to its end."""

    def __init__(self) -> None:
        self._phases_ms: dict[str, float] = {}
        self._retries = 0
        self._recovered = 0
        self._phase = Phase.IDLE
        self._since_s = 0.0
        self._lock = threading.Lock()  # phase two tells from several threads

    def enter(self, phase: Phase, now_s: float) -> None:
        """``now_s``: a reading of ``time.perf_counter``."""
        if self._phase is not Phase.IDLE:
            self._phases_ms[self._phase.value] = (now_s - self._since_s) * 1000
        self._phase, self._since_s = phase, now_s

    def count(self, event: Event) -> None:
        with self._lock:
            match event:
                case CallRetried():
                    self._retries += 1
                case TransactionCommitted(recovered=True) | TransactionAborted(recovered=True):
                    self._recovered += 1

    def finished(
        self, owner: str, batch_id: int, already_decided: bool, committables: Mapping[str, Sequence[Committable]]
    ) -> BatchFinished:
        """``committables``: those of the decision by sink, or none where it is an earlier one."""
        return BatchFinished(
            owner=owner,
            batch_id=batch_id,
            already_decided=already_decided,
            records={name: sum(c.records or 0 for c in of_sink) for name, of_sink in committables.items()},
            bytes={name: sum(c.bytes or 0 for c in of_sink) for name, of_sink in committables.items()},
            transactions={name: len(of_sink) for name, of_sink in committables.items()},
            phases_ms=self._phases_ms,
            retries=self._retries,
            recovered=self._recovered,
        )
