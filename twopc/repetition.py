"""Decides what to do about an error that may recur at each start. No I/O: the functions yield the effects of
``effects``.

A note beside the log's newest entry counts failures before a decision. The next ``open`` takes over the count, and a
decision ends it.
"""

from __future__ import annotations

import logging

from twopc.effects import Life, Log, Note, Noted, Steps
from twopc.errors import CorruptLog, Fenced, InDoubt, RepeatedFailure, TwoPhaseCommitError
from twopc.failures import cause_of, identity, is_outage, passes, sentence
from twopc.log import steps
from twopc.log.entries import Entry, repeated

STARTS_AT_MOST = 3
"""How many starts may fail in the same, unclassified way before a decision. A failure that passes by itself will have
passed by then, because each start takes a while and a supervisor waits between starts."""

FAILED_STARTS_AT_MOST = 8
"""How many starts may fail in different, unclassified ways before a decision."""

MINUTES_AT_MOST = 60
"""In how many different minutes a failure that is known to pass may occur before a decision."""


def explained(life: Life, error: Exception, is_asked_again: bool, batch_id: int | None, start: str) -> Steps[Exception]:
    """Look at the log, and return the error to raise for ``error``. Upholds: a fenced coordinator calls no operator and
    asks for no repetition, because a newer one may have settled what this one failed at.

    If the error ends the query, the look is repeated until the log is read, or for ``start_timeout_s`` before the log's
    first decision. After that, the error is returned unchanged. If the query or the next rest will try again anyway,
    the look is not repeated. The look comes before the count, because a newer coordinator may have left its own note. A
    second look precedes a call for an operator, because a newer coordinator may have opened during the count.

    After an append in doubt, the entry that fences may be this coordinator's own. Either way, the next start learns the
    outcome, so the error is returned unchanged and is not counted.
    """
    if isinstance(error, Fenced | CorruptLog):
        return error
    is_in_doubt = isinstance(error, InDoubt)
    patience_s = 0.0 if is_asked_again or is_in_doubt else None
    try:
        yield steps.look(life.log, patience_s)
        meant = yield from counted(life.tail, error, batch_id, start)
        if meant is not error:
            yield steps.look(life.log, 0.0 if is_in_doubt else None)
    except Fenced as fenced:
        return error if is_in_doubt else fenced
    except Exception as unread:  # noqa: BLE001  # the first error is raised
        yield Log(logging.WARNING, f"the log could not be read after an error: {unread}")
        return error
    return meant


def explained_when_closed(
    life: Life | None, known: Entry | None, error: Exception, batch_id: int | None, start: str
) -> Steps[Exception]:
    """Return the error to raise for an error that occurred while no incarnation was open. ``life``: this coordinator's
    last incarnation. ``known``: the newest entry of the log that this coordinator has seen.

    The log is read again unless the error is an outage: its newest entry may be an ``open`` that was in doubt.
    """
    if identity(error) is None:
        return error
    tail = known
    if not is_outage(error):
        try:
            newest = yield from steps.read_tail()
        except Exception as unread:  # noqa: BLE001  # the first error is raised
            yield Log(logging.WARNING, f"the log could not be read after an error: {unread}")
            return error
        tail = newest[1] if newest else None
    if tail is None or _is_of_another(tail, life):
        return error
    return (yield from counted(tail, error, batch_id, start))


def _is_of_another(tail: Entry, life: Life | None) -> bool:
    """Return whether a newer coordinator continues from ``tail``. If so, it counts its own failures."""
    if life is None or tail.kind == "close":
        return False
    return (tail.log_id, tail.incarnation) != (life.tail.log_id, life.tail.incarnation)


def counted(tail: Entry, error: Exception, batch_id: int | None, start: str) -> Steps[Exception]:
    """Count an error, and return the error to raise. Upholds: no failure is repeated forever without an operator being
    notified. ``tail``: the newest entry of the log. ``start`` identifies the coordinator.

    At the limit, an outage is logged as an error, and its error is returned unchanged: its end needs no operator. For
    any other failure ``RepeatedFailure`` is returned, even if the failure is known to pass: a task that runs out of
    memory may fail each time.
    """
    if (failure := identity(error)) is None:
        return error
    is_passing = passes(error)
    before = (yield Noted(tail)) or tail.repetition
    now = repeated(before, batch_id, failure, start, passes=is_passing)
    yield Note(tail, now)
    limit = MINUTES_AT_MOST if is_passing else STARTS_AT_MOST
    if now.count < limit and (is_passing or now.starts < FAILED_STARTS_AT_MOST):
        return error
    cause = cause_of(error)
    what, state = "this query fails", ""
    if batch_id is not None:
        what = f"batch {batch_id} fails"
        if tail.decided is not None and batch_id <= tail.decided:
            state = " The batch is decided."
        elif isinstance(cause, InDoubt):
            state = " Whether the batch is decided is not known before the log takes entries again."
        else:
            state = " The batch is not decided, and nothing of it is visible."
    in_all = f", and {now.starts} times in all" if now.starts > now.count else ""
    since = "No decision is known since" if isinstance(cause, InDoubt) else "Nothing was decided in between"
    words = sentence(cause) if isinstance(cause, TwoPhaseCommitError) else f"{str(cause).removesuffix('.')}."
    says = (
        f"{what} again and again: {now.count} times in this way since {now.since}{in_all}. {since}."
        f" The newest failure ({type(cause).__name__}): {words}{state}"
    )
    if is_outage(error):
        yield Log(logging.ERROR, says)
        return error
    return RepeatedFailure(f"{says} Correct its cause and start again.", sink=getattr(error, "sink", None))
