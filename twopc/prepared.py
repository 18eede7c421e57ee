"""What the sinks of databases share that prepare a transaction under a name, such as PostgreSQL and MySQL.

Such a database forgets the name of a transaction that has ended. So a transaction writes a row about itself, its
marker, which exists exactly if the transaction is committed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from twopc.errors import OutcomeUnknown, RecordRefused, RoundAborted, TransactionLost
from twopc.transaction import Committable

MARKERS = "twopc_committed"
"""The table of the markers."""


def require_prepared(committables: Sequence[Committable], prepared: Collection[str], target: str) -> None:
    """Veto a batch, in ``seal``, if the server does not list each of its transactions in ``prepared``.

    Raises:
        RoundAborted: it does not. ``target`` names the table and its server.
    """
    for committable in committables:
        if committable.transaction_id not in prepared:
            raise RoundAborted(
                f"transaction {committable.transaction_id} was prepared for {target}, but no longer is: another session"
                " has ended it, or participants and coordinator connect to different servers"
            )


def marker_missing(what: str, has_older: bool, option: str, rollback: str) -> TransactionLost | OutcomeUnknown:
    """Return the error for a decided transaction, ``what``, that is neither prepared nor has a marker.

    Args:
        what: the decided transaction, as the subject of the message.
        has_older: whether an older batch has a marker, so that none was removed.
        option: the option that says which server it is, in quotes.
        rollback: the statement by which an operator could have rolled it back.
    """
    what += f", but it is not prepared and has no marker in {MARKERS}"
    advice = (
        f"If {option} was changed, set it back. If the transaction was rolled back by hand ({rollback}), or the server"
        " was restored, or replaced by a standby that did not have the transaction: make sure that its records are not"
        " in the table, write them by other means, give the transaction up with 'twopc abandon', and start the query"
        " again."
    )
    if has_older:
        return TransactionLost(f"{what}. {advice}")
    return OutcomeUnknown(
        f"{what}, and no older batch has one either. It belongs to the first batch, or the markers were removed. Check"
        f" whether its records are in the table. If they are, only give the transaction up. {advice}"
    )


def are_kept_json(texts: Iterable[str], is_kept: Callable[[str], bool]) -> bool:
    """Return whether a column that parses JSON keeps it. Such a column keeps one of two equal keys, so no object may
    have two. Text that is no JSON counts as kept: the server refuses it, with its reason.

    Args:
        texts: JSON.
        is_kept: whether the column keeps a number.
    """

    def unique(pairs: list[tuple[str, Any]]) -> None:
        if len({name for name, _ in pairs}) < len(pairs):
            raise _NotKeptError

    def kept(number: str) -> None:
        if not is_kept(number):
            raise _NotKeptError

    try:
        for text in texts:
            with contextlib.suppress(ValueError, RecursionError):
                json.loads(text, object_pairs_hook=unique, parse_float=kept, parse_int=kept)
    except _NotKeptError:
        return False
    return True


class _NotKeptError(Exception):
    pass


@contextlib.contextmanager
def undone_if_refused(execute: Callable[[str], object]) -> Iterator[None]:
    """Undo what the block writes if a record is refused. ``execute`` runs a statement in the open transaction."""
    execute("SAVEPOINT twopc_valid")
    try:
        yield
    except RecordRefused:
        execute("ROLLBACK TO SAVEPOINT twopc_valid")
        execute("RELEASE SAVEPOINT twopc_valid")
        raise
    execute("RELEASE SAVEPOINT twopc_valid")
