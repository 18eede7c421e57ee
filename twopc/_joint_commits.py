"""The calls of phase two, among them one that commits a batch in several sinks at one moment."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from twopc._bound_sink import CommitCall
from twopc.sink import TwoPhaseCommitSink, WholeBatchSink
from twopc.transaction import Committable

logger = logging.getLogger(__name__)

Due = Mapping[TwoPhaseCommitSink[Any], Sequence[Committable]]
"""Sink → its transactions of one decided batch."""


def commit_calls(batch_id: int, due: Due) -> list[CommitCall]:
    """Return the calls that commit ``due``, in the order of the sinks. Sinks of one group that have transactions are
    committed together before the first of their own calls."""
    calls = {sink: sink.commit_calls(batch_id, committables) for sink, committables in due.items()}
    for group in _groups(due):
        together = _Once(batch_id, {sink: due[sink] for sink in group})
        for sink in group:
            calls[sink] = [replace(call, commit=partial(together.then, call.commit)) for call in calls[sink]]
    return [call for of_sink in calls.values() for call in of_sink]


def _groups(due: Due) -> list[list[WholeBatchSink[Any]]]:
    """Return the groups of at least two sinks that have transactions."""
    found: dict[tuple[type, Hashable], list[WholeBatchSink[Any]]] = defaultdict(list)
    for sink, committables in due.items():
        if committables and isinstance(sink, WholeBatchSink) and (group := sink.commit_group) is not None:
            found[type(sink), group].append(sink)
    return [sinks for sinks in found.values() if len(sinks) > 1]


class _Once:
    """One call of ``commit_together``, by whichever thread comes first. The others wait for it."""

    def __init__(self, batch_id: int, due: Mapping[WholeBatchSink[Any], Sequence[Committable]]) -> None:
        self._batch_id, self._due = batch_id, due
        self._lock = threading.Lock()
        self._was_called = False

    def then(self, commit: Callable[[], None]) -> None:
        """Make sure that the call has ended, then commit one sink. That commit alone finds out what happened."""
        with self._lock:
            if not self._was_called:
                self._was_called = True
                self._commit_together()
        commit()

    def _commit_together(self) -> None:
        try:
            type(next(iter(self._due))).commit_together(self._batch_id, self._due)
        except Exception as error:  # noqa: BLE001  # it is not believed: each sink looks for itself
            names = ", ".join(repr(sink.transactional_ids.sink) for sink in self._due)
            logger.warning(
                "batch %d is decided; it could not be committed together to the sinks %s, which commit it one by one:"
                " %s: %s",
                self._batch_id,
                names,
                type(error).__name__,
                error,
            )
