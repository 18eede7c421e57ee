"""Records what the processes of a query do in a campaign, as lines of JSON that ``observed`` makes a trace of.

Every call that the specification has a step for is recorded through a seam, in the process that makes it: when it
begins, when it is answered, or both. Each line is one write to a file that all processes of a query append to, so a
kill leaves whole lines. Times are those of the system's monotonic clock, which all processes of a
machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.campaigns.seams import Seam, patched
from twopc.coordinator import Coordinator
from twopc.effects import Life, LogView, Steps, Write
from twopc.errors import Fenced, LogMismatch, OutcomeUnknown, TransactionLost
from twopc.log.entries import Decision, Entry
from twopc.participant import Participant, Vote
from twopc.performer import Performer
from twopc.transaction import Committable

SINKS = {"twopc_kafka.sink": "KafkaSink", "twopc_files.sink": "FileSink", "twopc_postgres.sink": "PostgresSink"}
"""The sinks that commit one transaction at a time. The specification has no others."""

TAKE_OVER = frozenset({"KafkaSink"})
"""Sinks in whose target system a transaction ends what is open under its name."""


def record(path: Path) -> None:
    """Append what this process does to a file, until it ends. Call it before a defect is planted, so that what is
    recorded is what the code with the defect does."""
    _until_the_end.enter_context(recorded(path))


def recorded(path: Path) -> AbstractContextManager[None]:
    """Return a context in which what this process does is appended to a file."""
    return patched(_Recorder(path).seams())


_until_the_end = ExitStack()


class _Recorder:
    """The seams of one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lives: dict[int, int] = {}  # id of a coordinator's sink → the coordinator's incarnation
        self._discards = False  # what tasks, or the driver when it writes again, could not write
        self._after: dict[int, str | None] = {}  # slot → the entry that an append there follows

    def seams(self) -> tuple[Seam, ...]:
        coordinator, log = "twopc.coordinator:Coordinator", "twopc.log.steps"
        return (
            Seam("twopc.performer:Performer._bind", self._bind),
            Seam("twopc.performer:Performer._write", self._write),
            Seam(f"{coordinator}.run", self._run),
            Seam(f"{coordinator}.recover", self._until_ended),
            Seam(f"{coordinator}.close", self._until_ended),
            Seam(f"{coordinator}.rest", self._rest),
            Seam("twopc.performer:Performer.rest_is_answered", self._rested),
            Seam("twopc.log.batch_identity:recognize", self._recognize),
            Seam(f"{log}:_appended", self._appended),
            Seam(f"{log}:_put_once", self._put_once),
            Seam(f"{log}:verify", self._verify),
            Seam("twopc.performer:sealed", self._sealed),
            Seam("twopc.participant:Participant.pre_commit", self._pre_commit_of_task),
            *(seam for module, sink in SINKS.items() for seam in self._of(module, sink)),
        )

    def _of(self, module: str, sink: str) -> Iterable[Seam]:
        if not find_spec(module.partition(".")[0]):
            return []
        calls: dict[str, Callable[..., Any]] = {
            "commit": self._commit,
            "abort": self._abort,
            "discard": self._discard,
            "recover": self._recover,
            "complete": self._complete,
        }
        if module == "twopc_kafka.sink":  # the others have none
            calls["commit_many"] = self._commit_many
        return [Seam(f"{module}:{sink}.{name}", instead) for name, instead in calls.items()]

    def _add(self, kind: str, at: float | None = None, /, **values: Any) -> None:
        line = {"is": kind, "at": time.monotonic() if at is None else at, **values}
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, f"{json.dumps(line)}\n".encode())
        finally:
            os.close(file)

    # The coordinator. -----------------------------------------------------------------------------------------------

    def _bind(self, real: Any, performer: Performer, life: Life) -> Any:
        self._lives.update({id(sink): life.log.incarnation for sink in performer.sinks.values()})
        sinks = {name: type(sink).__name__ for name, sink in performer.sinks.items()}
        self._add("attach", life=life.log.incarnation, sinks=sinks)
        return real(performer, life)

    def _recognize(self, real: Any, batch_id: int, reads: Any, tail: Entry, *others: Any) -> Any:
        given = {"life": tail.incarnation, "batch": batch_id, "reads": reads, "follows": others[-2]}
        try:
            is_decided = real(batch_id, reads, tail, *others)
        except LogMismatch:
            self._add("run", what="refused", **given)
            raise
        self._add("run", what="record" if is_decided else "write", **given)
        return is_decided

    def _write(self, real: Any, performer: Performer, effect: Write) -> Any:
        votes, round = real(performer, effect), effect.round
        if effect.wanted is not None:
            return votes
        given = [{sink: _key(committable) for sink, committable in vote.items()} for vote in votes if vote]
        may_end = {
            name
            for vote in votes
            for name, committable in vote.items()
            if performer.sinks[name].may_time_out and committable.handle.get("has_timeout", True)
        }
        life = {"life": round.incarnation, "batch": round.batch_id}
        self._add("votes", **life, votes=given, may_time_out=sorted(may_end))
        return votes

    def _run(self, real: Any, coordinator: Coordinator, *arguments: Any, **named: Any) -> Any:
        finished = self._until_ended(real, coordinator, *arguments, **named)
        self._add("ran", life=_life(coordinator))
        return finished

    def _until_ended(self, real: Any, coordinator: Coordinator, *arguments: Any, **named: Any) -> Any:
        """Call, and record an error after which the incarnation does nothing more."""
        try:
            return real(coordinator, *arguments, **named)
        except Fenced:
            if life := _life(coordinator):  # else another one has opened the log at the same moment
                self._add("fenced", life=life)
            raise
        except (TransactionLost, OutcomeUnknown) as error:
            self._add("lost", life=_life(coordinator), sink=error.sink, transaction_id=error.transaction_id)
            raise

    def _rest(self, real: Any, coordinator: Coordinator) -> None:
        try:
            real(coordinator)
        except Fenced:
            self._add("fenced at rest", life=_life(coordinator))
            raise

    def _rested(self, real: Any, performer: Performer) -> None:
        real(performer)
        self._add("rested", life=performer.life.log.incarnation)

    # The log. -------------------------------------------------------------------------------------------------------

    def _appended(self, real: Any, url: str, slot: int, entry: Entry, after: Entry | None) -> Steps[Entry]:
        self._after[slot] = None if after is None else after.entry_id
        appended: Entry = yield from real(url, slot, entry, after)
        self._add("appended", id=appended.entry_id)
        return appended

    def _put_once(self, real: Any, slot: int, entry: Entry) -> Any:
        unresolved = [{"batch": decision.batch_id, "sinks": _keys(decision)} for decision in entry.unresolved]
        what = {"entry": entry.kind, "by": entry.incarnation, "decided": entry.decided, "reads": entry.reads}
        self._add("put", slot=slot, id=entry.entry_id, after=self._after.get(slot), unresolved=unresolved, **what)
        return real(slot, entry)

    def _verify(self, real: Any, log: LogView) -> Steps[None]:
        began = time.monotonic()
        yield from real(log)
        self._add("read the log", began, life=log.incarnation)

    # The sinks. -----------------------------------------------------------------------------------------------------

    def _at(self, sink: Any) -> dict[str, Any]:
        """Return the sink's name, and its coordinator's incarnation; 0 in a task."""
        return {"life": self._lives.get(id(sink), 0), "sink": sink.transactional_ids.sink}

    def _sealed(self, real: Any, sink: Any, committables: Any, *arguments: Any) -> Any:
        began = time.monotonic()
        sealed = real(sink, committables, *arguments)
        self._add("seal", began, **self._at(sink), of=[_key(committable) for committable in sealed])
        return sealed

    def _pre_commit_of_task(self, real: Any, participant: Participant) -> Vote:
        vote: Vote = real(participant)
        if vote:
            round = participant._round
            life = {"life": round.incarnation, "batch": round.batch_id}
            self._add("pre-committed", **life, partition=participant._partition)
        return vote

    def _commit(self, real: Any, sink: Any, committable: Committable) -> None:
        what = {**self._at(sink), "of": _key(committable)}
        self._add("ask to commit", **what)
        real(sink, committable)
        self._add("commit", **what)

    def _commit_many(self, real: Any, sink: Any, committables: Sequence[Committable]) -> Collection[str]:
        for committable in committables:
            self._add("ask to commit", **self._at(sink), of=_key(committable))
        committed: Collection[str] = real(sink, committables)
        for committable in committables:
            if committable.transaction_id in committed:
                self._add("commit", **self._at(sink), of=_key(committable))
        return committed

    def _abort(self, real: Any, sink: Any, committable: Committable) -> None:
        if self._discards or id(sink) not in self._lives:  # nobody has voted for it
            real(sink, committable)
            return
        what = {**self._at(sink), "of": _key(committable)}
        self._add("ask to abort", **what)
        real(sink, committable)
        self._add("abort", **what)

    def _discard(self, real: Any, sink: Any, transaction: Any) -> None:
        self._discards = True
        try:
            real(sink, transaction)
        finally:
            self._discards = False

    def _recover(self, real: Any, sink: Any) -> list[Committable]:
        self._add("list", **self._at(sink))
        found = list(real(sink))
        self._add("listed", **self._at(sink), found=[_key(committable) for committable in found])
        return found

    def _complete(self, real: Any, sink: Any, batch_id: int, *arguments: Any) -> None:
        self._add("complete in sink", **self._at(sink))
        real(sink, batch_id, *arguments)


def _life(coordinator: Coordinator) -> int:
    """Return the incarnation of a coordinator; 0 if it has none, as it could not open the log."""
    return coordinator.incarnation or 0


def _keys(decision: Decision) -> dict[str, list[str]]:
    return {sink: [*map(_key, of_sink)] for sink, of_sink in decision.committables.items()}


def _key(committable: Committable) -> str:
    """Return what identifies a transaction: its name, which Kafka's transactions share if their epochs differ."""
    epoch = [str(committable.handle[part]) for part in ("producer_id", "producer_epoch") if part in committable.handle]
    return "/".join([committable.transaction_id, *epoch])
