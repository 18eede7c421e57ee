"""A commit log on a store, without a coordinator around it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from twopc.effects import LogView
from twopc.log import steps
from twopc.log.commit_log import on_store, read_tail
from twopc.log.entries import Decision, Entry, abandoned, amended, closed, completed, decided
from twopc.log.store import LogStore
from twopc.transaction import Committable, JsonValue


class CommitLog:
    """An open commit log: one incarnation, whose steps tests take themselves."""

    def __init__(self, store: LogStore, view: LogView) -> None:
        self._store, self.view = store, view

    @classmethod
    def open(cls, store: LogStore, owner: str, sinks: Mapping[str, str] | None = None) -> CommitLog:
        return cls(store, on_store(store, steps.open_log(store.url, owner, sinks)))

    @classmethod
    def resume(cls, store: LogStore, log_id: str, incarnation: int) -> CommitLog:
        return cls(store, on_store(store, steps.resume_log(store.url, log_id, incarnation)))

    @property
    def tail(self) -> Entry:
        return self.view.tail

    @property
    def incarnation(self) -> int:
        return self.tail.incarnation

    def decide(self, decision: Decision, reads: JsonValue = None) -> None:
        self._append(decided(self.tail, decision, reads))

    def amend(self, decision: Decision) -> None:
        self._append(amended(self.tail, decision))

    def abandon(self, batch_id: int, given_up: Mapping[str, Collection[Committable]], by: str) -> None:
        self._append(abandoned(self.tail, batch_id, given_up, by))

    def complete(self) -> None:
        self.verify()
        self._append(completed(self.tail))

    def close(self) -> None:
        self.verify()
        self._append(closed(self.tail))

    def verify(self) -> None:
        on_store(self._store, steps.verify(self.view))

    def _append(self, entry: Entry) -> None:
        on_store(self._store, steps.append(self.view, entry))


def newest_decided(store: LogStore) -> int:
    """Return the newest decided batch of a log; -1 for none."""
    tail = read_tail(store)
    return -1 if tail is None or tail[1].decided is None else tail[1].decided
