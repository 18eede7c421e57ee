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
from typing import Any

from tests.campaigns.seams import Seam, nothing, returning
from tests.campaigns.simulation.exploration import SMALL
from tests.campaigns.simulation.schedule import Scenario
from tests.campaigns.simulation.table_model import COMMIT, REMOVE, Change, Conflict, SimulatedTableSink, Version
from tests.campaigns.simulation.world import Fault
from twopc import leases, sweep
from twopc._bound_sink import CommitCall
from twopc._joint_commits import _Once
from twopc.coordinator import Coordinator
from twopc.durable_files import sync_folder
from twopc.errors import Fenced, InDoubt, Retriable, TransactionLost, TwoPhaseCommitError
from twopc.leases import Use
from twopc.log import commit_log, entries
from twopc.log.commit_log import CommitLog
from twopc.log.entries import Decision, Entry
from twopc.phases import Phase
from twopc.transaction import Committable
from twopc.transactional_ids import Round
from twopc_files.stores.local import Local
from twopc_kafka.answers import Outcome

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
COMMIT_LOG = "twopc.log.commit_log:CommitLog"
LOG = "twopc.log.commit_log"
LEASES = "twopc.leases"
SWEEP = "twopc.sweep"
KAFKA = "twopc_kafka.sink:KafkaSink"
HANGING = "twopc_kafka.hanging:Hanging"
BROKER = "tests.campaigns.simulation.kafka_model:ModelControl"
FILES = "twopc_files.stores.local:Local"
SYSTEM = "tests.campaigns.simulation.disk:OperatingSystem"
CALLS = "twopc._bound_sink:BoundSink.commit_calls"
TABLE = "tests.campaigns.simulation.table_model:SimulatedTableSink"

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
RECOMPUTED = Scenario(sinks="k", partitions=(1, 2), rows_a_batch=2, recompute=True)
PROGRESS = Scenario(sinks="pk", partitions=(1,), rows_a_batch=1, recompute=True)


# Replacements, each with one defect. The first argument is the real function. -----------------------------------------


def _sealed_unseen(_: Any, self: Coordinator, round: Round, votes: Sequence[Any], __: float) -> Any:
    """Seal nothing."""
    self._enter(Phase.SEALING, round.batch_id)
    unseen = {"end_txn_version": 5, "partitions": {}}
    return {
        name: tuple(replace(vote[name], handle={**vote[name].handle, **unseen}) for vote in votes if name in vote)
        for name in self._sinks
    }


def _two_votes_sealed(real: Any, self: Coordinator, round: Round, votes: Sequence[Any], started: float) -> Any:
    return real(self, round, votes[:2], started)


def _decided_then_sealed(real: Any, self: Coordinator, decision: Decision, reads: Any) -> None:
    real(self, decision, reads)
    for name, sink in self._sinks.items():
        sink.seal(decision.committables[name], 0.0)


def _committed_then_decided(real: Any, self: Coordinator, decision: Decision, reads: Any) -> None:
    for name, sink in self._sinks.items():
        for committable in decision.committables[name]:
            sink.commit(committable)
    real(self, decision, reads)


def _decided_or_aborted(real: Any, self: Coordinator, decision: Decision, reads: Any) -> None:
    try:
        real(self, decision, reads)
    except Fenced:
        raise
    except Exception as error:  # noqa: BLE001  # the defect
        self._roll_back(decision.round, error)


def _due(self: Coordinator, batch_id: int) -> list[int]:
    return sorted({due for sink in self._sinks.values() for due in sink.pending.through(batch_id)})


def _newest_first(_: Any, self: Coordinator, batch_id: int, recovered: bool) -> None:
    for due in reversed(_due(self, batch_id)):
        self._commit_batch(due, list(self._sinks.values()), recovered)


def _beside_the_others(_: Any, self: Coordinator, batch_id: int, recovered: bool) -> None:
    for due in _due(self, batch_id):
        self._commit_batch(due, [sink for sink in self._sinks.values() if due in sink.pending], recovered)


def _where_it_was_completed(_: Any, self: Coordinator, batch_id: int, recovered: bool) -> None:
    for due in _due(self, batch_id):
        for last in (False, True):
            self._commit_batch(due, [sink for sink in self._sinks.values() if sink.commits_last is last], recovered)


