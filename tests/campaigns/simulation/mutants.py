"""Mutants: small defects in the real code, each of which the simulation must catch.

A mutant redirects calls of one or more functions of the real code, in this process and for one run only. A mutant that
survives shows a gap in the simulation.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from tests.campaigns.seams import Seam, nothing, returning
from tests.campaigns.simulation.database_model import ModelTables, Row
from tests.campaigns.simulation.exploration import FAILING, SMALL
from tests.campaigns.simulation.scenario import Scenario
from tests.campaigns.simulation.table_model import COMMIT, REMOVE, Change, Conflict, Made, SimulatedTableSink, Version
from tests.campaigns.simulation.world import Fault
from twopc import effects, protocol, sweep
from twopc.commits import CommitCall, _Once
from twopc.coordinator import Coordinator
from twopc.effects import FailedCommit, Life, LogView, Steps
from twopc.errors import Fenced, InDoubt, Retriable, TransactionLost, TwoPhaseCommitError
from twopc.log import steps
from twopc.log.entries import Decision, Entry, Repetition
from twopc.pending import PendingTransactions
from twopc.phases import Phase
from twopc.stores.disk import sync_folder
from twopc.transaction import Committable
from twopc.transactional_ids import Round
from twopc_files.stores.local import Local
from twopc_kafka import leases
from twopc_kafka.answers import Outcome
from twopc_kafka.leases import Use
from twopc_sql.sink import SqlSink

ASLEEP = (Fault.SLEEP_SHORT, Fault.SLEEP_LONG, Fault.SLEEP_THROUGH, Fault.PREEMPT)
DEAD = (Fault.CRASH_BEFORE,)
BEHIND = (Fault.ONE_BEHIND,)
LOST = (Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.DELAYED)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect.

    Attributes:
        name: the defect, in a few words.
        seams: the redirected calls that cause it.
        scenarios: the scenarios to try: first their single faults, then faults of the kinds ``in_turn``, then pairs of
            the faults ``in_pairs``, then seeds.
        in_pairs: the faults to try in pairs.
        in_turn: the kinds of faults to try one after the other.
    """

    name: str
    seams: tuple[Seam, ...]
    scenarios: tuple[Scenario, ...] = SMALL[:2]
    in_pairs: Container[Fault] = ()
    in_turn: tuple[Container[Fault], ...] = ()


COORDINATOR = "twopc.coordinator:Coordinator"
PROTOCOL = "twopc.protocol"
REPETITION = "twopc.repetition"
LOG = "twopc.log.steps"
LEASES = "twopc_kafka.leases"
SWEEP = "twopc.sweep"
KAFKA = "twopc_kafka.sink:KafkaSink"
HANGING = "twopc_kafka.hanging:Hanging"
BROKER = "tests.campaigns.simulation.kafka_model:ModelControl"
FILES = "twopc_files.stores.local:Local"
SYSTEM = "tests.campaigns.simulation.disk:OperatingSystem"
CALLS = "twopc.commits:calls_of"
TABLE = "tests.campaigns.simulation.table_model:SimulatedTableSink"
SQL = "twopc_sql.sink:SqlSink"
CHANGES = "changes"

PRUNED = Scenario(sinks="k", batches=3, partitions=(1,), rows_a_batch=1, entries_kept=1)
ON_DISK = Scenario(sinks="f", log="disk", partitions=(1,), rows_a_batch=1)
ONE = Scenario(sinks="k", partitions=(1,), rows_a_batch=1)
TWO = Scenario(sinks="k", partitions=(1,), rows_a_batch=1, batches=2)
BACKLOG = Scenario(sinks="kf", partitions=(1,), rows_a_batch=1, batches=2, backlog=True)
RECURRING = Scenario(sinks="k", partitions=(1,), rows_a_batch=1, batches=3, slots=2)
RESTING = Scenario(sinks="k", partitions=(1,), rows_a_batch=1, rests=True)
STAGED = Scenario(sinks="k", partitions=(1,), rows_a_batch=1, stage=True)
WHOLE = Scenario(sinks="t", rows_a_batch=2)
WHOLES = Scenario(sinks="t", partitions=(1,), rows_a_batch=1, batches=2)
TORN = replace(WHOLE, stage=True)
JOINT = replace(WHOLES, sinks="tt", joint=True)
KEYED = Scenario(sinks="d", partitions=(1,), rows_a_batch=2, batches=2)
RECOMPUTED = Scenario(sinks="k", partitions=(1, 2), rows_a_batch=2, recompute=True)
PROGRESS = Scenario(sinks="pk", partitions=(1,), rows_a_batch=1, recompute=True)


# Replacements, each with one defect. The first argument is the real function. -----------------------------------------


def _sealed_unseen(_: Any, life: Life, __: Round, votes: Sequence[Any]) -> Steps[Any]:
    """Seal nothing."""
    yield from nothing_done()
    unseen = {"end_txn_version": 5, "partitions": {}}
    return {
        name: tuple(replace(vote[name], handle={**vote[name].handle, **unseen}) for vote in votes if name in vote)
        for name in life.members
    }


def _never_counted(_: Any, __: Entry, error: Exception, *___: Any) -> Steps[Exception]:
    yield from nothing_done()
    return error


