"""Mutants: small defects put into the real code, each of which the simulation must catch.

A mutant replaces text in the source of one or more functions of the real code, in this process and for one run only.
One that survives says that the simulation lacks something.
"""

from __future__ import annotations
import __future__

import contextlib
import importlib
import inspect
import itertools
import json
import multiprocessing
import re
import time
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.campaigns.simulation.exploration import SMALL, Failure, in_turn, pairs, shortest, singles
from tests.campaigns.simulation.schedule import Result, Scenario, run_drawn, run_schedule, simulated
from tests.campaigns.simulation.world import Fault

SEEDS_AT_MOST = 10_000
"""Tried against a mutant that no single fault of its scenarios catches."""

SEARCHED_AT_MOST = 40_000

THEN_AT_MOST = 100
"""Characters of a violation in the table."""

ASLEEP = (Fault.SLEEP_SHORT, Fault.SLEEP_LONG, Fault.SLEEP_THROUGH, Fault.PREEMPT)
DEAD = (Fault.CRASH_BEFORE,)
BEHIND = (Fault.ONE_BEHIND,)
LOST = (Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.DELAYED)


@dataclass(frozen=True, slots=True)
class Edit:
    """``old`` becomes ``new`` in the source of ``where``: module, colon, qualified name."""

    where: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect.

    Attributes:
        name: what is wrong, in a few words.
        edits: the text that makes it so.
        scenarios: whose single faults are tried first; then faults of the kinds ``in_turn``; then pairs of the faults
            ``in_pairs``; then seeds.
    """

    name: str
    edits: tuple[Edit, ...]
    scenarios: tuple[Scenario, ...] = SMALL[:2]
    in_pairs: Container[Fault] = ()
    in_turn: tuple[Container[Fault], ...] = ()


COORDINATOR = "twopc.coordinator:Coordinator"
KAFKA = "twopc_kafka.sink:KafkaSink"
FILES = "twopc_files.stores.local:Local"
LOG = "twopc.log.commit_log"
SWEEP = "twopc.sweep"
LEASES = "twopc.leases"

PRUNED = Scenario(sinks="k", batches=3, partitions=(1,), rows_a_batch=1, entries_kept=1)
ON_DISK = Scenario(sinks="f", log="disk", partitions=(1,), rows_a_batch=1)
ONE = Scenario(sinks="k", partitions=(1,), rows_a_batch=1)
TWO = Scenario(sinks="k", partitions=(1,), rows_a_batch=1, batches=2)
BACKLOG = Scenario(sinks="kf", partitions=(1,), rows_a_batch=1, batches=2, backlog=True)
RECURRING = Scenario(sinks="k", partitions=(1,), rows_a_batch=1, batches=3, slots=2)
RESTING = Scenario(sinks="k", partitions=(1,), rows_a_batch=1, rests=True)
STAGED = Scenario(sinks="k", partitions=(1,), rows_a_batch=1, stage=True)

MUTANTS = (
    Mutant(
        "the decision comes before the seal",
        (
            Edit(
                f"{COORDINATOR}.run",
                "committables = self._seal(round, votes, started)",
                """import dataclasses
                self._enter(Phase.SEALING, batch_id)
                committables = {
                    name: tuple(
                        dataclasses.replace(
                            vote[name], handle={**vote[name].handle, "end_txn_version": 5, "partitions": {}}
                        )
                        for vote in votes
                        if name in vote
                    )
                    for name in self._sinks
                }""",
            ),
            Edit(
                f"{COORDINATOR}.run",
                "self._enter(Phase.COMMITTING, batch_id)",
                """for name, sink in self._sinks.items():
                sink.sealed(committables[name], started)
            self._enter(Phase.COMMITTING, batch_id)""",
            ),
        ),
    ),
    Mutant(
        "seal vetoes nothing",
        (Edit(f"{KAFKA}.seal", "if state is None or not _is_ongoing(", "if False and (state,"),),
    ),
    Mutant(
        "a commit comes before the decision",
        (
            Edit(
                f"{COORDINATOR}.run",
                "self._decide(Decision(round, committables), reads)",
                """for name, sink in self._sinks.items():
                for committable in committables[name]:
                    sink.commit(committable)
            self._decide(Decision(round, committables), reads)""",
            ),
        ),
    ),
    Mutant(
        "batches are committed out of order",
        (Edit(f"{COORDINATOR}._commit_through", "sorted(pending)", "sorted(pending, reverse=True)"),),
        (BACKLOG,),
    ),
    Mutant(
        "a decided batch is written again",
        (Edit("twopc.log.batch_identity:is_decided", "return batch_id == newest", "return False"),),
    ),
    Mutant(
        "phase two is left out",
        (Edit(f"{COORDINATOR}.run", "self._commit_through(batch_id, recovered=False)", "pass"),),
    ),
    Mutant(
        "recovery commits nothing",
        (Edit(f"{COORDINATOR}._attach", "self._commit_through(self._log.tail.decided, recovered=True)", "pass"),),
    ),
    Mutant(
        "the sweep after a batch is forgotten",
        (
            Edit(
                f"{COORDINATOR}.run",
                'self._until_answered(f"sweep after batch {batch_id}", self._sweep, False)',
                "",
            ),
        ),
    ),
    Mutant(
        "the sweep at recovery is forgotten",
        (Edit(f"{COORDINATOR}._open", 'self._until_started("sweep at recovery", self._sweep, True)', ""),),
    ),
    Mutant(
        "the sweep at a clean stop is forgotten",
        (Edit(f"{COORDINATOR}.close", 'self._until_started("sweep at the end", self._sweep, False)', ""),),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "the sweep does not read the log's tail again",
        (Edit(f"{SWEEP}:_undecided", "log.verify()", ""),),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "the sweep reads the log's tail before it lists",
        (
            Edit(f"{SWEEP}:_undecided", "log.verify()", ""),
            Edit(f"{SWEEP}:_undecided", "listed = list", "log.verify()\n    listed = list"),
        ),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "copies are removed without reading the log's tail again",
        (Edit(f"{SWEEP}:remove_copies", "log.verify()", ""),),
        (STAGED,),
        in_turn=((Fault.SLEEP_THROUGH,), (Fault.TIME_OUT,), (Fault.PREEMPT,)),
    ),
    Mutant(
        "the sweep does not look again after an abort",
        (Edit(f"{SWEEP}:_sweep_sink", "while (undecided", "if (undecided"),),
        (RECURRING,),
        in_turn=((Fault.DRIVER_DIES,), (Fault.MARKER_LEFT_OUT,)),
    ),
    Mutant(
        "the sweep does not wait for what is being rolled back",
        (Edit(f"{KAFKA}._hanging", "if not ending:", "if True:"),),
        (RECURRING,),
        in_pairs=(Fault.DELAYED, Fault.MARKER_LEFT_OUT_LATE),
    ),
    Mutant(
        "recovery sweeps before it commits, and spares nothing",
        (
            Edit(
                f"{COORDINATOR}._attach",
                "if self._log.tail.decided is not None:",
                """self._until_started("sweep at recovery", self._sweep, True)
        if self._log.tail.decided is not None:""",
            ),
            Edit(
                f"{SWEEP}:_undecided",
                "if not any(transaction.is_same_transaction",
                "if not any(False and transaction.is_same_transaction",
            ),
        ),
    ),
    Mutant(
        "an ambiguous append is followed by an abort",
        (
            Edit(
                f"{COORDINATOR}.run",
                "self._decide(Decision(round, committables), reads)",
                """try:
                self._decide(Decision(round, committables), reads)
            except Fenced:
                raise
            except Exception as error:
                self._roll_back(round, error)""",
            ),
        ),
        (ONE,),
        in_pairs=LOST,
    ),
    Mutant(
        "one commit that fails leaves the others undone",
        (
            Edit(
                f"{COORDINATOR}._attempt_commits",
                "return error\n            return None",
                "raise\n            return None",
            ),
        ),
        (Scenario(sinks="kf", partitions=(2,)),),
    ),
    Mutant(
        "a transaction that is lost is passed over",
        (Edit(f"{COORDINATOR}._attempt_commits", "raise worst_of(errors)", "pass"),),
    ),
    Mutant(
        "what is committed is committed again after a replay",
        (
            Edit(
                f"{COORDINATOR}._attempt_commits",
                "return self._replay(batch_id, lost)",
                "return [done for done in work if done not in lost] + self._replay(batch_id, lost)",
            ),
        ),
        (replace(STAGED, partitions=(2,), rows_a_batch=2),),
    ),
    Mutant(
        "a batch is complete before it is committed",
        (
            Edit(
                f"{COORDINATOR}._commit_batch",
                "while work",
                """for sink in self._sinks.values():
            sink.complete(batch_id, ())
        while work""",
            ),
        ),
    ),
    Mutant(
        "a marker that is missing of a commit is not written",
        (Edit(f"{KAFKA}.complete", "if open_.identity in names:", "if False:"),),
        (ONE,),
    ),
    Mutant(
        "what was rolled back and hangs is not swept",
        (Edit(f"{KAFKA}.recover", "else [*open_, *self._hanging()]", "else open_"),),
        (Scenario(sinks="k", partitions=(1,), rows_a_batch=1, orphans=True),),
    ),
    Mutant(
        "what hangs is ended at its coordinator and not in its partition",
        (Edit(f"{KAFKA}._abort", "isinstance(hanging := committable.handle.get(_HANGING), dict)", "False"),),
        (Scenario(sinks="k", partitions=(1,), rows_a_batch=1, orphans=True),),
    ),
    Mutant(
        "a batch without transactions is never complete",
        (
            Edit(
                f"{COORDINATOR}._remember",
                "sink.pending.add(",
                "decision.committables.get(name) and sink.pending.add(",
            ),
        ),
        (Scenario(sinks="kf", rows_a_batch=0),),
    ),
    Mutant(
        "a staged copy is removed before its batch is committed",
        (
            Edit(f"{SWEEP}:remove_copies", "if name not in needed:", "if True:"),
            Edit(
                f"{COORDINATOR}._attach",
                "if self._log.tail.decided is not None:",
                """self._until_started("sweep at recovery", self._sweep, True)
        if self._log.tail.decided is not None:""",
            ),
        ),
        (STAGED,),
        in_pairs=(Fault.TIME_OUT, Fault.CRASH_AFTER, Fault.CRASH_BEFORE),
    ),
    Mutant(
        "what is written again is not in the log",
        (Edit(f"{COORDINATOR}._replay", "self._log.amend(Decision(decision.round, committables))", "pass"),),
        (STAGED,),
    ),
    Mutant(
        "open fences nobody",
        (
            Edit(
                f"{LOG}:CommitLog.open",
                "            try:\n",
                "            if tail is not None:\n"
                "                from dataclasses import replace\n"
                "                return cls(store, slot, replace(tail, incarnation=tail.incarnation + 1))\n"
                "            try:\n",
            ),
        ),
    ),
    Mutant(
        "open carries nothing forward",
        (Edit(f"{LOG}:opened", 'return _next(tail, "open",', 'return _next(tail, "open", unresolved=(),'),),
    ),
    Mutant(
        "a slot that is taken counts as written",
        (Edit(f"{LOG}:_put", "raise _fenced(store, slot, entry) from None", "return entry"),),
    ),
    Mutant(
        "the entry before an append is not looked at",
        (
            Edit(
                f"{LOG}:_append",
                "if not (_is_alone(store, slot) if after is None else _at(store, slot - 1, after)):",
                "if False:",
            ),
        ),
        (PRUNED,),
    ),
    Mutant(
        "a lost reply of an append counts as success",
        (
            Edit(
                f"{LOG}:_put", "raise _in_doubt(store, slot, unknown.__cause__) from unknown.__cause__", "return entry"
            ),
        ),
        (ONE,),
        in_pairs=LOST,
    ),
    Mutant(
        "no reply to an append counts as failure",
        (
            Edit(
                f"{LOG}:_append",
                "entry = _put(store, slot, entry)",
                """try:
        _put_once(store, slot, entry)
    except _UnknownOutcome as unknown:
        raise _fenced(store, slot, entry) from unknown""",
            ),
        ),
    ),
    Mutant(
        "an entry that was written after all is taken for another's",
        (Edit(f"{LOG}:_put", "_at(store, slot, *tried)", "_at(store, slot, tried[-1])"),),
        (ONE,),
        in_pairs=LOST,
    ),
    Mutant(
        "the log is pruned newest first",
        (Edit(f"{LOG}:_prune", "for slot in store.slots():", "for slot in reversed(store.slots()):"),),
        (replace(PRUNED, entries_kept=2),),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "the tail is read without a second look",
        (Edit(f"{LOG}:read_tail", "if store.slots()[-1:] == [newest]:", "if True:"),),
        (PRUNED,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "an entry of the log overwrites another",
        (
            Edit(
                "twopc.log.store:LocalStore.put_if_absent",
                "os.link(aside, self._folder / entry_name(slot))",
                "aside.rename(self._folder / entry_name(slot))",
            ),
        ),
        (ON_DISK,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "the log's folder is not synced",
        (Edit("twopc.log.store:LocalStore._sync", "sync_folder(self._folder)", "pass"),),
        (ON_DISK,),
    ),
    Mutant(
        "an entry of the log is not synced",
        (Edit("twopc.log.store:LocalStore._written_aside", "os.fsync(file.fileno())", "pass"),),
        (ON_DISK,),
    ),
    Mutant(
        "a staged file is not synced",
        (Edit(f"{FILES}File.made_durable", "os.fsync(file.fileno())", "pass"),),
    ),
    Mutant(
        "the staging folder is not synced",
        (Edit(f"{FILES}.sync_staging", "sync_folder(self._staging)", "pass"),),
    ),
    Mutant(
        "a committed file's name is not synced",
        (
            Edit(f"{FILES}.settle", "sync_folder(folder)", "pass"),
            Edit(f"{FILES}.settle", "sync_folder(self._staging)", "pass"),
        ),
    ),
    Mutant(
        "a file that was committed before is not synced again",
        (
            Edit(
                "twopc_files.sink:FileSink._failure",
                "            published = True\n",
                "            else:\n                return None\n            published = True\n",
            ),
        ),
        (ON_DISK,),
        in_pairs=(Fault.CRASH_AFTER, Fault.POWER_CUT),
    ),
    Mutant(
        "FENCED counts as committed",
        (
            Edit(
                f"{KAFKA}.commit",
                "match ANSWERS.get(error, Answer.DESCRIBE):",
                'match Answer.DONE if error == "PRODUCER_FENCED" else ANSWERS.get(error, Answer.DESCRIBE):',
            ),
        ),
        (Scenario(sinks="k", end_txn_version=4),),
    ),
    Mutant(
        "CompleteAbort counts as committed",
        (Edit("twopc_kafka.sink:outcome", "return Outcome.ROLLED_BACK", "return Outcome.COMMITTED"),),
    ),
    Mutant(
        "no answer to a commit counts as committed",
        (
            Edit(
                f"{KAFKA}.commit",
                "error = self._control.end(name, *identity, commit=True, version=version)",
                "try:\n"
                "            error = self._control.end(name, *identity, commit=True, version=version)\n"
                "        except Retriable:\n"
                "            return",
            ),
        ),
    ),
    Mutant(
        "a word of the past ends the query",
        (
            Edit(
                f"{KAFKA}._state",
                "self._control.describe_proven([name], self.transactional_ids.scope)",
                "self._control.describe([name])",
            ),
        ),
        (ONE,),
    ),
    Mutant(
        "an attempt takes a name that a newer round has",
        (Edit(f"{LEASES}:next_use", "if last.round >= round:", "if last.round == round:"),),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "an attempt takes a name that its own round has",
        (Edit(f"{LEASES}:next_use", "if last.round >= round:", "if last.round > round:"),),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a name of which a begin was sent and not answered is used again",
        (Edit(f"{LEASES}:next_use", " or not last.is_answered", ""),),
        (replace(ONE, late_begin=True),),
    ),
    Mutant(
        "a name whose last transaction was rolled back is used again",
        (Edit(f"{KAFKA}.begin", "lease.was_used", "False"),),
        (ONE,),
        in_turn=((Fault.CRASH_BEFORE,), ASLEEP, (Fault.MARKER_LEFT_OUT,)),
    ),
    Mutant(
        "a name is used again after a power cut",
        (Edit(f"{LEASES}:next_use", " or last.boot != boot", ""),),
        (replace(TWO, machines=2),),
        in_turn=((Fault.MACHINE_DIES_IN_FLIGHT,), (Fault.PREEMPT,)),
    ),
    Mutant(
        "a name is not locked while it is taken",
        (Edit(f"{LEASES}:lease", "use = next_use(", "slot.close()\n            use = next_use("),),
        (TWO,),
        in_pairs=(Fault.STAGE_RETRY, *ASLEEP),
    ),
    Mutant(
        "what is written again has the name of what is committed",
        (Edit(f"{KAFKA}.begin", "transaction_id.replay > 0", "False"),),
        (replace(STAGED, partitions=(2,), rows_a_batch=3, backlog=True),),
        in_turn=((Fault.TIME_OUT,), (Fault.SLEEP_THROUGH,)),
    ),
    Mutant(
        "a batch has the names of the batch before",
        (Edit(f"{LEASES}:Lease.__init__", "use.round[1] % BATCH_SLOTS", "0"),),
        (TWO,),
    ),
    Mutant(
        "a decided batch that comes again is not compared",
        (
            Edit(
                "twopc.log.batch_identity:require_same_reads",
                "if found := list(differences(decided, now)):",
                "if False:",
            ),
        ),
        (TWO,),
        in_turn=(DEAD, BEHIND),
    ),
    Mutant(
        "a new batch may follow another than was decided",
        (Edit("twopc.log.batch_identity:_require_same_end", "if decided is None or now is None", "if True"),),
        (replace(TWO, runs=1),),
        in_turn=(DEAD, (Fault.PLAN_LOST,), DEAD),
    ),
    *(
        Mutant(
            f"what a batch read is not carried on by '{kind}'",
            (Edit(f"{LOG}:{function}", old, new),),
            (scenario,),
            in_turn=in_turn,
        )
        for kind, function, old, new, scenario, in_turn in (
            ("decide", "decided", "reads=reads", "reads=None", ONE, (DEAD, BEHIND)),
            (
                "open",
                "opened",
                'return _next(tail, "open",',
                'return _next(tail, "open", reads=None,',
                ONE,
                (DEAD, BEHIND),
            ),
            ("complete", "completed", "unresolved=()", "unresolved=(), reads=None", replace(RESTING, runs=2), ()),
            ("close", "closed", "unresolved=()", "unresolved=(), reads=None", replace(ONE, runs=2), ()),
            (
                "amend",
                "amended",
                "unresolved=unresolved",
                "unresolved=unresolved, reads=None",
                STAGED,
                ((Fault.TIME_OUT,), DEAD, BEHIND),
            ),
        )
    ),
    Mutant(
        "a query that rests sweeps without reading the log's tail again",
        (
            Edit(
                f"{COORDINATOR}.rest",
                "self._sweep(recovered=False)",
                "[sink.abort(each) for sink in self._sinks.values() for each in sink.recover()]",
            ),
        ),
        (replace(RESTING, batches=2),),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a query that rests does not sweep",
        (Edit(f"{COORDINATOR}.rest", "self._sweep(recovered=False)", "pass"),),
        (RESTING,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a query that rests does not record that all is committed",
        (Edit(f"{COORDINATOR}.rest", "self._log.complete()", "pass"),),
        (RESTING,),
    ),
    Mutant(
        "a query rests amid a batch that has failed",
        (Edit(f"{COORDINATOR}.rest", "if self._phase is Phase.IDLE:", 'if hasattr(self, "_log"):'),),
        (RESTING,),
    ),
    Mutant(
        "one partition's vote is left out of the decision",
        (
            Edit(
                f"{COORDINATOR}._seal",
                "[vote[name] for vote in votes if name in vote]",
                "[vote[name] for vote in votes[:2] if name in vote]",
            ),
        ),
        (Scenario(sinks="k", partitions=(3,)),),
    ),
)


@dataclass(frozen=True, slots=True)
class Catch:
    """How a mutant was caught: by a schedule that does no harm to the code as it is."""

    mutant: Mutant
    tried: int
    failure: Failure


def catch(mutant: Mutant) -> Catch | None:
    """Look for a schedule that catches ``mutant``. Within ``simulated``."""
    candidates = enumerate(_candidates(mutant), 1)
    while True:
        with applied(mutant):
            found = next(((tried, result) for tried, result in candidates if result.violation), None)
            if found is None:
                return None
            tried, result = found
            failure = shortest(result.scenario, result)
        if run_schedule(failure.scenario, failure.schedule).violation is None:
            return Catch(mutant, tried, failure)


def _candidates(mutant: Mutant) -> Iterator[Result]:
    for scenario in mutant.scenarios:
        for schedule in ({}, *singles(scenario)):
            yield run_schedule(scenario, schedule)
    for scenario in mutant.scenarios:
        for searched in (in_turn(scenario, mutant.in_turn), pairs(scenario, only=mutant.in_pairs)):
            for chosen in itertools.islice(searched, SEARCHED_AT_MOST):
                yield run_schedule(scenario, chosen)
    for seed in range(SEEDS_AT_MOST):
        for scenario in mutant.scenarios:
            yield run_drawn(scenario, seed)


@contextlib.contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Put the defect into the code, for a while."""
    undo = []
    sources: dict[str, str] = {}
    try:
        for edit in mutant.edits:
            owner, name, original = _found(edit.where)
            undo.append((owner, name, original))
            setattr(owner, name, _edited(original, name, edit, sources))
        yield
    finally:
        for owner, name, original in reversed(undo):
            setattr(owner, name, original)