def _not_while(*phases: Phase) -> Callable[..., Any]:
    """Return a replacement that does nothing in these phases of the coordinator."""
    return lambda real, self, *rest, **named: None if self.phase in phases else real(self, *rest, **named)


def _log_read_first(real: Any, sink: Any, log: CommitLog) -> Any:
    log.verify()
    return real(sink, log)


def _swept_first(real: Any, self: Coordinator, *rest: Any, **named: Any) -> None:
    self._until_started("sweep at recovery", self._sweep, True)
    real(self, *rest, **named)


def _swept_once(_: Any, sink: Any, log: CommitLog, *__: Any) -> None:
    for transaction in sweep._undecided(sink, log):
        sink.abort(transaction)


def _first_failure_raised(*_: Any) -> Callable[..., Any]:
    def each(call: Any, arguments: Sequence[Any]) -> Any:
        for argument in arguments:
            if isinstance(result := call(argument), Exception):
                raise result
            yield result

    return each


def _loss_passed_over(real: Any, *arguments: Any, **named: Any) -> None:
    with contextlib.suppress(TransactionLost):
        real(*arguments, **named)


def _whole_batch_again(real: Any, self: Coordinator, batch_id: int, lost: Sequence[Any]) -> list[Any]:
    real(self, batch_id, lost)
    return [(sink, committable) for sink in self._sinks.values() for committable in sink.pending[batch_id]]


def _completed_then_committed(real: Any, self: Coordinator, batch_id: int, *rest: Any) -> None:
    for sink in self._sinks.values():
        sink.complete(batch_id, ())
    real(self, batch_id, *rest)


def _announced_then_committed(real: Any, self: Coordinator, batch_id: int, recovered: bool) -> None:
    for due in _due(self, batch_id):
        self._announce(due)
    real(self, batch_id, recovered=recovered)


def _announced_as_decided(real: Any, self: Coordinator, batch_id: int, replaced: Any) -> Any:
    [lost] = [each for each in self._log.tail.unresolved if each.batch_id == batch_id]

    def announce(batch_id: int) -> None:
        for sink in self._sinks.values():
            sink.announce(batch_id, lost.committables, {})

    self._announce = announce  # type: ignore[method-assign]
    return real(self, batch_id, replaced)


def _all_copies_removed(_: Any, sinks: Any, __: CommitLog) -> None:
    for sink in sinks:
        for name, _written in sink.replay_copies.names() if sink.replay_copies else ():
            sink.replay_copies.remove(name)


def _swept_blindly(_: Any, self: Coordinator, **__: bool) -> None:
    for sink in self._sinks.values():
        for transaction in sink.recover():
            sink.abort(transaction)


def _rested_in_any_phase(real: Any, self: Coordinator) -> None:
    phase = self._phase
    self._phase = Phase.IDLE if hasattr(self, "_log") else phase
    try:
        real(self)
    finally:
        self._phase = phase


def _opened_alone(real: Any, log: type[CommitLog], store: Any, *rest: Any) -> CommitLog:
    if newest := commit_log.read_tail(store):
        slot, tail = newest
        return log(store, slot, replace(tail, incarnation=tail.incarnation + 1))
    opened: CommitLog = real(log, store, *rest)
    return opened


def _without(**fields: Any) -> Callable[..., Any]:
    """Return a replacement that changes these fields of the entry."""
    return lambda real, *arguments: replace(real(*arguments), **fields)


def _put_although(error: type[Exception]) -> Callable[..., Any]:
    """Return a replacement that counts an entry as written if the append raised ``error``."""

    def put(real: Any, store: Any, slot: int, entry: Entry) -> Any:
        try:
            return real(store, slot, entry)
        except error:
            return entry

    return put


def _put_or_fenced(_: Any, store: Any, slot: int, entry: Entry) -> Entry:
    try:
        return commit_log._put_once(store, slot, entry)
    except (FileExistsError, commit_log._UnknownOutcome) as unknown:
        raise commit_log._fenced(store, slot, entry) from unknown


def _pruned_newest_first(_: Any, store: Any, tail: int, kept: int) -> None:
    with contextlib.suppress(Exception):
        for slot in reversed(store.slots()):
            if slot < tail - kept:
                store.delete(slot)


def _read_once(_: Any, store: Any) -> tuple[int, Entry] | None:
    while slots := store.slots():
        with contextlib.suppress(FileNotFoundError):
            return slots[-1], entries.parse(store.read(slots[-1]), store.url)
    return None


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


