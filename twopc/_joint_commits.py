"""The calls of phase two, among them one that commits a batch in several sinks at one moment."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from twopc._bound_sink import CommitCall
from twopc.sink import TwoPhaseCommitSink, WholeBatchSink
from twopc.transaction import Committable

logger = logging.getLogger(__name__)

Due: TypeAlias = "Sequence[tuple[TwoPhaseCommitSink[Any], Sequence[Committable]]]"
"""Sinks, and their transactions of one decided batch."""

Group: TypeAlias = "dict[WholeBatchSink[Any], Sequence[Committable]]"
"""Those of them that are committed together."""


def commit_calls(batch_id: int, due: Due) -> list[CommitCall]:
    """Return the calls that commit ``due``, in the order of the sinks. Sinks of one group that have transactions are
    committed together before the first of their own calls."""
    together = dict[str, _Once]()
    for group in _groups(due):
        once = _Once(batch_id, group)
        together.update(dict.fromkeys(once.names, once))
    calls = [call for sink, committables in due for call in sink.commit_calls(batch_id, committables)]
    return [
        replace(call, commit=partial(together[call.sink].then, call.commit)) if call.sink in together else call
        for call in calls
    ]


def _groups(due: Due) -> list[Group]:
    """Return the groups of at least two sinks that have transactions."""
    found: dict[tuple[type, Hashable], Group] = defaultdict(dict)
    for sink, committables in due:
        if committables and isinstance(sink, WholeBatchSink) and (group := sink.commit_group) is not None:
            found[type(sink), group][sink] = committables
    return [group for group in found.values() if len(group) > 1]


class _Once:
    """One call of ``commit_together``, by whichever thread comes first. The others wait for it."""

    def __init__(self, batch_id: int, due: Group) -> None:
        self._batch_id, self._due = batch_id, due
        self.names = [sink.transactional_ids.sink for sink in due]
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
            logger.warning(
                "batch %d is decided; it could not be committed together to the sinks %s, which commit it one by one:"
                " %s: %s",
                self._batch_id,
                ", ".join(map(repr, self.names)),
                type(error).__name__,
                error,
            )