def _found(where: str) -> tuple[Any, str, Any]:
    module, qualified = where.split(":")
    owner: Any = importlib.import_module(module)
    *outer, name = qualified.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name, inspect.getattr_static(owner, name)


def _edited(original: Any, name: str, edit: Edit, sources: dict[str, str]) -> Any:
    function = getattr(original, "__func__", None) or getattr(original, "fget", None) or original
    function = inspect.unwrap(function)
    source = sources.get(edit.where) or inspect.getsource(function)
    if edit.old not in source:
        raise LookupError(f"{edit.where} has no {edit.old!r}: the code has changed, so change its mutant")
    sources[edit.where] = source = source.replace(edit.old, edit.new, 1)
    whole = f"if True:\n{source}" if source.startswith(" ") else source
    scope: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(whole, function.__code__.co_filename, "exec", flags), function.__globals__, scope)  # noqa: S102
    return scope[name]


CAUGHT = Path(__file__).with_name("caught.json")
"""Mutant → the schedule that caught it last, written by ``make mutants``. Steps move when the code does; then the
mutant is searched for anew."""


def recorded() -> dict[str, Failure]:
    """What stands in ``caught.json``."""
    return {
        name: Failure(
            _scenario(row["scenario"]),
            {int(step): Fault[fault] for step, fault in row["schedule"].items()},
            row["violation"],
        )
        for name, row in json.loads(CAUGHT.read_text()).items()
    }


