"""Handles decided transactions that a target system has rolled back: write the transaction again from its replay copy,
have its batch computed again, or stop. No I/O: the functions yield the effects of ``effects``.

A batch can be computed again because its decision records what it reads. But a plan that calls ``rand()`` or
``current_timestamp()``, or whose source has changed, yields other records. So records are accepted only if their number
and the sum of their hashes match.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from twopc.effects import FailedCommit, Life, Log, Recompute, Seal, Steps, Tell, Wanted, Work, Write, WriteAgain
from twopc.errors import (
    OperatorRequired,
    OutcomeUnknown,
    Refused,
    RoundAborted,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc.events import TransactionReplayed
from twopc.failures import NotComputedAgain, located, sentence, worst_of
from twopc.transaction import Committable
from twopc.transactional_ids import Round

EVERY_PARTITION = range(2**31)

Replaced: TypeAlias = "Mapping[str, Mapping[str, Committable]]"
"""Sink name → name of the lost transaction → the transaction that replaces it."""


class RecomputableLoss(TransactionLost):
    """Target systems have lost transactions of a decided batch (``lost``, by sink name), whose records can be computed
    again. The batch's other transactions are committed, except in sinks that commit last."""

    def __init__(self, lost: Mapping[str, Sequence[Committable]], message: str) -> None:
        super().__init__(message)
        self.lost = lost

    @property
    def wanted(self) -> Wanted:
        return {name: frozenset(map(partition_of, of_sink)) for name, of_sink in self.lost.items()}


@dataclass(frozen=True, slots=True)
class Loss:
    """Transactions that target systems have rolled back: those with replay copies, and those to be computed again."""

    copied: Work
    computable: RecomputableLoss | None


def judged(life: Life, failed: Sequence[FailedCommit], batch_id: int, recovered: bool) -> Steps[Loss]:
    """Return the transactions that failed commits have lost. Call it after a check that no newer coordinator has opened
    the log. Raises Exception: the worst error, if a commit failed for another reason or its loss can't be repaired."""
    copied: dict[str, list[Committable]] = {}
    errors: list[FailedCommit] = []
    is_newest = batch_id == life.tail.decided  # only the newest decided batch is run again
    for each in failed:
        has_copies = life.members[each.sink].has_copies
        error = verdict(each.error, each.committables, has_copies, recovered)
        if isinstance(error, TwoPhaseCommitError):
            error.fill_in(sink=each.sink, batch_id=batch_id, transaction_id=each.transaction_id)
        meant = replace(each, error=error)
        if isinstance(error, TransactionLost) and has_copies and all(c.replay_copy for c in each.committables):
            copied.setdefault(each.sink, []).extend(each.committables)
            yield _warning(meant, batch_id, "are written again from their replay copy")
            continue
        errors.append(meant)
        # A loss that can be computed again is not logged as an error: its advice, to write the records by other means,
        # would duplicate them.
        if is_newest and is_recomputable(meant):
            yield _warning(meant, batch_id, "can be computed again")
        else:
            yield Log(logging.ERROR, f"batch {batch_id}, sink {each.sink!r}: {error}")
    computable = _loss_of(errors) if errors and is_newest else None
    if errors and computable is None:  # a loss that can be computed again needs no operator
        raise worst_of([e.error for e in errors if not is_recomputable(e)] or [e.error for e in errors])
    return Loss(copied, computable)


def verdict(error: Exception, committables: Sequence[Committable], has_copies: bool, recovered: bool) -> Exception:
    """Return the error to report for ``error``, which a commit of ``committables`` raised. Call it after a check that
    no newer coordinator has opened the log. ``has_copies``: whether the query runs with replay copies for this sink.
    ``recovered``: whether an earlier incarnation decided the batch, and may have requested its commit."""
    meant = error
    if isinstance(error, OutcomeUnknown) and error.was_refused_at_first and not recovered:
        # This incarnation decided it, only this process requested its commit, and the first request was refused.
        meant = TransactionLost(f"{sentence(error)} It was never committed, so another process has rolled it back.")
    copies = [committable.replay_copy for committable in committables if committable.replay_copy]
    if isinstance(meant, TransactionLost) and copies and not has_copies:
        which = copies[0] if len(copies) == 1 else f"{copies[0]} and {len(copies) - 1} more"
        meant = TransactionLost(
            f"{sentence(meant)} There is a copy of its records, {which}: start the query again with"
            " the replay copies that it had, and they are written again from it."
        )
    if meant is not error:
        meant.__cause__ = error
    return meant


