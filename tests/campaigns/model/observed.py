"""Traces of real campaigns: what ``recording`` has recorded of a query, as events that ``observed.tla`` checks.

The records of all processes are brought into one order. Each event stands at a moment at which it may have happened,
between the beginning of its call and the answer. Where several moments are possible, it is the one that allows most:

- An entry is in the log as late as possible: when its append was answered, or when somebody is known to have read it.
- A look at the log that found nothing newer came as early as possible, when the call began. So did a seal, which found
  its transactions open.
- Other answers stand where they arrived. A driver that was paused has them late.

An append that was never answered counts if a later one follows its entry, or if that is the newest at the end.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tests.campaigns.model.checks import Check
from tests.campaigns.model.recorder import Attempt, Event
from tests.campaigns.model.recording import SINKS, TAKE_OVER
from tests.campaigns.model.tlc import run_module
from tests.campaigns.model.traces import attempts_of, recorded_module
from twopc.log.commit_log import read_tail
from twopc.log.store import open_store

Record: TypeAlias = "Mapping[str, Any]"
Transaction: TypeAlias = "tuple[Attempt, str]"
"""An attempt, and a sink."""

_FORGET_EVERY = 8
"""Batches."""

_SHOWN = 40
"""Events before a rejected one."""

_NO_EVENTS = frozenset({"put", "appended", "attach", "pre-committed"})
"""Records that say what others mean. A put is an event if its entry was in the log."""

_NONE = (0, 0)
_NOBODY = Attempt(0, 0, 0, 0)
_STEP = re.compile(r'<<"is a step", 1, (\d+)>>')


@dataclass(frozen=True, slots=True)
class Observed:
    """What was observed of one query.

    Attributes:
        name: the query's name.
        sinks: its sinks, but for those that the specification lacks.
        end_by_themselves: those whose target systems may roll back a decided transaction.
        take_over: those in which a transaction ends what is open under its name.
    """

    name: str
    events: Sequence[Event]
    sinks: Sequence[str]
    end_by_themselves: frozenset[str]
    take_over: frozenset[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What TLC found. ``rejected``: the position of the first event that is no step, or None."""

    trace: Observed
    rejected: int | None

    def __str__(self) -> str:
        if self.rejected is None:
            return f"{self.trace.name}: accepted"
        events = self.trace.events
        before = events[max(0, self.rejected - _SHOWN) : self.rejected]
        lines = [f"{self.trace.name}: no step of the specification: {_shown(events[self.rejected])}", "after"]
        return "\n    ".join([*lines, *map(_shown, before)])


def _shown(event: Event) -> str:
    return str(event).replace("step ", "ms ", 1)


def read(name: str, records: Path, log: Path) -> Observed:
    """Return the trace of a query. ``records``: what its processes have recorded. ``log``: its commit log's folder."""
    lines = records.read_text(encoding="utf-8").splitlines()
    tail = read_tail(open_store(log))
    return observed(name, [json.loads(line) for line in lines], tail and tail[1].entry_id)


def observed(name: str, records: Sequence[Record], newest: str | None) -> Observed:
    """Return the trace of a query. ``newest``: the id of the entry that is the newest in its log now."""
    return _Reader(name, records, newest).read()


