"""The protocol. It decides everything and does nothing: no I/O, no clock, no thread, no logging.

Each function is a generator that yields effects (``effects``) and is sent their answers. ``performer`` performs them on
real sinks and a real log. An effect's error is raised at its ``yield``. The steps of a batch, in the order of the
function ``batch``:

1. A batch that the log has already decided is not written again. It must read what the decided batch read: its number
   alone does not identify it.
2. Phase one: participants write and pre-commit. Any failure rolls the round back.
3. Every sink seals its transactions, or vetoes.
4. The decision: one append to the log. Before it nothing is visible; after it everything becomes visible.
5. Phase two: every transaction is committed, however many attempts that takes. Sinks that commit last follow the
   others. Finally, sinks announce the batch.
6. The sweep: open, undecided transactions are rolled back, so that they do not hold back readers.

All functions work on one ``Life``, an incarnation that ``begin`` starts. Any error ends it: the next incarnation
recovers from the log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from twopc import effects
from twopc.effects import FailedCommit, Life, LogView, Offer, Steps
from twopc.errors import ConfigurationError, Fenced, LogMismatch, Refused, RoundAborted
from twopc.failures import decided_batch
from twopc.log import batch_identity, steps
from twopc.log.entries import Decision, abandoned, amended, closed, completed, decided
from twopc.loss import (
    RecomputableLoss,
    Replaced,
    compute_again,
    judged,
    not_computed_again,
    refuse_changed_sinks,
    write_again,
)
from twopc.phases import Phase
from twopc.sweep import sweep
from twopc.transaction import Committable, Vote
from twopc.transactional_ids import Round

# A batch. -----------------------------------------------------------------------------------------------------------


def batch(life: Life, offer: Offer) -> Steps[Decision | None]:
    """Write a batch exactly once. Return its decision; None if it was decided before."""
    batch_id = offer.batch_id
    if (yield from recognize(life, offer)):
        if life.pending and batch_id == life.tail.decided:  # its lost transactions have waited for it
            yield from _recover_loss(life, offer)
        life.has_run = True
        return None
    yield from settle(life, recovered=True)  # raises the loss that recovery has left
    round = Round(life.log.incarnation, batch_id)
    if life.tail.kind == "close":  # only a resumed incarnation may be closed by now
        raise RoundAborted(
            f"the coordinator that opened {round} was closed before its decision, and rolled it back. Run the batch"
            " again in a new incarnation; a restarted query does."
        )
    try:
        yield effects.Enter(Phase.PRE_COMMITTING, batch_id, offer.began_s)
        votes = yield effects.Write(round, offer.phase_one, began_s=offer.began_s)
        yield effects.Enter(Phase.SEALING, batch_id)
        decision = Decision(round, (yield from seal(life, round, votes)))
        del votes  # in a wide batch, they take as much memory as the decision
    except Exception as error:  # noqa: BLE001  # whatever failed, the round is rolled back
        yield from roll_back(life, round, error)
    yield effects.Enter(Phase.DECIDING, batch_id)
    yield from decide(life, decision, offer)
    life.has_run = True
    yield effects.Enter(Phase.COMMITTING, batch_id)
    yield from settle(life, recovered=False, offer=offer)
    yield effects.Enter(Phase.SWEEPING, batch_id)
    with decided_batch(batch_id):
        yield effects.Repeat(f"sweep after batch {batch_id}", lambda: sweep(life, recovered=False))
    yield effects.Enter(Phase.IDLE, batch_id)
    return decision


def recognize(life: Life, offer: Offer) -> Steps[bool]:
    """Return whether the log has decided the batch. Refuse a batch that is neither decided nor next."""
    tail, earlier = life.tail, None
    if tail.decided is not None and offer.batch_id < tail.decided and offer.reads is not None:
        earlier = yield from steps.read_decision(offer.batch_id)
    return batch_identity.recognize(
        offer.batch_id, offer.reads, tail, offer.first_batch_id, life.log.url, offer.follows, earlier
    )


def seal(life: Life, round: Round, votes: Sequence[Vote]) -> Steps[dict[str, tuple[Committable, ...]]]:
    """Have every sink seal its transactions, or veto."""
    strangers = {name for vote in votes for name in vote} - life.members.keys()
    if strangers:
        raise ConfigurationError(f"there are votes for {', '.join(sorted(strangers))}: this log has no such sink")
    sealed = {}
    # Sinks that may time out come last: the others may take long, for example to check every file.
    for name in sorted(life.members, key=lambda name: life.members[name].may_time_out):
        of_sink = [vote[name] for vote in votes if name in vote]
        sealed[name] = yield effects.Seal(f"{round}: seal of sink {name!r}", name, of_sink)
    return sealed


def decide(life: Life, decision: Decision, offer: Offer) -> Steps[None]:
    """Append the decision: the commit point. If the append fails, its outcome is unknown, so nothing is aborted.
    Only if the log refused the decision before writing anything is the round rolled back."""
    try:
        yield from steps.append(life.log, decided(life.tail, decision, offer.reads))
    except Refused as error:
        yield from roll_back(life, decision.round, error)
    life.remember(decision)


def roll_back(life: Life, round: Round, error: Exception) -> Steps[NoReturn]:
    """Abort an undecided round, and raise the error that reports its failure."""
    try:
        yield from sweep(life, recovered=False)
    except Fenced as fenced:
        raise fenced from error
    except Exception as failure:  # noqa: BLE001  # a sink may raise anything; the first error is raised
        yield effects.Log(logging.WARNING, f"could not roll back all of {round}, which recovery does: {failure}")
    if isinstance(error, Refused):
        raise error
    raise RoundAborted(
        f"{round} failed before its decision ({type(error).__name__}: {error}). Nothing of it is visible."
        " Run the batch again; a restarted query does.",
        sink=getattr(error, "sink", None),
        transaction_id=getattr(error, "transaction_id", None),
    ) from error


# Phase two. ---------------------------------------------------------------------------------------------------------


def settle(life: Life, *, recovered: bool, offer: Offer | None = None) -> Steps[None]:
    """Commit every pending batch, the oldest first. Upholds: a sink that commits last is never ahead of the others.
    Raises RecomputableLoss: lost transactions wait for their batch to be run again. The rest of the batch is committed,
    except in sinks that commit last."""
    for batch_id in life.pending:
        with decided_batch(batch_id):
            for last in (False, True):
                # Some sinks may have completed the batch before, while one that commits last has lost its part.
                wave = [name for name in life.pending[batch_id] if life.members[name].commits_last is last]
                yield from commit(life, batch_id, wave, recovered, offer)
                for name in wave:
                    yield effects.Complete(name, batch_id, life.pending[batch_id][name])
                    life.pending.complete(batch_id, name)
            yield from announce(life, batch_id)
        yield effects.TellCommitted(life.decision(batch_id), recovered)
        life.pending.settle(batch_id)


def commit(
    life: Life, batch_id: int, wave: Collection[str], recovered: bool, offer: Offer | None = None
) -> Steps[None]:
    """Commit a pending batch in some of its sinks. Transactions that target systems have rolled back are replaced, and
    the replacements are committed.

    Raises:
        Fenced: a newer coordinator goes on with this batch.
        Exception: a transaction can't be committed. All others have been.
    """
    due: Mapping[str, Sequence[Committable]] = {name: life.pending[batch_id][name] for name in wave}
    while any(due.values()):
        failed = yield effects.Commit(batch_id, due, recovered, life.tail.owner)
        if not failed:
            return
        # A newer coordinator may have settled these transactions and used their names again.
        yield steps.look(life.log)
        loss = yield from judged(life, failed, batch_id, recovered)
        if loss.computable is None:
            due = yield from amend(life, batch_id, (yield from write_again(life, batch_id, loss.copied)))
        else:
            again = yield from amend(life, batch_id, (yield from _computed(life, batch_id, loss.computable, offer)))
            due = {name: (*again.get(name, ()), *loss.copied.get(name, ())) for name in {**again, **loss.copied}}


def _computed(life: Life, batch_id: int, loss: RecomputableLoss, offer: Offer | None) -> Steps[Replaced]:
    if offer is None or offer.recompute is None:
        raise loss
    refuse_changed_sinks(life, loss, batch_id)
    try:
        return (yield from compute_again(life, batch_id, loss, offer.recompute))
    except Exception as error:
        with contextlib.suppress(Exception):  # recovery sweeps, too
            yield from sweep(life, recovered=False)
        if failure := not_computed_again(error, Round(life.log.incarnation, batch_id)):
            raise failure from error
        raise


def amend(life: Life, batch_id: int, replaced: Replaced) -> Steps[Mapping[str, Sequence[Committable]]]:
    """Replace lost transactions in the log's decision, and return the replacements. Until the append, these are
    undecided: after a crash the sweep aborts them, and the next incarnation starts over."""
    decision = life.decision(batch_id)
    committables = {
        name: tuple(replaced.get(name, {}).get(each.transaction_id, each) for each in of_sink)
        for name, of_sink in decision.committables.items()
    }
    yield from steps.append(life.log, amended(life.tail, Decision(decision.round, committables)))
    for name in replaced:
        life.pending.amend(batch_id, name, committables[name])
    return {name: tuple(of_sink.values()) for name, of_sink in replaced.items()}


def announce(life: Life, batch_id: int) -> Steps[None]:
    """Have the sinks announce a batch to their readers. Upholds: by then, all of the batch is visible."""
    given_up: dict[str, list[Committable]] = {}
    for abandonment in life.tail.abandoned:
        if abandonment.given_up.batch_id == batch_id:
            for name, committables in abandonment.given_up.committables.items():
                given_up.setdefault(name, []).extend(committables)
    for name in life.members:
        yield effects.Announce(name, batch_id, life.decision(batch_id).committables, given_up)


# Beginning, resting and stopping. -----------------------------------------------------------------------------------


def begin(url: str, owner: str, prefixes: Mapping[str, str]) -> Steps[Life]:
    """Begin an incarnation: fence every older one, commit what is decided, abort the rest.

    If a batch is still ``pending`` afterwards, it has lost transactions, which stay lost until the query runs the batch
    again.
    """
    yield effects.Enter(Phase.RECOVERING)
    life = yield from bound((yield from steps.open_log(url, owner, prefixes)))
    with oldest_decided(life):
        with contextlib.suppress(RecomputableLoss):
            yield from recover(life)
        yield effects.Repeat("sweep at recovery", lambda: sweep(life, recovered=True))
        if life.pending:  # its commit comes next, and the sweep may have taken long
            yield steps.look(life.log)
    yield effects.Enter(Phase.IDLE)
    return life


def resume(url: str, log_id: str, incarnation: int) -> Steps[Life]:
    """Continue an incarnation that another process opened. Its pre-committed transactions stay: nothing is swept."""
    yield effects.Enter(Phase.RECOVERING)
    life = yield from bound((yield from steps.resume_log(url, log_id, incarnation)))
    with oldest_decided(life):
        yield from recover(life)
    yield effects.Enter(Phase.IDLE)
    return life


def oldest_decided(life: Life) -> contextlib.AbstractContextManager[None]:
    """Return a context that replaces an error that only an undecided batch may have, if a batch is pending: the oldest
    one is decided. See ``decided_batch``."""
    oldest = next(iter(life.pending), None)
    return contextlib.nullcontext() if oldest is None else decided_batch(oldest)


def bound(log: LogView) -> Steps[Life]:
    """Bind the sinks to an incarnation, and return its life. Only the bound sinks are its members."""
    life = Life(log)
    life.members = yield effects.Bind(life)
    for decision in log.tail.unresolved:
        life.remember(decision)
    return life


def recover(life: Life) -> Steps[None]:
    """Open the sinks and commit what the log has decided. If some target systems are away, the others commit the oldest
    decided batch meanwhile, because they may roll it back if it waits too long."""
    away = []
    for name in life.members:
        try:
            yield effects.OpenSink(name, is_patient=False)
        except Exception as error:  # noqa: BLE001  # reported when the sink is opened again
            yield effects.Log(logging.DEBUG, f"sink {name!r}: {error}")
            away.append(name)
    if away and life.pending:
        # This does not complete the batch. Later batches wait, and so do sinks that commit last.
        oldest = next(iter(life.pending))
        here = [name for name, member in life.members.items() if name not in away and not member.commits_last]
        with contextlib.suppress(RecomputableLoss), decided_batch(oldest):  # settle finds it again
            yield from commit(life, oldest, here, recovered=True)
    for name in away:
        yield effects.OpenSink(name, is_patient=True)
    if away and life.pending:  # they may have been away for long
        yield steps.look(life.log)
    yield from settle(life, recovered=True)


def _recover_loss(life: Life, offer: Offer) -> Steps[None]:
    """Finish a recovery that has waited for its lost batch to be run again."""
    yield effects.Enter(Phase.RECOVERING, offer.batch_id)
    yield from settle(life, recovered=True, offer=offer)
    with decided_batch(offer.batch_id):
        yield effects.Repeat("sweep at recovery", lambda: sweep(life, recovered=True))
    yield effects.Enter(Phase.IDLE, offer.batch_id)


def rest(life: Life) -> Steps[bool]:
    """Between batches: record that everything decided is committed, and sweep. While a batch with lost transactions is
    pending, do nothing and return False, because the log must not record it as complete.

    Upholds: nothing that a decision may still name is rolled back. So nothing is swept before the first batch of this
    process: participants that another process started in this incarnation may already have voted for it.
    """
    if life.pending:
        return False
    yield from steps.verify(life.log)  # never recreate a log that its owner has removed
    if life.tail.unresolved:
        yield from steps.append(life.log, completed(life.tail))
    if life.has_run:
        yield from sweep(life, recovered=False)
    return True


def close(life: Life, start: str | None, patience_s: float | None = None) -> Steps[None]:
    """Stop cleanly. Sweep first: a lost attempt may have begun after the last sweep. ``start``: see ``closed``."""
    yield effects.Repeat("sweep at the end", lambda: sweep(life, recovered=False), patience_s)
    if not life.pending:
        yield from steps.verify(life.log)
        # A note here means that this coordinator has failed since its last entry. The new entry must count that.
        noted = yield effects.Noted(life.tail)
        entry = closed(life.tail, start) if noted is None else closed(replace(life.tail, repetition=noted))
        yield from steps.append(life.log, entry)
    yield effects.Enter(Phase.CLOSED)


# The operator. ------------------------------------------------------------------------------------------------------


def lost(life: Life, batch_id: int) -> Steps[list[FailedCommit]]:
    """Commit a batch as far as possible, after ``begin`` failed at it. Return the commits that fail.

    Sinks that commit last are left out while another sink has not completed the batch. They are committed after the
    lost transactions are given up.
    """
    if batch_id not in life.pending:
        raise LogMismatch(f"batch {batch_id} is not in doubt; these batches are: {list(life.pending)}")
    parts = life.pending[batch_id]
    due = {name: part for name, part in parts.items() if not life.members[name].commits_last} or parts
    yield steps.look(life.log)
    failed: list[FailedCommit] = yield effects.Commit(batch_id, due, True, life.tail.owner)
    yield steps.look(life.log)  # a newer driver may have settled what failed here
    return failed


def abandon(life: Life, batch_id: int, given_up: Mapping[str, Collection[Committable]], by: str) -> Steps[None]:
    """Record in the log that an operator gives up decided transactions."""
    yield from steps.append(life.log, abandoned(life.tail, batch_id, given_up, by))