def is_recomputable(failed: FailedCommit) -> bool:
    """Return whether a commit failed because its transactions are lost, and their records can be computed again."""
    return isinstance(failed.error, TransactionLost) and all(c.fingerprint is not None for c in failed.committables)


def _loss_of(failed: Sequence[FailedCommit]) -> RecomputableLoss | None:
    """Return the loss of the failed commits; None if one failed for another reason or can't be computed again."""
    lost: dict[str, list[Committable]] = {}
    if not all(map(is_recomputable, failed)):
        return None
    for each in failed:
        lost.setdefault(each.sink, []).extend(each.committables)
    first = failed[0].error
    assert isinstance(first, TransactionLost)
    way_out = "Its records can be computed again: start the query with on_loss='recompute' before you do any of this."
    loss = RecomputableLoss(lost, f"{sentence(first)} {way_out}")
    loss.fill_in(sink=first.sink, batch_id=first.batch_id, transaction_id=first.transaction_id)
    loss.__cause__ = first
    return loss


def _warning(failed: FailedCommit, batch_id: int, rest: str) -> Log:
    what = failed.transaction_id or f"{len(failed.committables)} transactions"
    records = sum(each.records or 0 for each in failed.committables)
    message = f"the target system has rolled back {what} after the decision; the {records} records {rest}"
    return Log(logging.WARNING, f"batch {batch_id}, sink {failed.sink!r}: {message}")


def write_again(life: Life, batch_id: int, lost: Work) -> Steps[Replaced]:
    """Write lost transactions again from their replay copies."""
    round = Round(life.log.incarnation, batch_id)
    replaced = {name: dict[str, Committable]() for name in lost}
    for name, of_sink in lost.items():
        for each in of_sink:
            replacement = yield WriteAgain(name, batch_id, each, round)
            replaced[name][each.transaction_id] = replacement
            yield Tell(TransactionReplayed(name, batch_id, each, replacement, life.tail.owner))
    return replaced


def compute_again(life: Life, batch_id: int, loss: RecomputableLoss, recompute: Recompute) -> Steps[Replaced]:
    """Have participants write lost records again, and seal the new transactions if the records are the same."""
    round = Round(life.log.incarnation, batch_id)
    replaced: dict[str, dict[str, Committable]] = {}
    for name, again in (yield from _recognized(life, round, loss, recompute)).items():
        sealed = yield Seal(f"{round}, computed again: seal of sink {name!r}", name, again)
        replaced[name] = {old.transaction_id: new for old, new in zip(loss.lost[name], sealed, strict=True)}
    for name, lost in loss.lost.items():
        for each in lost:
            replacement = replaced[name][each.transaction_id]
            yield Tell(TransactionReplayed(name, batch_id, each, replacement, life.tail.owner))
    return replaced


def _recognized(
    life: Life, round: Round, loss: RecomputableLoss, recompute: Recompute
) -> Steps[dict[str, Sequence[Committable]]]:
    """Return the transactions that contain the lost records, in the order of the lost transactions. All others stay
    undecided, and the sweep aborts them."""

    def votes(wanted: Wanted) -> Steps[dict[str, list[Committable]]]:
        life.computations += 1
        given = yield Write(replace(round, replay=life.computations), recompute, wanted)
        return {name: [vote[name] for vote in given if name in vote] for name in loss.lost}

    found = yield from votes(loss.wanted)
    again: dict[str, Sequence[Committable]] = {}
    try:
        for name, lost in loss.lost.items():
            with located(sink=name):
                again[name] = recognized(lost, found[name])
    except TransactionLost:
        found = yield from votes(dict.fromkeys(loss.lost, EVERY_PARTITION))
        for name, lost in loss.lost.items():
            if (anywhere := recognized_anywhere(lost, found[name])) is None:
                raise
            again[name] = anywhere
    return again