def _first_left_out(real: Any, self: Coordinator, decision: Decision) -> None:
    fewer = {name: of_sink[1:] for name, of_sink in decision.committables.items()}
    real(self, Decision(decision.round, fewer))


def _whole_batch_committed_then_decided(real: Any, self: Coordinator, decision: Decision, reads: Any) -> None:
    for name, sink in self._sinks.items():
        sink.commit_batch(decision.batch_id, decision.committables[name])
    real(self, decision, reads)


def _under_newest_number(real: Any, self: SimulatedTableSink, _: int, committables: Sequence[Committable]) -> Any:
    return real(self, max(self.pending), committables)


def _first_lost_replayed(real: Any, self: Coordinator, batch_id: int, lost: Any) -> Any:
    return real(self, batch_id, {name: of_sink[:1] for name, of_sink in lost.items()})


def _whatever_is_there(_: Any, lost: Committable, votes: Sequence[Committable]) -> Committable:
    return votes[0]


def _as_before_the_decision(real: Any, self: Any, round: Round, *arguments: Any) -> Any:
    return real(self, replace(round, replay=0), *arguments)


def _part_committed_after_replay(real: Any, self: Coordinator, batch_id: int, lost: Any) -> Any:
    return {name: of_sink[:1] for name, of_sink in real(self, batch_id, lost).items()}


def _amended_then_old(real: Any, self: Coordinator, batch_id: int, lost: Any) -> Any:
    real(self, batch_id, lost)
    return lost


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