def _newest_alone(real: Any, before: Repetition | None, *now: Any, **passes: Any) -> Repetition:
    newest: Repetition = real(before and replace(before, others=(), starts=0), *now, **passes)
    return newest


def _two_votes_sealed(real: Any, life: Life, round: Round, votes: Sequence[Any]) -> Any:
    return real(life, round, votes[:2])


def _decided_then_sealed(real: Any, life: Life, decision: Decision, offer: Any) -> Steps[None]:
    yield from real(life, decision, offer)
    for name, committables in decision.committables.items():
        yield effects.Seal("seal", name, committables)


def _committed_then_decided(real: Any, life: Life, decision: Decision, offer: Any) -> Steps[None]:
    yield effects.Commit(decision.batch_id, decision.committables, False, "query")
    yield from real(life, decision, offer)


def _decided_or_aborted(real: Any, life: Life, decision: Decision, offer: Any) -> Steps[None]:
    try:
        yield from real(life, decision, offer)
    except Fenced:
        raise
    except Exception as error:  # noqa: BLE001  # the defect
        yield from protocol.roll_back(life, decision.round, error)


def _settled(life: Life, batch_id: int, wave: Sequence[str], recovered: bool, offer: Any) -> Steps[None]:
    yield from protocol.commit(life, batch_id, wave, recovered, offer)
    for name in wave:
        yield effects.Complete(name, batch_id, life.pending[batch_id].get(name, ()))


def _newest_first(_: Any, life: Life, *, recovered: bool, offer: Any = None) -> Steps[None]:
    for batch_id in reversed([*life.pending]):
        yield from _settled(life, batch_id, [*life.pending[batch_id]], recovered, offer)
        for name in life.members:
            life.pending.complete(batch_id, name)
        life.pending.settle(batch_id)


def _beside_the_others(_: Any, life: Life, *, recovered: bool, offer: Any = None) -> Steps[None]:
    for batch_id in life.pending:
        wave = [*life.pending[batch_id]]
        yield from _settled(life, batch_id, wave, recovered, offer)
        for name in wave:
            life.pending.complete(batch_id, name)
        life.pending.settle(batch_id)


def _where_it_was_completed(_: Any, life: Life, *, recovered: bool, offer: Any = None) -> Steps[None]:
    for batch_id in life.pending:
        for last in (False, True):
            wave = [name for name, member in life.members.items() if member.commits_last is last]
            yield from _settled(life, batch_id, wave, recovered, offer)
            for name in wave:
                life.pending.complete(batch_id, name)
        life.pending.settle(batch_id)


def nothing_done(*_: Any, **__: Any) -> Steps[None]:
    """Replace steps by none."""
    yield from ()


def _forgotten(_: Any, life: Life, **__: Any) -> Steps[None]:
    """Take what is pending for committed."""
    yield from ()
    life.pending = PendingTransactions()


def _unless_empty(real: Any, self: PendingTransactions, batch_id: int, parts: Any) -> None:
    if filled := {name: of_sink for name, of_sink in parts.items() if of_sink}:
        real(self, batch_id, filled)


def _log_read_first(_: Any, life: Life, name: str) -> Steps[list[Committable]]:
    yield from steps.verify(life.log)
    listed = yield effects.List(name)
    spared = [c for d in life.tail.unresolved for of_sink in d.committables.values() for c in of_sink]
    return [each for each in listed if not any(each.is_same_transaction(one) for one in spared)]


def _swept_first(real: Any, life: Life, **named: Any) -> Steps[None]:
    if life.pending:
        yield effects.Repeat("sweep at recovery", lambda: sweep.sweep(life, recovered=True))
    yield from real(life, **named)


def _swept_once(_: Any, life: Life, name: str, __: bool) -> Steps[None]:
    for transaction in (yield from sweep.undecided(life, name)):
        yield effects.Abort(name, transaction)


def _first_failure_raised(*_: Any) -> Callable[..., Any]:
    def each(call: Any, arguments: Sequence[Any]) -> Any:
        for argument in arguments:
            if isinstance(result := call(argument), FailedCommit):
                raise result.error
            yield result

    return each


def _loss_passed_over(real: Any, *arguments: Any, **named: Any) -> None:
    with contextlib.suppress(TransactionLost):
        real(*arguments, **named)


def _whole_batch_again(real: Any, life: Life, batch_id: int, replaced: Any) -> Steps[Any]:
    yield from real(life, batch_id, replaced)
    return life.pending[batch_id]


def _completed_then_committed(real: Any, life: Life, batch_id: int, *rest: Any, **named: Any) -> Steps[None]:
    for name in life.members:
        yield effects.Complete(name, batch_id, ())
    yield from real(life, batch_id, *rest, **named)


def _announced_then_committed(real: Any, life: Life, **named: Any) -> Steps[None]:
    for batch_id in life.pending:
        yield from protocol.announce(life, batch_id)
    yield from real(life, **named)


_LOST: dict[int, Any] = {}
"""Batch → the committables of its decision, before one was amended."""


def _forgetting_none(real: Any, life: Life, batch_id: int, replaced: Any) -> Any:
    _LOST[batch_id] = life.decision(batch_id).committables
    return real(life, batch_id, replaced)