def checked(traces: Sequence[Observed], folder: Path) -> dict[str, Any]:
    """Check the traces of a campaign. Return their part of its report. ``folder``: one for TLC, which is emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    verdicts = [check(trace, folder / trace.name) for trace in traces]
    rejected = [str(verdict) for verdict in verdicts if verdict.rejected is not None]
    for text in rejected:
        print(f"trace rejected: {text}", flush=True)
    return {
        "traces_accepted": len(verdicts) - len(rejected),
        "traces_rejected": len(rejected),
        "trace_events": sum(len(trace.events) for trace in traces),
        "rejected_traces": rejected,
    }


def check(trace: Observed, folder: Path) -> Verdict:
    """Return TLC's verdict. ``folder``: an empty folder for its run.

    Raises:
        ValueError: the specification has no sink of the query.
    """
    if not trace.sinks:
        raise ValueError(f"{trace.name} has no sink that the specification has, or no driver has opened its log")
    fields = {"end_by_themselves": trace.end_by_themselves, "take_over": trace.take_over}
    sets = ", ".join(f"{name} |-> {_set(names)}" for name, names in fields.items())
    module = recorded_module([trace.events], lambda events: f"[events |-> {events}, {sets}]")
    lives = max((life for event in trace.events if isinstance(life := event.values.get("life"), int)), default=1)
    bounds = Check(lives=max(lives, 1), batches=1, kept=1_000_000)
    constants = ["CONSTANTS", "  Tasks = {}", f"  Sinks = {_set(trace.sinks)}", *bounds.numbers()]
    configuration = "\n".join(["SPECIFICATION ObservedSpec", *constants])
    outcome = run_module("observed", configuration, {"recorded": module}, folder, workers=1)
    steps = max(map(int, _STEP.findall(outcome.text)), default=0)
    return Verdict(trace, steps if steps < len(trace.events) else None)


def _set(names: Collection[str]) -> str:
    return f"{{{', '.join(f'{chr(34)}{name}{chr(34)}' for name in sorted(names))}}}"


@dataclass
class _Reader:
    """Makes events of records."""

    name: str
    records: Sequence[Record]
    newest: str | None
    _events: list[Event] = field(default_factory=list)
    _began: float = 0.0
    _sinks: Mapping[str, str] = field(default_factory=dict)
    _tasks: dict[tuple[int, int], int] = field(default_factory=dict)  # life and batch → how many
    _voted: dict[tuple[str, str], Transaction] = field(default_factory=dict)  # sink and key → transaction
    _decided: dict[int, str] = field(default_factory=dict)  # batch → what it read
    _undecided: dict[str, int] = field(default_factory=dict)  # what other batches read → a number
    _strangers: dict[tuple[str, str], Transaction] = field(default_factory=dict)
    _amended: set[tuple[str, str]] = field(default_factory=set)  # lost transactions that others have replaced
    _unresolved: Mapping[int, Record] = field(default_factory=dict)  # of the newest entry: batch → sinks → keys
    _asked: dict[int, list[tuple[str, str]]] = field(default_factory=dict)  # life → commits

    def read(self) -> Observed:
        attached = {name: kind for record in self._all("attach") for name, kind in record["sinks"].items()}
        votes = [vote for record in self._all("votes") for vote in record["votes"]]
        ours = {name: kind for name, kind in attached.items() if kind in SINKS.values()}
        self._sinks = {name: kind for name, kind in ours.items() if all(name in vote for vote in votes)}
        for record in self._all("votes"):
            for task, vote in enumerate(record["votes"]):
                attempt = Attempt(record["life"], record["batch"] + 1, task, 1)
                self._voted.update({(sink, key): (attempt, sink) for sink, key in vote.items()})
        self._count_tasks()
        entries = self._entries()
        for entry in reversed(entries):
            if entry["entry"] == "decide":
                self._decided[entry["decided"]] = _text(entry["reads"])
        others = [record for record in self.records if record["is"] not in _NO_EVENTS]
        self._began = min((record["at"] for record in self.records), default=0.0)
        for record in sorted([*entries, *others], key=lambda record: record["at"]):  # an entry before its answer
            if record["is"] == "put":
                self._entry(record)
            else:
                self._record(record)
        return Observed(
            self.name,
            _with_oblivion(self._events),
            sorted(self._sinks),
            frozenset(name for record in self._all("votes") for name in record["may_time_out"]) & self._sinks.keys(),
            frozenset(name for name, kind in self._sinks.items() if kind in TAKE_OVER),
        )

    def _count_tasks(self) -> None:
        """Count the tasks of each round: as many as have voted, according to the driver, or pre-committed, according to
        themselves. Spark's tasks are not recorded."""
        partitions: dict[tuple[int, int], set[int]] = {}
        for record in self._all("pre-committed"):
            partitions.setdefault((record["life"], record["batch"]), set()).add(record["partition"])
        self._tasks = {round: len(found) for round, found in partitions.items()}
        for record in self._all("votes"):
            round = record["life"], record["batch"]
            self._tasks[round] = max(len(record["votes"]), self._tasks.get(round, 0))

    def _all(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["is"] == kind]

    # The log. -------------------------------------------------------------------------------------------------------

    def _entries(self) -> Sequence[Record]:
        """Return the appends whose entries are or were in the log, at the moments at which they were there at last."""
        puts = {put["id"]: put for put in self._all("put")}
        known: dict[str, list[float]] = {}
        for appended in self._all("appended"):
            known.setdefault(appended["id"], []).append(appended["at"])
        for put in puts.values():
            if put["after"] is not None:
                known.setdefault(put["after"], []).append(put["at"])
        if self.newest is not None:
            known.setdefault(self.newest, []).append(max(record["at"] for record in self.records))
        found: list[dict[str, Any]] = [{**put, "at": min(known[name])} for name, put in puts.items() if name in known]
        found.sort(key=lambda put: (put["slot"], put["at"]))
        for fenced in [*self._all("fenced"), *self._all("fenced at rest")]:
            newer = next((put for put in found if put["by"] > fenced["life"]), None)
            if newer is not None:
                newer["at"] = min(newer["at"], fenced["at"])
        latest = float("inf")
        for put in reversed(found):
            put["at"] = latest = min(put["at"], latest)
        return found

    def _entry(self, put: Record) -> None:
        before, self._unresolved = self._unresolved, {d["batch"]: d["sinks"] for d in put["unresolved"]}
        reads = _NONE if put["decided"] is None else self._span(put["decided"], put["reads"])
        values: dict[str, Any] = {"life": put["by"], "reads": reads}
        match put["entry"]:
            case "open":
                self._add("open", put, **values, names=self._names())
            case "decide":
                self._add("decide", put, **values, batch=put["decided"] + 1, names=self._names())
            case "amend":
                self._amend(put, before)
            case "complete" | "close" as kind:
                self._add(kind, put, **values)
            case other:
                raise ValueError(f"an entry {other!r} is not in the specification")

    def _names(self) -> frozenset[Attempt]:
        """Return the attempts whose transactions an entry decides. Nobody is among them if their transactions in one
        sink are there and in another are not."""
        decisions = self._unresolved.values()
        of_sinks = [
            frozenset(self._asked_as(sink, key)[0] for decision in decisions for key in decision.get(sink, ()))
            for sink in self._sinks
        ]
        every = frozenset[Attempt]().union(*of_sinks)
        return every if all(of_sink == every for of_sink in of_sinks) else every | {_NOBODY}

    def _amend(self, put: Record, before: Mapping[int, Record]) -> None:
        for batch, sinks in self._unresolved.items():
            for sink in self._sinks:
                for lost, written in zip(before.get(batch, {}).get(sink, ()), sinks.get(sink, ()), strict=True):
                    if lost != written:
                        of = self._asked_as(sink, lost)
                        self._add("amend", put, life=put["by"], of=of, by=self._transaction(sink, written))
                        self._voted[sink, written] = of
                        self._amended.add((sink, lost))

    def _span(self, batch: int, reads: Any) -> tuple[int, int]:
        """Return what a batch reads, as the specification has it."""
        text = _text(reads)
        if self._decided.get(batch) == text:
            return (batch, batch + 1)
        number = 1_000_000 + 2 * self._undecided.setdefault(text, len(self._undecided))
        return (number, number + 1)

    # The other records. ---------------------------------------------------------------------------------------------

    def _record(self, record: Record) -> None:
        sink = record.get("sink")
        if sink is not None and sink not in self._sinks:
            return
        match record["is"]:
            case "run":
                self._run(record)
            case "votes":
                for task in range(len(record["votes"])):
                    attempt = Attempt(record["life"], record["batch"] + 1, task, 1)
                    self._add("vote", record, attempt=attempt)
            case "seal":
                self._seal(record)
            case "ask to commit" | "commit":
                self._asked.setdefault(record["life"], []).append((record["sink"], record["of"]))
                life = {"life": record["life"]} if record["is"] == "ask to commit" else {}
                self._add(record["is"], record, **life, of=self._asked_as(record["sink"], record["of"]))
            case "lost":
                self._lost(record)
            case kind:
                self._add(kind, record, **self._values(record))

    def _values(self, record: Record) -> dict[str, Any]:
        """Return the parameters of a step of a sweep, or of one that has none but its life and its sink."""
        sink = record.get("sink")
        match record["is"]:
            case "ask to abort":
                return {"life": record["life"], "of": self._transaction(record["sink"], record["of"])}
            case "abort":
                return {"of": self._transaction(record["sink"], record["of"])}
            case "listed":
                found = frozenset(self._transaction(record["sink"], key) for key in record["found"])
                return {"life": record["life"], "sink": sink, "found": found}
        return {"life": record["life"], **({} if sink is None else {"sink": sink})}

    def _seal(self, record: Record) -> None:
        given = [self._voted.get((record["sink"], key)) for key in record["of"]]
        if not given or any(given):  # else the driver seals what it has written again
            votes = frozenset(each[0] if each else _NOBODY for each in given)
            self._add("seal", record, life=record["life"], sink=record["sink"], votes=votes)

    def _run(self, record: Record) -> None:
        life, batch, follows = record["life"], record["batch"], record["follows"]
        tasks = range(self._tasks.get((life, batch), 0))
        self._add(
            "run",
            record,
            life=life,
            batch=batch + 1,
            reads=self._span(batch, record["reads"]),
            follows=_NONE if follows is None else self._span(batch - 1, self._completed(batch - 1, follows)),
            tasks=frozenset(tasks if record["what"] == "write" else ()),
            what=record["what"],
        )

    def _completed(self, batch: int, follows: Any) -> Any:
        """Return what a batch follows, with the parts that the caller does not know and need not."""
        decided = json.loads(self._decided.get(batch, "null"))
        if isinstance(decided, dict) and isinstance(follows, dict):
            return {**{key: value for key, value in decided.items() if key not in follows}, **follows}
        return follows

    def _lost(self, record: Record) -> None:
        name = record["transaction_id"]
        for sink, key in reversed(self._asked.get(record["life"], ())):
            if sink == record["sink"] and key.split("/")[0] == name:
                self._add("lost", record, life=record["life"], of=self._asked_as(sink, key))
                return

    def _transaction(self, sink: str, key: str) -> Transaction:
        if (sink, key) in self._voted and (sink, key) not in self._amended:
            return self._voted[sink, key]
        return self._strangers.setdefault((sink, key), (Attempt(0, 0, 1 + len(self._strangers), 1), sink))

    def _asked_as(self, sink: str, key: str) -> Transaction:
        """Return the transaction that is asked to be committed. A zombie may ask for a lost one."""
        return self._voted.get((sink, key)) or self._transaction(sink, key)

    def _add(self, kind: str, record: Record, **values: Any) -> None:
        self._events.append(Event(kind, round(1000 * (record["at"] - self._began)), values))


