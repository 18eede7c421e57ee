"""What an error means that may come again at each start. No I/O: the functions yield the effects of ``effects``.

A failure before a decision is counted in a note beside the log's newest entry, and the next ``open`` takes the count
over. A decision ends it.
"""

from __future__ import annotations

import logging

from twopc.effects import Life, Log, Note, Noted, Steps
from twopc.errors import CorruptLog, Fenced, InDoubt, RepeatedFailure, TwoPhaseCommitError
from twopc.failures import cause_of, identity, is_outage, passes, sentence
from twopc.log import steps
from twopc.log.entries import Entry, repeated

STARTS_AT_MOST = 3
"""How many starts may fail in the same way before a decision, if no table knows that way. What passes by itself has
passed by then, as each start takes a while, and a supervisor waits between them."""

FAILED_STARTS_AT_MOST = 8
"""How many starts may fail before a decision in ways that no table knows, each in another one."""

MINUTES_AT_MOST = 60
"""In how many minutes a failure may come before a decision that is known to pass."""


def explained(life: Life, error: Exception, is_asked_again: bool, batch_id: int | None, start: str) -> Steps[Exception]:
    """Return what an error means when the log has been looked at. Upholds: a fenced coordinator calls no operator, and
    asks for no repetition. A newer one may have settled what this one failed at.

    Where the answer ends the query, the look is repeated until the log is read, or for ``start_timeout_s`` before the
    log's first decision: then the error is returned as it is. Where the query, or the next rest, asks again, the look
    is not repeated. The look comes first: a newer coordinator may have left a note of its own. Before an operator is
    called there is another one: a newer coordinator may have opened while the failure was counted.

    After an append in doubt, a look may also find this coordinator's own entry. In both cases the next start learns the
    outcome, so the error stays what it is, and is not counted.
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
    """Return what an error means that came while no incarnation was open. ``life`` is the last one of this coordinator,
    and ``known`` the newest entry of the log that it has seen.

    The log is looked at anew where that matters: an ``open`` in doubt may be its newest entry by now.
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
    """Return whether a newer coordinator goes on from ``tail``: its failures are its own."""
    if life is None or tail.kind == "close":
        return False
    return (tail.log_id, tail.incarnation) != (life.tail.log_id, life.tail.incarnation)


def counted(tail: Entry, error: Exception, batch_id: int | None, start: str) -> Steps[Exception]:
    """Return what an error means that comes again at each start. Upholds: nothing is repeated for ever without an
    operator being told. ``tail`` is the newest entry of the log, and ``start`` identifies the coordinator.

    An outage is reported and goes on: its end needs no operator. All else stops, also what is known to pass: a task
    that a lack of memory ends comes to the same end each time.
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