def _announced_as_decided(_: Any, life: Life, batch_id: int) -> Steps[None]:
    for name in life.members:
        committed = _LOST.pop(batch_id, None) or life.decision(batch_id).committables
        yield effects.Announce(name, batch_id, committed, {})


def _all_copies_removed(_: Any, life: Life) -> Steps[None]:
    for name in [name for name, member in life.members.items() if member.has_copies]:
        for copy in (yield effects.ListCopies(name)):
            yield effects.RemoveCopy(name, copy)


def _swept_blindly(_: Any, life: Life, **__: bool) -> Steps[None]:
    for name in life.members:
        for transaction in (yield effects.List(name)):
            yield effects.Abort(name, transaction)


def _rested_in_any_phase(real: Any, self: Coordinator) -> None:
    if self.incarnation is None:
        real(self)
        return
    phase, life = self.phase, self._performer.life
    pending, life.pending = life.pending, PendingTransactions()
    self._performer.phase = Phase.IDLE
    try:
        real(self)
    finally:
        self._performer.phase, life.pending = phase, pending


def _opened_alone(real: Any, url: str, owner: str, prefixes: Any) -> Steps[LogView]:
    if newest := (yield from steps.read_tail()):
        slot, tail = newest
        return LogView(url, slot, replace(tail, incarnation=tail.incarnation + 1))
    return (yield from real(url, owner, prefixes))  # type: ignore[no-any-return]  # the real function's result


def _without(**fields: Any) -> Callable[..., Any]:
    """Return a replacement that changes these fields of the entry."""
    return lambda real, *arguments: replace(real(*arguments), **fields)


def _put_although(error: type[Exception]) -> Callable[..., Any]:
    """Return a replacement that counts an entry as written if the append raised ``error``."""

    def put(real: Any, url: str, slot: int, entry: Entry) -> Steps[Entry]:
        try:
            return (yield from real(url, slot, entry))  # type: ignore[no-any-return]  # the real function's result
        except error:
            return entry

    return put


def _put_or_fenced(_: Any, url: str, slot: int, entry: Entry) -> Steps[Entry]:
    try:
        return (yield from steps._put_once(slot, entry))
    except (FileExistsError, steps._UnknownOutcome) as unknown:
        raise steps._fenced(url, slot, entry) from unknown


def _pruned_newest_first(_: Any, __: str, tail: int, kept: int) -> Steps[None]:
    with contextlib.suppress(Exception):
        for slot in reversed((yield effects.Slots())):
            if slot < tail - kept:
                yield effects.DeleteSlot(slot)


def _read_once(_: Any) -> Steps[tuple[int, Entry] | None]:
    while slots := (yield effects.Slots()):
        entry = yield effects.ReadSlot(slots[-1])
        if entry is not None:
            return slots[-1], entry
    return None


def _found(*_: Any) -> Steps[bool]:
    """Find whatever is looked for."""
    yield from ()
    return True


class _WasThere(TwoPhaseCommitError):
    """The file was committed before."""


def _published_or_raised(real: Any, *arguments: Any) -> bool:
    if not real(*arguments):
        raise _WasThere
    return True


def _unless_it_was_there(real: Any, *arguments: Any) -> Any:
    failure = real(*arguments)
    return None if isinstance(failure, _WasThere) else failure


def _own_folder_synced(_: Any, store: Local) -> None:
    sync_folder(store.folder)


def _fenced_is_committed(real: Any, *arguments: Any, commit: bool, version: int) -> str:
    error: str = real(*arguments, commit=commit, version=version)
    return "NO_ERROR" if commit and error == "PRODUCER_FENCED" else error


def _silence_is_committed(real: Any, *arguments: Any, commit: bool, version: int) -> str:
    try:
        error: str = real(*arguments, commit=commit, version=version)
    except Retriable:
        if commit:
            return "NO_ERROR"
        raise
    return error


def _asked_is_committed(real: Any, self: Any, committables: Sequence[Committable]) -> list[str]:
    real(self, committables)
    return [committable.transaction_id for committable in committables]


def _rolled_back_is_committed(real: Any, *arguments: Any) -> Outcome:
    found: Outcome = real(*arguments)
    return Outcome.COMMITTED if found is Outcome.ROLLED_BACK else found


def _aborted_at_its_coordinator(real: Any, self: Any, committable: Committable) -> None:
    handle = {name: value for name, value in committable.handle.items() if name != "hanging"}
    real(self, replace(committable, handle=handle))


def _last_use(changed: Callable[[Use, str, Any], Use]) -> Callable[..., Any]:
    """Return a replacement that sees a changed last use of the name."""
    return lambda real, last, boot, now: real(last and changed(last, boot, now), boot, now)


