"""Runs a command. A command fills in one document until it ends or fails. Then ``show`` prints the document and ends
the process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

import click
from rich.console import Console

import twopc
from twopc.cli.output import Document, Report, readable, say
from twopc.cli.sinks_file import Redaction
from twopc.cli.waiting import NoAnswer, Waiting
from twopc.errors import Refused
from twopc.exit_codes import exit_code
from twopc.log.history import History, read_history
from twopc.stores.places import holds_password, split


def show(
    log: str | None,
    as_json: bool,
    draw: Callable[[Console, Document], None],
    command: Callable[[Report, Redaction], None],
) -> None:
    """Run ``command``, print its document and end the process with its exit code."""
    protocol, place = split(log or "")
    report, redact = Report({"log": None if protocol and holds_password(protocol, place) else log}), Redaction()
    stuck = False
    try:
        command(report, redact)
    except click.UsageError:
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # reported without a traceback
        report.fail(error, redact)
        stuck = isinstance(error, NoAnswer | KeyboardInterrupt)
    try:
        report.show(as_json, draw)
    except OSError as error:  # such as a full disk, or a closed pipe
        say(f"the result can't be written to standard output: {error.strerror}.")
        report.code, stuck = exit_code(error, report.opened), True  # otherwise Python tries again as it exits
    if stuck:  # a thread that waits for a target system would keep the process alive
        sys.stderr.flush()
        os._exit(report.code)
    sys.exit(report.code)


def history_of(log: str, report: Report) -> History:
    """Read the log, and add the log's owner to the document."""
    history = read_history(log)
    report.document |= {"owner": history.tail.owner, "log_id": history.tail.log_id}
    return history


@contextlib.contextmanager
def waiting_for_targets(timeout_s: float, redact: Redaction) -> Iterator[Waiting]:
    """Limit the time of calls to target systems, and report on standard error what they wait for."""
    waiting = Waiting(timeout_s, lambda text: say(redact(text)))
    twopc.register_observer(waiting)
    try:
        yield waiting
    finally:
        twopc.unregister_observer(waiting)


def ask(question: str, yes: bool, otherwise: str) -> None:
    """Ask the operator, unless ``yes``. ``otherwise`` describes the state if the answer is no. Raises Refused: the
    operator answered no, or gave no answer."""
    if yes:
        return
    try:
        answer = click.confirm(f"twopc: {readable(question)}", err=True)
    except click.Abort:
        say("")
        raise Refused(f"There was no answer; --yes answers yes. {otherwise}") from None
    if not answer:
        raise Refused(f"The answer was no. {otherwise}")
