"""``twopc abandon``: gives up the lost transactions of a decided batch."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path
from typing import Any

import click

from twopc.cli.commands import parameters
from twopc.cli.commands.running import ask, history_of, show
from twopc.cli.commands.settling import ask_to_fence, draw, recover, recovery_of
from twopc.cli.output import Report, say
from twopc.cli.sinks_file import Redaction
from twopc.errors import OperatorRequired, Refused
from twopc.log.history import History


@click.command()
@parameters.log
@click.option("--batch", "batch_id", type=click.IntRange(min=0), required=True, metavar="N", help="The batch in doubt.")
@click.option(
    "--accept-loss",
    is_flag=True,
    required=True,
    help="Required: records that are given up will be missing from the target system.",
)
@click.option(
    "--even-if-repairable",
    is_flag=True,
    help="Give up also what could be committed if the cause in the error was removed, or computed again.",
)
@parameters.sinks_file()
@parameters.replay_copies
@click.option("--by", metavar="WHO", help="The name that the log keeps.  [default: user@host]")
@parameters.yes
@parameters.timeout_s
@parameters.as_json
def abandon(
    *,
    log: str,
    batch_id: int,
    accept_loss: bool,
    even_if_repairable: bool,
    sinks_file: Path,
    replay_copies: str | None,
    by: str | None,
    yes: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Give up the lost transactions of a decided batch, so that the query can go on without them.

    This is the only way past a TransactionLost or an OutcomeUnknown that can't be repaired, and with
    --even-if-repairable past any other error of a commit that calls an operator. The command first does all that
    resolve does. It gives up only the transactions that still can't be committed. The log keeps their ids, who gave
    them up, and when.
    """

    def run(report: Report, redact: Redaction) -> None:
        who = by or _user()
        report.document |= {"batch_id": batch_id, "by": who, "noted": False, "given_up": []}
        report.document |= {"opened": None, "committed": [], "replayed": [], "aborted": []}
        if not accept_loss:
            raise click.UsageError(
                "--accept-loss is required: records that are given up will be missing from the target system"
            )
        history = history_of(log, report)
        _refuse_unless_in_doubt(history, batch_id)
        with recovery_of(log, sinks_file, replay_copies, timeout_s, report, redact) as (history, recovery, waiting):
            _refuse_unless_in_doubt(history, batch_id)
            ask_to_fence(history, yes)
            try:
                recover(recovery, waiting, report)
            except OperatorRequired as error:
                at = recovery.stuck if error.batch_id is None else error.batch_id
                if {at, recovery.stuck} != {batch_id}:  # batches are committed and announced in order
                    where = "the sweep" if at is None else f"batch {at}"
                    say(f"nothing of batch {batch_id} was given up: recovery stopped at {where}.")
                    raise
                lost = waiting.call(
                    f"committing batch {batch_id} as far as possible", recovery.lost, batch_id, even_if_repairable
                )
                if not lost:
                    raise
                report.document["given_up"] = [transaction.to_json(redact) for transaction in lost]
                for transaction in lost:
                    say(redact(f"{transaction.committable.transaction_id}: {transaction.error}"))
                _ask_to_give_up(report.document["given_up"], batch_id, yes, error)
                waiting.call("writing to the log", recovery.give_up, batch_id, lost, who)
                report.document["noted"] = True
                recover(recovery, waiting, report)
            else:
                say(f"batch {batch_id} is completely committed: nothing was given up.")

    show(log, as_json, draw, run)


def _refuse_unless_in_doubt(history: History, batch_id: int) -> None:
    in_doubt = [decision.batch_id for decision in history.tail.unresolved]
    if batch_id not in in_doubt:
        raise Refused(
            f"batch {batch_id} is not in doubt, so there is nothing to abandon. The last decided batch is"
            f" {history.tail.decided}; in doubt: {', '.join(map(str, in_doubt)) or 'none'}. Nothing was changed."
        )


def _ask_to_give_up(lost: list[dict[str, Any]], batch_id: int, yes: bool, error: OperatorRequired) -> None:
    records = sum(row["records"] or 0 for row in lost)
    try:
        ask(
            f"Give up {len(lost)} transactions of batch {batch_id}, with {records} records that no reader will ever see"
            " by this query? This can't be undone.",
            yes,
            "Nothing was given up.",
        )
    except Refused as refused:
        raise refused from error


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # in a container, the user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