def _forgotten_if(is_forgotten: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    """Return a replacement that takes the last use for one of a round long ago."""
    return _last_use(lambda last, _, now: replace(last, round=(0, 0)) if is_forgotten(last.round, now) else last)


def _unlocked(real: Any, pool: str, number: int) -> Any:
    if slot := real(pool, number):
        slot.close()
    return slot


def _taken_for_new(real: Any, self: Any, pool: str, use: Use, slot: Any, **_: bool) -> None:
    real(self, pool, use, slot)


def _in_first_slot(real: Any, self: leases.Lease, pool: str, use: Use, *rest: Any, **named: Any) -> None:
    real(self, pool, use, *rest, **named)
    self.name = f"{pool}{use.token}.0"


def _overwriting(_: Any, __: Any, source: Any, target: Any) -> None:
    source.rename(target)


def _one_by_one(_: Any, self: SimulatedTableSink, batch_id: int, committables: Sequence[Committable]) -> list[Any]:
    name = self.transactional_ids.sink
    return [CommitCall(name, (each,), partial(self.commit_batch, batch_id, [each])) for each in committables]


def _first_left_out(real: Any, life: Life, decision: Decision) -> None:
    fewer = {name: of_sink[1:] for name, of_sink in decision.committables.items()}
    real(life, Decision(decision.round, fewer))


def _under_newest_number(real: Any, self: SimulatedTableSink, _: int, committables: Sequence[Committable]) -> Any:
    return real(self, max(self.pending), committables)


def _first_lost_replayed(real: Any, life: Life, batch_id: int, lost: Any) -> Any:
    return real(life, batch_id, {name: of_sink[:1] for name, of_sink in lost.items()})


def _whatever_is_there(_: Any, lost: Committable, votes: Sequence[Committable]) -> Committable:
    return votes[0]


def _as_before_the_decision(real: Any, self: Any, round: Round, *arguments: Any) -> Any:
    return real(self, replace(round, replay=0), *arguments)


def _part_committed_after_replay(real: Any, life: Life, batch_id: int, replaced: Any) -> Steps[Any]:
    return {name: of_sink[:1] for name, of_sink in (yield from real(life, batch_id, replaced)).items()}


def _amended_then_old(real: Any, life: Life, batch_id: int, replaced: Any) -> Steps[Any]:
    before = life.decision(batch_id).committables
    yield from real(life, batch_id, replaced)
    return {name: [each for each in before[name] if each.transaction_id in replaced[name]] for name in replaced}


def _lost_race_repeated(real: Any, self: SimulatedTableSink, newest: Version, *batch: Any) -> None:
    try:
        real(self, newest, *batch)
    except Conflict:
        real(self, self._load(), *batch)


def _looked_at_another_version(real: Any, self: SimulatedTableSink, _: Version, *batch: Any) -> None:
    real(self, self._load(), *batch)


def _mark_in_second_request(_: Any, self: SimulatedTableSink, follows: Version, version: Version) -> None:
    without = replace(version, mark=follows.mark)
    self._step(COMMIT, self._table.commit, follows, without)
    self._step(COMMIT, self._table.commit, without, replace(version, id=self._table.next_id()))


def _swapped_blindly(_: Any, self: SimulatedTableSink, __: Version, version: Version) -> None:
    self._step(COMMIT, self._table.commit, None, version)


def _appended_blindly(_: Any, self: SimulatedTableSink, newest: Version, batch_id: int, committables: Any) -> None:
    """As Delta's log would, if its version were chosen by the server."""

    def append() -> None:
        now = self._table.newest
        files = (*now.files, *(each.transaction_id for each in committables))
        self._table.commit(None, Version(self._table.next_id(), files, batch_id))

    self._step(COMMIT, append)


def _changed_blindly(_: Any, changes: Sequence[Change]) -> None:
    for change in changes:
        change.table.commit(None, change.version)


def _joint_commit_believed(_: Any, self: _Once, commit: Callable[[], None]) -> None:
    if not self._was_called:
        self._was_called = True
        try:
            type(next(iter(self._due))).commit_together(self._batch_id, self._due)
        except Retriable:
            commit()


def _same_mark_only(
    _: Any, self: SimulatedTableSink, newest: Version, batch_id: int, committables: Sequence[Committable]
) -> bool:
    return newest.mark == batch_id


def _lost_answer_is_failure(
    real: Any, self: SimulatedTableSink, newest: Version, batch_id: int, committables: Any
) -> None:
    try:
        real(self, newest, batch_id, committables)
    except Retriable:
        for each in committables:
            self._step(REMOVE, self._table.remove, each.transaction_id)
        raise


def _counts_as_committed(*errors: type[Exception]) -> Callable[..., Any]:
    """Return a replacement that passes over these errors of a commit."""

    def propose(real: Any, *arguments: Any) -> None:
        with contextlib.suppress(*errors):
            real(*arguments)

    return propose


def _read_then_applied(
    _: Any, self: SqlSink, connection: Any, batch_id: int, committables: Sequence[Committable]
) -> None:
    """As a MERGE of what was read before: the database transaction that applies the changes looks at nothing."""
    scope = self.transactional_ids.scope
    mark = self._tables.mark(connection, scope, lock=True)
    if mark is not None and mark >= batch_id:
        return
    found = [*self._tables.locked(connection, [each.transaction_id for each in committables]).values()]
    connection.rollback()
    self._tables.move(connection, found, False)
    self._tables.forget(connection, found)
    self._tables.set_mark(connection, scope, batch_id, is_first=mark is None)


def _with_changes(real: Any, self: SqlSink, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
    rows = cast("ModelTables", self._tables).table.transactions
    sealed: Sequence[Committable] = real(self, committables, age_s)
    return [
        replace(each, handle={**each.handle, CHANGES: " ".join(rows[each.transaction_id].changes)}) for each in sealed
    ]


def _from_the_decision(
    _: Any, self: SqlSink, connection: Any, batch_id: int, committables: Sequence[Committable]
) -> None:
    """Apply the changes that the decision has, whatever the mark is."""
    tables, scope = cast("ModelTables", self._tables), self.transactional_ids.scope
    mark = tables.mark(connection, scope, lock=True)
    rows = [
        Row(each.transaction_id, Made(None, 0), changes=tuple(f"{each.handle[CHANGES]}".split()))
        for each in committables
    ]
    tables.move(connection, rows, False)
    tables.forget(connection, rows)
    tables.set_mark(connection, scope, batch_id, is_first=mark is None)


MUTANTS = (
    Mutant(
        "the decision comes before the seal",
        (Seam(f"{PROTOCOL}:seal", _sealed_unseen), Seam(f"{PROTOCOL}:decide", _decided_then_sealed)),
    ),
    Mutant("seal vetoes nothing", (Seam("twopc_kafka.sink:is_ongoing", returning(True), f"{KAFKA}.seal"),)),
    Mutant("a commit comes before the decision", (Seam(f"{PROTOCOL}:decide", _committed_then_decided),)),
    Mutant("batches are committed out of order", (Seam(f"{PROTOCOL}:settle", _newest_first),), (BACKLOG,)),
    Mutant(
        "a decided batch is written again",
        (Seam("twopc.log.batch_identity:recognize", lambda real, *arguments: real(*arguments) and False),),
    ),
    Mutant("progress is committed beside the data", (Seam(f"{PROTOCOL}:settle", _beside_the_others),), (PROGRESS,)),
    Mutant(
        "a batch whose progress was lost is committed again where it was completed",
        (Seam(f"{PROTOCOL}:settle", _where_it_was_completed),),
        (PROGRESS,),
        in_pairs=(*DEAD, Fault.TIME_OUT),
    ),
    Mutant("phase two is left out", (Seam(f"{PROTOCOL}:settle", _forgotten, f"{PROTOCOL}:batch"),)),
    Mutant("recovery commits nothing", (Seam(f"{PROTOCOL}:settle", _forgotten, f"{PROTOCOL}:recover"),)),
    Mutant("the sweep after a batch is forgotten", (Seam(f"{PROTOCOL}:sweep", nothing_done, f"{PROTOCOL}:batch"),)),
    Mutant("the sweep at recovery is forgotten", (Seam(f"{PROTOCOL}:sweep", nothing_done, f"{PROTOCOL}:begin"),)),
    Mutant(
        "the sweep at a clean stop is forgotten",
        (Seam(f"{PROTOCOL}:sweep", nothing_done, f"{PROTOCOL}:close"),),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "the sweep does not read the log's tail again",
        (Seam(f"{LOG}:verify", nothing_done, f"{SWEEP}:undecided"),),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "the sweep reads the log's tail before it lists",
        (Seam(f"{SWEEP}:undecided", _log_read_first),),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "copies are removed without reading the log's tail again",
        (Seam(f"{LOG}:verify", nothing_done, f"{SWEEP}:remove_copies"),),
        (STAGED,),
        in_turn=((Fault.SLEEP_THROUGH,), (Fault.TIME_OUT,), (Fault.PREEMPT,)),
    ),
    Mutant(
        "the sweep does not look again after an abort",
        (Seam(f"{SWEEP}:sweep_sink", _swept_once),),
        (RECURRING,),
        in_turn=((Fault.DRIVER_DIES,), (Fault.MARKER_LEFT_OUT,)),
    ),
    Mutant(
        "the sweep does not wait for what is being rolled back",
        (Seam("twopc_kafka.hanging:outcome_of", nothing, f"{HANGING}.found"),),
        (RECURRING,),
        in_pairs=(Fault.DELAYED, Fault.MARKER_LEFT_OUT_LATE),
    ),
    Mutant(
        "recovery sweeps before it commits, and spares nothing",
        (
            Seam(f"{PROTOCOL}:settle", _swept_first, f"{PROTOCOL}:recover"),
            Seam("twopc.transaction:Committable.is_same_transaction", returning(False), "twopc.transaction:among"),
        ),
    ),
    Mutant(
        "an ambiguous append is followed by an abort",
        (Seam(f"{PROTOCOL}:decide", _decided_or_aborted),),
        (ONE,),
        in_pairs=LOST,
    ),
    Mutant(
        "one commit that fails leaves the others undone",
        (Seam("twopc.commits:Wave._map", _first_failure_raised),),
        (Scenario(sinks="kf", partitions=(2,)),),
    ),
    Mutant(
        "a transaction that is lost is passed over",
        (Seam("twopc.commits:until_answered", _loss_passed_over, "twopc.commits:Wave._attempt"),),
    ),
    Mutant(
        "what is committed is committed again after a replay",
        (Seam(f"{PROTOCOL}:amend", _whole_batch_again),),
        (replace(STAGED, partitions=(2,), rows_a_batch=2),),
    ),
    Mutant("a batch is complete before it is committed", (Seam(f"{PROTOCOL}:commit", _completed_then_committed),)),
    Mutant("a batch is announced before it is committed", (Seam(f"{PROTOCOL}:settle", _announced_then_committed),)),
    Mutant(
        "a batch is announced with transactions that were lost and replaced",
        (Seam(f"{PROTOCOL}:amend", _forgetting_none), Seam(f"{PROTOCOL}:announce", _announced_as_decided)),
        (STAGED,),
        in_pairs=(*DEAD, Fault.TIME_OUT),
    ),
    Mutant(
        "a marker that is missing of a commit is not written",
        (Seam("twopc_kafka.hanging:end", nothing, f"{KAFKA}.complete"),),
        (ONE,),
    ),
    Mutant(
        "what was rolled back and hangs is not swept",
        (Seam(f"{HANGING}.found", returning([])),),
        (Scenario(sinks="k", partitions=(1,), rows_a_batch=1, orphans=True),),
    ),
    Mutant(
        "what hangs is ended at its coordinator and not in its partition",
        (Seam(f"{KAFKA}.abort", _aborted_at_its_coordinator),),
        (Scenario(sinks="k", partitions=(1,), rows_a_batch=1, orphans=True),),
    ),
    Mutant(
        "a batch without transactions is never complete",
        (Seam("twopc.pending:PendingTransactions.add", _unless_empty),),
        (Scenario(sinks="kf", rows_a_batch=0),),
    ),
    Mutant(
        "a staged copy is removed before its batch is committed",
        (
            Seam(f"{PROTOCOL}:settle", _swept_first, f"{PROTOCOL}:recover"),
            Seam(f"{SWEEP}:remove_copies", _all_copies_removed),
        ),
        (STAGED,),
        in_pairs=(Fault.TIME_OUT, Fault.CRASH_AFTER, Fault.CRASH_BEFORE),
    ),
    Mutant(
        "what is written again is not in the log",
        (Seam(f"{LOG}:append", nothing_done, f"{PROTOCOL}:amend"),),
        (STAGED,),
    ),
    Mutant("open fences nobody", (Seam(f"{LOG}:open_log", _opened_alone),)),
    Mutant(
        "a failure that comes again is tried for ever", (Seam(f"{REPETITION}:counted", _never_counted),), FAILING[:1]
    ),
    Mutant(
        "an outage is counted as a failure",
        (Seam(f"{REPETITION}:passes", returning(False)), Seam(f"{REPETITION}:is_outage", returning(False))),
        FAILING[1:2],
    ),
    Mutant(
        "a failure is forgotten when another one comes", (Seam(f"{REPETITION}:repeated", _newest_alone),), FAILING[3:4]
    ),
    Mutant("an append in doubt is tried for ever", (Seam(f"{REPETITION}:identity", returning(None)),), FAILING[4:]),
    Mutant("an opening forgets the failures before", (Seam(f"{LOG}:opened", _without(repetition=None)),), FAILING[:1]),
    Mutant("open carries nothing forward", (Seam(f"{LOG}:opened", _without(unresolved=())),)),
    Mutant("a slot that is taken counts as written", (Seam(f"{LOG}:_put", _put_although(Fenced)),)),
    Mutant("the entry before an append is not looked at", (Seam(f"{LOG}:_at", _found, f"{LOG}:_appended"),), (PRUNED,)),
    Mutant(
        "a lost reply of an append counts as success",
        (Seam(f"{LOG}:_put", _put_although(InDoubt)),),
        (ONE,),
        in_pairs=LOST,
    ),
    Mutant("no reply to an append counts as failure", (Seam(f"{LOG}:_put", _put_or_fenced),)),
    Mutant(
        "an entry that was written after all is taken for another's",
        (Seam(f"{LOG}:_at", lambda real, url, slot, *tried: real(url, slot, tried[-1]), f"{LOG}:_put"),),
        (ONE,),
        in_pairs=LOST,
    ),
    Mutant(
        "the log is pruned newest first",
        (Seam(f"{LOG}:_prune", _pruned_newest_first),),
        (replace(PRUNED, entries_kept=2),),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "the tail is read without a second look", (Seam(f"{LOG}:read_tail", _read_once),), (PRUNED,), in_pairs=ASLEEP
    ),
    Mutant(
        "an entry of the log overwrites another",
        (Seam(f"{SYSTEM}.link", _overwriting, "twopc.stores.disk:put_in_place"),),
        (ON_DISK,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "the log's folder is not synced",
        (Seam("twopc.stores.disk:sync_folder", nothing, "twopc.stores.disk:LocalFolder.sync"),),
        (ON_DISK,),
    ),
    Mutant(
        "an entry of the log is not synced",
        (Seam(f"{SYSTEM}.fsync", nothing, "twopc.stores.disk:LocalFolder._written_aside"),),
        (ON_DISK,),
    ),
    Mutant("a staged file is not synced", (Seam(f"{SYSTEM}.fsync", nothing, f"{FILES}File.made_durable"),)),
    Mutant("the staging folder is not synced", (Seam(f"{FILES}.sync_pending", _own_folder_synced),)),
    Mutant("a committed file's name is not synced", (Seam(f"{FILES}.settle", nothing),)),
    Mutant(
        "a file that was committed before is not synced again",
        (
            Seam("twopc_files.sink:is_to_be_published", _published_or_raised),
            Seam("twopc_files.sink:FileSink._failure", _unless_it_was_there),
        ),
        (ON_DISK,),
        in_pairs=(Fault.CRASH_AFTER, Fault.POWER_CUT),
    ),
    Mutant(
        "FENCED counts as committed",
        (Seam(f"{BROKER}.end", _fenced_is_committed),),
        (Scenario(sinks="k", end_txn_version=4),),
    ),
    Mutant("CompleteAbort counts as committed", (Seam("twopc_kafka.sink:outcome_of", _rolled_back_is_committed),)),
    Mutant("no answer to a commit counts as committed", (Seam(f"{BROKER}.end", _silence_is_committed),)),
    Mutant("what was asked for at once counts as committed", (Seam(f"{KAFKA}.commit_many", _asked_is_committed),)),
    Mutant(
        "a word of the past ends the query",
        (Seam(f"{BROKER}.describe_proven", lambda _, self, names, __: self.describe(names), f"{KAFKA}._state"),),
        (ONE,),
    ),
    Mutant(
        "an attempt takes a name that a newer round has",
        (Seam(f"{LEASES}:next_use", _forgotten_if(operator.gt)),),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "an attempt takes a name that its own round has",
        (Seam(f"{LEASES}:next_use", _forgotten_if(operator.eq)),),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a name of which a begin was sent and not answered is used again",
        (Seam(f"{LEASES}:next_use", _last_use(lambda last, *_: replace(last, is_answered=True))),),
        (replace(ONE, late_begin=True),),
    ),
    Mutant(
        "a name whose last transaction was rolled back is used again",
        (Seam(f"{LEASES}:Lease.__init__", _taken_for_new),),
        (ONE,),
        in_turn=((Fault.CRASH_BEFORE,), ASLEEP, (Fault.MARKER_LEFT_OUT,)),
    ),
    Mutant(
        "a name is used again after a power cut",
        (Seam(f"{LEASES}:next_use", _last_use(lambda last, boot, _: replace(last, boot=boot))),),
        (replace(TWO, machines=2),),
        in_turn=((Fault.MACHINE_DIES_IN_FLIGHT,), (Fault.PREEMPT,)),
    ),
    Mutant(
        "a name is not locked while it is taken",
        (Seam(f"{LEASES}:open_slot", _unlocked),),
        (TWO,),
        in_pairs=(Fault.STAGE_RETRY, *ASLEEP),
    ),
    Mutant(
        "what is written again has the name of what is committed",
        (Seam(f"{LEASES}:lease", lambda real, *arguments: real(*arguments[:2])),),
        (replace(STAGED, partitions=(2,), rows_a_batch=3, backlog=True),),
        in_turn=((Fault.TIME_OUT,), (Fault.SLEEP_THROUGH,)),
    ),
    Mutant("a batch has the names of the batch before", (Seam(f"{LEASES}:Lease.__init__", _in_first_slot),), (TWO,)),
    Mutant(
        "a decided batch that comes again is not compared",
        (Seam("twopc.log.batch_identity:_require_same_reads", nothing),),
        (TWO,),
        in_turn=(DEAD, BEHIND),
    ),
    Mutant(
        "a new batch may follow another than was decided",
        (Seam("twopc.log.batch_identity:_require_same_end", nothing),),
        (replace(TWO, runs=1),),
        in_turn=(DEAD, (Fault.PLAN_LOST,), DEAD),
    ),
    *(
        Mutant(
            f"what a batch read is not carried on by '{kind}'",
            (Seam(f"{LOG if kind == 'open' else PROTOCOL}:{function}", _without(reads=None)),),
            (scenario,),
            in_turn=in_turn,
        )
        for kind, function, scenario, in_turn in (
            ("decide", "decided", ONE, (DEAD, BEHIND)),
            ("open", "opened", ONE, (DEAD, BEHIND)),
            ("complete", "completed", replace(RESTING, runs=2), ()),
            ("close", "closed", replace(ONE, runs=2), ()),
            ("amend", "amended", STAGED, ((Fault.TIME_OUT,), DEAD, BEHIND)),
        )
    ),
    Mutant(
        "a query that rests sweeps without reading the log's tail again",
        (Seam(f"{PROTOCOL}:sweep", _swept_blindly, f"{PROTOCOL}:rest"),),
        (replace(RESTING, batches=2),),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a query that rests does not sweep",
        (Seam(f"{PROTOCOL}:sweep", nothing_done, f"{PROTOCOL}:rest"),),
        (RESTING,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a query that rests does not record that all is committed",
        (Seam(f"{LOG}:append", nothing_done, f"{PROTOCOL}:rest"),),
        (RESTING,),
    ),
    Mutant(
        "a query rests amid a batch that has failed", (Seam(f"{COORDINATOR}.rest", _rested_in_any_phase),), (RESTING,)
    ),
    Mutant(
        "one partition's vote is left out of the decision",
        (Seam(f"{PROTOCOL}:seal", _two_votes_sealed),),
        (Scenario(sinks="k", partitions=(3,)),),
    ),
    Mutant("a whole batch is committed one transaction after the other", (Seam(CALLS, _one_by_one),), (WHOLE,)),
    Mutant(
        "a whole batch is committed before the decision",
        (Seam(f"{PROTOCOL}:decide", _committed_then_decided),),
        (WHOLE,),
    ),
    Mutant(
        "recovery commits a part of a whole batch",
        (Seam("twopc.effects:Life.remember", _first_left_out, f"{PROTOCOL}:bound"),),
        (WHOLE,),
    ),
    Mutant(
        "whole batches that are left are committed under the newest one's number",
        (Seam(CALLS, _under_newest_number),),
        (replace(WHOLES, backlog=True),),
    ),
    Mutant(
        "of a whole batch that is lost, one transaction is written again",
        (Seam(f"{PROTOCOL}:write_again", _first_lost_replayed),),
        (TORN,),
    ),
    Mutant(
        "of a whole batch that is written again, a part is committed",
        (Seam(f"{PROTOCOL}:amend", _part_committed_after_replay),),
        (TORN,),
    ),
    Mutant(
        "a whole batch that is written again is committed with the transactions of before",
        (Seam(f"{PROTOCOL}:amend", _amended_then_old),),
        (TORN,),
    ),
    Mutant(
        "what is computed again is not compared with what is lost",
        (Seam("twopc.loss:recognized", _whatever_is_there),),
        (RECOMPUTED,),
        in_pairs=(*DEAD, Fault.TIME_OUT),
    ),
    Mutant(
        "what is computed again has the names of before",
        (Seam("twopc.transactional_ids:TransactionalIdPool.allocate", _as_before_the_decision),),
        (replace(RECOMPUTED, sinks="kkt", batches=2, partitions=(2,), rows_a_batch=3),),
        in_pairs=(*ASLEEP, Fault.SUSPENDED),
    ),
    Mutant(
        "what is computed again is not in the log",
        (Seam(f"{LOG}:append", nothing_done, f"{PROTOCOL}:amend"),),
        (replace(RECOMPUTED, partitions=(1,)),),
    ),
    Mutant(
        "a whole batch that is written again is not in the log",
        (Seam(f"{LOG}:append", nothing_done, f"{PROTOCOL}:amend"),),
        (TORN,),
    ),
    Mutant("a table's mark is not looked at", (Seam(f"{TABLE}._is_visible", returning(False)),), (WHOLES,)),
    Mutant(
        "a table's mark is looked at once, and not again after a lost race",
        (Seam(f"{TABLE}._propose", _lost_race_repeated),),
        (WHOLES,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a table's mark is looked at in another version than the commit follows",
        (Seam(f"{TABLE}._propose", _looked_at_another_version),),
        (WHOLES,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a table's mark is written in a second request", (Seam(f"{TABLE}._ask", _mark_in_second_request),), (WHOLES,)
    ),
    Mutant(
        "a table's mark of a later batch is not taken for an answer",
        (Seam(f"{TABLE}._is_visible", _same_mark_only),),
        (WHOLES,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a commit to a table does not require the version that was looked at",
        (Seam(f"{TABLE}._ask", _swapped_blindly),),
        (WHOLES,),
    ),
    Mutant(
        "a commit to a table follows whatever version is the newest",
        (Seam(f"{TABLE}._propose", _appended_blindly),),
        (WHOLES,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a lost answer to a commit to a table counts as failure, and the files are removed",
        (Seam(f"{TABLE}._propose", _lost_answer_is_failure),),
        (WHOLES,),
    ),
    Mutant(
        "no answer to a commit to a table counts as committed",
        (Seam(f"{TABLE}._propose", _counts_as_committed(Retriable)),),
        (WHOLES,),
    ),
    Mutant(
        "a lost race for a version of a table counts as committed",
        (Seam(f"{TABLE}._propose", _counts_as_committed(Conflict)),),
        (WHOLES,),
    ),
    Mutant(
        "a joint commit to tables does not require the versions that were looked at",
        (Seam("tests.campaigns.simulation.table_model:change_together", _changed_blindly),),
        (JOINT,),
    ),
    Mutant(
        "a joint commit to tables does not look at their marks",
        (Seam(f"{TABLE}._is_visible", returning(False), f"{TABLE}._change"),),
        (JOINT,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a joint commit to tables stands for the commits of each",
        (Seam("twopc.commits:_Once.then", _joint_commit_believed),),
        (JOINT,),
    ),
    Mutant(
        "a table that was restored from a backup goes unnoticed",
        (Seam("tests.campaigns.simulation.table_model:mark_before", nothing, f"{TABLE}._is_visible"),),
        (WHOLES,),
    ),
    Mutant(
        "a batch is decided for a table without a look at its files",
        (Seam(f"{TABLE}._gone", returning([]), f"{TABLE}.seal"),),
        (WHOLES,),
    ),
    Mutant(
        "the notes of a batch that a table has stay for the sweep",
        (Seam(f"{TABLE}._settle", nothing, f"{TABLE}.commit_batch"),),
        (WHOLES,),
    ),
    Mutant(
        "keyed changes are read before the database transaction that applies them, which looks at no mark",
        (Seam(f"{SQL}._commit", _read_then_applied),),
        (KEYED,),
    ),
    Mutant(
        "keyed changes are in the decision, and a commit that is repeated applies them again",
        (Seam(f"{SQL}.seal", _with_changes), Seam(f"{SQL}._commit", _from_the_decision)),
        (KEYED,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "batches of keyed changes are committed out of order",
        (Seam(f"{PROTOCOL}:settle", _newest_first),),
        (Scenario(sinks="d", backlog=True),),
    ),
)