def _with_oblivion(events: Sequence[Event]) -> list[Event]:
    """Add events at which the specification forgets the attempts that no later event names, and entries of the log that
    no later batch is compared with."""
    last = {attempt: number for number, event in enumerate(events) for attempt in attempts_of([event])}
    earliest = _earliest_later_batch(events)
    result, known, decided = list[Event](), set[Attempt](), list[int]()  # by each entry: the newest batch
    for number, event in enumerate(events):
        result.append(event)
        known.update(attempts_of([event]))
        if event.kind == "open":
            decided.append(decided[-1] if decided else 0)
        elif event.kind == "decide":
            decided.append(int(str(event.values["batch"])))
            if decided[-1] % _FORGET_EVERY == 0:
                over = {attempt for attempt in known if last[attempt] < number}
                known -= over
                entries = sum(batch >= min(earliest[number], decided[-1]) for batch in decided)
                result.append(Event("forget", event.at, {"attempts": frozenset(over), "entries": entries}))
    return result


def _earliest_later_batch(events: Sequence[Event]) -> list[int]:
    """Return for each event the earliest batch that comes after it."""
    result, earliest = list[int](), sys.maxsize
    for event in reversed(events):
        result.append(earliest)
        if event.kind == "run":
            earliest = min(earliest, int(str(event.values["batch"])))
    return result[::-1]


def _text(reads: Any) -> str:
    return json.dumps(reads, sort_keys=True)