def refuse_changed_sinks(life: Life, loss: RecomputableLoss, batch_id: int) -> None:
    """Raise an error if a sink's transactions can no longer be lost, for example because the sink now delivers at least
    once. Upholds: nothing becomes visible before its decision. Records of such a sink have no hashes, and may be
    visible as soon as they are written."""
    for name in loss.lost:
        if not life.members[name].may_time_out:
            raise OperatorRequired(
                f"sink {name!r} has other options than when it lost transactions of batch {batch_id}, which is decided:"
                " what is written to it now can't be recognized. Nothing was written again. Give it the options that"
                " it had, such as 'delivery', and start again.",
                sink=name,
                batch_id=batch_id,
            )


def not_computed_again(error: Exception, round: Round) -> Exception | None:
    """Return the error to raise in place of ``error``, because the batch is decided; None to raise ``error`` itself."""
    what = f"{round} is decided. A part that its target system had rolled back could not be computed again"
    match error:
        case Refused():
            return OperatorRequired(f"{what}: {error.message} Correct that and start again.")
        case TwoPhaseCommitError() if not isinstance(error, RoundAborted):
            return None
    return NotComputedAgain(f"{what} ({type(error).__name__}: {error}). Start again.")


# Records that are computed again. ------------------------------------------------------------------------------------


def recognized(lost: Sequence[Committable], votes: Iterable[Committable]) -> list[Committable]:
    """Return the votes of a sink that match ``lost``, partition by partition, in the order of ``lost``. Raises
    TransactionLost: a partition has no vote, or a vote with other records."""
    by_partition = {partition_of(vote): vote for vote in votes if vote.fingerprint is not None}
    return [_same(each, by_partition.get(partition_of(each))) for each in lost]


def _same(lost: Committable, vote: Committable | None) -> Committable:
    what = f"transaction {lost.transaction_id} ({lost.records} records) was rolled back by its target system"
    partition = partition_of(lost)
    if vote is None:
        raise TransactionLost(
            f"{what}, and the batch that was computed again has no record for partition {partition}. {_OTHERS}"
        )
    if _contents(vote) != _contents(lost):
        other = "other records" if vote.records == lost.records else f"{vote.records} records"
        raise TransactionLost(f"{what}, and its partition {partition}, computed again, has {other}. {_OTHERS}")
    return vote


def recognized_anywhere(lost: Sequence[Committable], votes: Iterable[Committable]) -> list[Committable] | None:
    """Match lost transactions with a sink's votes by their records alone, whatever the partitions. Return the votes in
    the order of ``lost``; None if a lost transaction has no match.

    Spark may number a batch's partitions differently when it repeats the batch. With a Kafka source of two, three or
    four partitions, Spark 4.2 did so after a restart.
    """
    left: dict[tuple[int | None, int], list[Committable]] = {}
    for vote in votes:
        if vote.fingerprint is not None:
            left.setdefault(_contents(vote), []).append(vote)
    found = []
    for each in lost:
        if not (same := left.get(_contents(each))):
            return None
        found.append(same.pop())  # two partitions may have equal records
    return found


_OTHERS = (
    "The query does not yield the same records twice: it calls something like rand() or current_timestamp(), or there"
    " was a change of its source, its number of tasks, its outputs, or what the target system takes. Nothing was"
    " written again. Undo the change if there was one, and start again. Otherwise write the records by other means,"
    " then give the transaction up with 'twopc abandon --even-if-repairable'."
)


def partition_of(committable: Committable) -> int:
    """Return the batch partition of a transaction with a fingerprint."""
    assert committable.fingerprint is not None
    return committable.fingerprint.partition


def _contents(committable: Committable) -> tuple[int | None, int]:
    assert committable.fingerprint is not None
    return committable.records, committable.fingerprint.hash