MUTANTS = (
    Mutant(
        "the decision comes before the seal",
        (
            Seam(f"{COORDINATOR}._seal", _sealed_unseen),
            Seam(f"{COORDINATOR}._decide", _decided_then_sealed),
        ),
    ),
    Mutant(
        "seal vetoes nothing",
        (Seam("twopc_kafka.sink:is_ongoing", returning(True), f"{KAFKA}.seal"),),
    ),
    Mutant(
        "a commit comes before the decision",
        (Seam(f"{COORDINATOR}._decide", _committed_then_decided),),
    ),
    Mutant(
        "batches are committed out of order",
        (Seam(f"{COORDINATOR}._commit_through", _newest_first),),
        (BACKLOG,),
    ),
    Mutant(
        "a decided batch is written again",
        (Seam("twopc.coordinator:recognize", lambda real, *arguments: real(*arguments) and False),),
    ),
    Mutant(
        "progress is committed beside the data",
        (Seam(f"{COORDINATOR}._commit_through", _beside_the_others),),
        (PROGRESS,),
    ),
    Mutant(
        "a batch whose progress was lost is committed again where it was completed",
        (Seam(f"{COORDINATOR}._commit_through", _where_it_was_completed),),
        (PROGRESS,),
        in_pairs=(*DEAD, Fault.TIME_OUT),
    ),
    Mutant(
        "phase two is left out",
        (Seam(f"{COORDINATOR}._commit_through", nothing, f"{COORDINATOR}.run"),),
    ),
    Mutant(
        "recovery commits nothing",
        (Seam(f"{COORDINATOR}._commit_through", nothing, f"{COORDINATOR}._attach"),),
    ),
    Mutant(
        "the sweep after a batch is forgotten",
        (Seam(f"{COORDINATOR}._sweep", _not_while(Phase.SWEEPING)),),
    ),
    Mutant(
        "the sweep at recovery is forgotten",
        (Seam(f"{COORDINATOR}._sweep", _not_while(Phase.RECOVERING)),),
    ),
    Mutant(
        "the sweep at a clean stop is forgotten",
        (Seam(f"{COORDINATOR}._until_started", nothing, f"{COORDINATOR}.close"),),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "the sweep does not read the log's tail again",
        (Seam(f"{COMMIT_LOG}.verify", nothing, f"{SWEEP}:_undecided"),),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "the sweep reads the log's tail before it lists",
        (
            Seam(f"{COMMIT_LOG}.verify", nothing, f"{SWEEP}:_undecided"),
            Seam(f"{SWEEP}:_undecided", _log_read_first),
        ),
        (ONE,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "copies are removed without reading the log's tail again",
        (Seam(f"{COMMIT_LOG}.verify", nothing, "twopc.replay:remove_copies"),),
        (STAGED,),
        in_turn=((Fault.SLEEP_THROUGH,), (Fault.TIME_OUT,), (Fault.PREEMPT,)),
    ),
    Mutant(
        "the sweep does not look again after an abort",
        (Seam(f"{SWEEP}:_sweep_sink", _swept_once),),
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
            Seam(f"{COORDINATOR}._commit_through", _swept_first, f"{COORDINATOR}._attach"),
            Seam("twopc.transaction:Committable.is_same_transaction", returning(False), f"{SWEEP}:_undecided"),
        ),
    ),
    Mutant(
        "an ambiguous append is followed by an abort",
        (Seam(f"{COORDINATOR}._decide", _decided_or_aborted),),
        (ONE,),
        in_pairs=LOST,
    ),
    Mutant(
        "one commit that fails leaves the others undone",
        (Seam(f"{COORDINATOR}._map", _first_failure_raised),),
        (Scenario(sinks="kf", partitions=(2,)),),
    ),
    Mutant(
        "a transaction that is lost is passed over",
        (Seam("twopc.coordinator:until_answered", _loss_passed_over, f"{COORDINATOR}._attempt_commits"),),
    ),
    Mutant(
        "what is committed is committed again after a replay",
        (Seam(f"{COORDINATOR}._replay", _whole_batch_again),),
        (replace(STAGED, partitions=(2,), rows_a_batch=2),),
    ),
    Mutant(
        "a batch is complete before it is committed",
        (Seam(f"{COORDINATOR}._commit_batch", _completed_then_committed),),
    ),
    Mutant(
        "a batch is announced before it is committed",
        (Seam(f"{COORDINATOR}._commit_through", _announced_then_committed),),
    ),
    Mutant(
        "a batch is announced with transactions that were lost and replaced",
        (Seam(f"{COORDINATOR}._amend", _announced_as_decided),),
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
        (Seam("twopc.pending:PendingTransactions.add", lambda real, *given: given[-1] and real(*given)),),
        (Scenario(sinks="kf", rows_a_batch=0),),
    ),
    Mutant(
        "a staged copy is removed before its batch is committed",
        (
            Seam(f"{COORDINATOR}._commit_through", _swept_first, f"{COORDINATOR}._attach"),
            Seam(f"{SWEEP}:remove_copies", _all_copies_removed),
        ),
        (STAGED,),
        in_pairs=(Fault.TIME_OUT, Fault.CRASH_AFTER, Fault.CRASH_BEFORE),
    ),
    Mutant(
        "what is written again is not in the log",
        (Seam(f"{COMMIT_LOG}.amend", nothing),),
        (STAGED,),
    ),
    Mutant(
        "open fences nobody",
        (Seam(f"{COMMIT_LOG}.open", _opened_alone),),
    ),
    Mutant(
        "open carries nothing forward",
        (Seam(f"{LOG}:opened", _without(unresolved=())),),
    ),
    Mutant(
        "a slot that is taken counts as written",
        (Seam(f"{LOG}:_put", _put_although(Fenced)),),
    ),
    Mutant(
        "the entry before an append is not looked at",
        (
            Seam(f"{LOG}:_at", returning(True), f"{LOG}:_append"),
            Seam(f"{LOG}:_is_alone", returning(True), f"{LOG}:_append"),
        ),
        (PRUNED,),
    ),
    Mutant(
        "a lost reply of an append counts as success",
        (Seam(f"{LOG}:_put", _put_although(InDoubt)),),
        (ONE,),
        in_pairs=LOST,
    ),
    Mutant(
        "no reply to an append counts as failure",
        (Seam(f"{LOG}:_put", _put_or_fenced),),
    ),
    Mutant(
        "an entry that was written after all is taken for another's",
        (Seam(f"{LOG}:_at", lambda real, store, slot, *tried: real(store, slot, tried[-1]), f"{LOG}:_put"),),
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
        "the tail is read without a second look",
        (Seam(f"{LOG}:read_tail", _read_once),),
        (PRUNED,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "an entry of the log overwrites another",
        (Seam(f"{SYSTEM}.link", _overwriting, "twopc.durable_files:put_in_place"),),
        (ON_DISK,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "the log's folder is not synced",
        (Seam("twopc.durable_files:sync_folder", nothing, "twopc.durable_files:LocalFolder.sync"),),
        (ON_DISK,),
    ),
    Mutant(
        "an entry of the log is not synced",
        (Seam(f"{SYSTEM}.fsync", nothing, "twopc.durable_files:LocalFolder._written_aside"),),
        (ON_DISK,),
    ),
    Mutant(
        "a staged file is not synced",
        (Seam(f"{SYSTEM}.fsync", nothing, f"{FILES}File.made_durable"),),
    ),
    Mutant(
        "the staging folder is not synced",
        (Seam(f"{FILES}.sync_pending", _own_folder_synced),),
    ),
    Mutant(
        "a committed file's name is not synced",
        (Seam(f"{FILES}.settle", nothing),),
    ),
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
    Mutant(
        "CompleteAbort counts as committed",
        (Seam("twopc_kafka.sink:outcome_of", _rolled_back_is_committed),),
    ),
    Mutant(
        "no answer to a commit counts as committed",
        (Seam(f"{BROKER}.end", _silence_is_committed),),
    ),
    Mutant(
        "what was asked for at once counts as committed",
        (Seam(f"{KAFKA}.commit_many", _asked_is_committed),),
    ),
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
    Mutant(
        "a batch has the names of the batch before",
        (Seam(f"{LEASES}:Lease.__init__", _in_first_slot),),
        (TWO,),
    ),
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
            (Seam(f"{LOG}:{function}", _without(reads=None)),),
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
        (Seam(f"{COORDINATOR}._sweep", _swept_blindly, f"{COORDINATOR}.rest"),),
        (replace(RESTING, batches=2),),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a query that rests does not sweep",
        (Seam(f"{COORDINATOR}._sweep", nothing, f"{COORDINATOR}.rest"),),
        (RESTING,),
        in_pairs=ASLEEP,
    ),
    Mutant(
        "a query that rests does not record that all is committed",
        (Seam(f"{COMMIT_LOG}.complete", nothing),),
        (RESTING,),
    ),
    Mutant(
        "a query rests amid a batch that has failed",
        (Seam(f"{COORDINATOR}.rest", _rested_in_any_phase),),
        (RESTING,),
    ),
    Mutant(
        "one partition's vote is left out of the decision",
        (Seam(f"{COORDINATOR}._seal", _two_votes_sealed),),
        (Scenario(sinks="k", partitions=(3,)),),
    ),
    Mutant(
        "a whole batch is committed one transaction after the other",
        (Seam(CALLS, _one_by_one),),
        (WHOLE,),
    ),
    Mutant(
        "a whole batch is committed before the decision",
        (Seam(f"{COORDINATOR}._decide", _whole_batch_committed_then_decided),),
        (WHOLE,),
    ),
    Mutant(
        "recovery commits a part of a whole batch",
        (Seam(f"{COORDINATOR}._remember", _first_left_out, f"{COORDINATOR}._attach"),),
        (WHOLE,),
    ),
    Mutant(
        "whole batches that are left are committed under the newest one's number",
        (Seam(CALLS, _under_newest_number),),
        (replace(WHOLES, backlog=True),),
    ),
    Mutant(
        "of a whole batch that is lost, one transaction is written again",
        (Seam(f"{COORDINATOR}._replay", _first_lost_replayed),),
        (TORN,),
    ),
    Mutant(
        "of a whole batch that is written again, a part is committed",
        (Seam(f"{COORDINATOR}._replay", _part_committed_after_replay),),
        (TORN,),
    ),
    Mutant(
        "a whole batch that is written again is committed with the transactions of before",
        (Seam(f"{COORDINATOR}._replay", _amended_then_old),),
        (TORN,),
    ),
    Mutant(
        "what is computed again is not compared with what is lost",
        (Seam("twopc.coordinator:recognized", _whatever_is_there),),
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
        (Seam(f"{COMMIT_LOG}.amend", nothing),),
        (replace(RECOMPUTED, partitions=(1,)),),
    ),
    Mutant(
        "a whole batch that is written again is not in the log",
        (Seam(f"{COMMIT_LOG}.amend", nothing),),
        (TORN,),
    ),
    Mutant(
        "a table's mark is not looked at",
        (Seam(f"{TABLE}._is_visible", returning(False)),),
        (WHOLES,),
    ),
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
        "a table's mark is written in a second request",
        (Seam(f"{TABLE}._ask", _mark_in_second_request),),
        (WHOLES,),
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
        (Seam("twopc._joint_commits:_Once.then", _joint_commit_believed),),
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
)