def _scenario(row: dict[str, Any]) -> Scenario:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return Scenario(**fields)


def is_caught_by(mutant: Mutant, known: Failure) -> bool:
    """Whether a schedule catches ``mutant`` and does no harm to the code as it is."""
    with applied(mutant):
        violation = run_schedule(known.scenario, known.schedule).violation
    return violation is not None and run_schedule(known.scenario, known.schedule).violation is None


def main(report: Path) -> int:
    """Catch every mutant, and write the tables: for programs the report, for the tests ``caught.json``."""
    started = time.monotonic()
    for mutant in MUTANTS:
        with applied(mutant):
            """The code is there that each of them changes."""
    caught = []
    with multiprocessing.Pool() as pool:
        for number, one in enumerate(pool.imap(_catch_alone, range(len(MUTANTS)), chunksize=1), 1):
            verdict = f"caught after {one.tried} schedules" if one else "SURVIVES"
            print(f"{number} of {len(MUTANTS)}: {verdict}: {MUTANTS[number - 1].name}", flush=True)
            caught.append(one)
    rows = {
        one.mutant.name: {
            "where": one.mutant.edits[0].where,
            "schedule": {step: fault.name for step, fault in sorted(one.failure.schedule.items())},
            "scenario": asdict(one.failure.scenario),
            "violation": one.failure.violation,
            "schedules_tried": one.tried,
        }
        for one in caught
        if one
    }
    survivors = [mutant.name for mutant in MUTANTS if mutant.name not in rows]
    CAUGHT.write_text(json.dumps(rows, indent=1) + "\n")
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps({"mutants": rows, "survivors": survivors}, indent=1))
    for one in filter(None, caught):
        print(_row(one))
    for name in survivors:
        print(f"SURVIVES {name}")
    print(f"{len(rows)} of {len(MUTANTS)} mutants caught in {time.monotonic() - started:.0f} s; {report}")
    return 1 if survivors else 0


_NAMED = re.compile(r"(transaction )?(\('twopc\.[^()]*\)|(part-[0-9-]*)?twopc[\w.-]+(?<![.,]))")


def _row(one: Catch) -> str:
    """Of the table in ``docs/simulation.md``."""
    scenario, faults = one.failure.scenario, sorted(one.failure.schedule.items())
    marks = [scenario.sinks, f"{scenario.batches}\u00d7{max(scenario.partitions)}"]
    marks += ["disk"] if scenario.log == "disk" else []
    marks += [name for name, holds in (("staged", scenario.stage), ("backlog", scenario.backlog)) if holds]
    marks += ["orphans"] if scenario.orphans else []
    schedule = ", ".join(f"{step} {fault.name}" for step, fault in faults) or "no fault"
    violation = _NAMED.sub("a transaction", one.failure.violation)
    then = violation if len(violation) <= THEN_AT_MOST else f"{violation[:THEN_AT_MOST]} …"
    where = one.mutant.edits[0].where.split(":")[1]
    return f"| {one.mutant.name} | `{where}` | {schedule} ({', '.join(marks)}) | {then} |"


def _catch_alone(number: int) -> Catch | None:
    with simulated():
        return catch(MUTANTS[number])
