"""The commands. Each builds one document, as far as it gets; ``_shown`` shows it and ends the process."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

import twopc
from twopc.checks import CheckResult, CheckStatus
from twopc.cli.checkpoint import Repair
from twopc.cli.doctor import examined, examined_log
from twopc.cli.exit_codes import ExitCode, exit_code
from twopc.cli.history import History, read_history
from twopc.cli.page import render
from twopc.cli.recovery import Recovery, Work
from twopc.cli.report import (
    Document,
    Report,
    draw_checkpoint,
    draw_findings,
    draw_page,
    draw_recovery,
    draw_repair,
    draw_status,
    draw_transactions,
    say,
    watch_status,
)
from twopc.cli.sinks_file import Redaction, read_sinks
from twopc.cli.timeline import timeline
from twopc.cli.waiting import NoAnswer, Waiting
from twopc.errors import ConfigurationError, OperatorRequired, Refused
from twopc.log.entries import Decision
from twopc.observers.json_lines import Line, read_lines

TIMEOUT_S = 60.0
"""Longer than a client takes to find out that nobody is there (10 s), and than most brokers take to restart."""

_log = click.argument("log")
_checkpoint = click.argument("checkpoint")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
_sinks = click.option(
    "--sinks",
    "sinks_file",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML, a table for each sink of the query: backend and options. ${NAME} comes from the environment.",
)
_timeout = click.option(
    "--timeout-s",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for targets, all in all.",
)
_replay_copies = click.option(
    "--replay-copies", metavar="URL", help="What the query was given as 'replay_copies', where it was."
)
_yes = click.option("--yes", is_flag=True, help="Don't ask.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="twopc-core", prog_name="twopc")
def cli() -> None:
    """See and settle what a query's two-phase commits left open, and examine its targets before the first batch.

    LOG is the URL or path that the query was given as 'log'.

    Exit codes: 0 fine, 1 something is in doubt or to be repaired, 2 wrong usage, 3 refused and nothing changed, 4 a
    person must decide, 5 fenced by a newer driver, 6 a target did not answer.
    """


@cli.command()
@_log
@click.option("--watch", is_flag=True, help="Follow the log until Ctrl-C.")
@_json
def status(log: str, watch: bool, as_json: bool) -> None:
    """Show what a log has decided, and what is in doubt. Reads the log alone."""
    if watch and (as_json or not sys.stdout.isatty()):
        raise click.UsageError("--watch draws on a terminal: call status again and again instead")

    def run(report: Report, _: Redaction) -> None:
        _report_status(read_history(log), report)
        if watch:
            watch_status(report, lambda: _report_status(read_history(log), report))

    _shown(log, as_json, draw_status, run)


@cli.command(name="report")
@_log
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The page: HTML that needs no network. It is replaced.",
)
@click.option(
    "--events",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What a JsonLinesObserver of the query wrote: the times of the phases, and batches that the log forgot.",
)
@_json
def report_page(log: str, output: Path, events: Path | None, as_json: bool) -> None:
    """Write a page with the timeline of a log: batches, recoveries, what is in doubt. Reads the log and FILE alone."""

    def run(report: Report, _: Redaction) -> None:
        history = read_history(log)
        lines = _lines(events, history.tail.owner) if events else []
        moments = timeline(history, [line for line in lines if line])
        _report_status(history, report)
        made_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        page = render(report.document, history, moments, lines.count(None), made_at)
        try:
            output.write_text(page, encoding="utf-8", errors="replace")  # JSON may hold half a surrogate pair
        except OSError as error:
            raise ConfigurationError(f"the page {output} can't be written: {error.strerror}.") from error
        report.document |= {"page": str(output), "moments": len(moments)}

    _shown(log, as_json, draw_page, run)


@cli.command()
@_sinks
@click.option("--log", metavar="URL", help="What the query is given as 'log'; examined as well.")
@_timeout
@_json
def doctor(sinks_file: Path, log: str | None, timeout_s: float, as_json: bool) -> None:
    """Examine the targets before the first batch: what would they refuse, and what could they lose?

    What can be tried is tried, and rolled back or removed again. Each line passed, warned or failed; the exit code is 4
    if one failed.
    """

    def run(report: Report, redact: Redaction) -> None:
        shown: list[Document] = report.document.setdefault("findings", [])
        sinks = read_sinks(sinks_file, redact)
        with _waiting(timeout_s, redact) as waiting:

            def show(sink: str | None, findings: Iterator[CheckResult]) -> None:
                what = "examining the log" if sink is None else f"examining sink {sink!r}"
                while found := waiting.call(what, next, findings, None):
                    shown.append({"sink": sink, "result": found.result.value, "what": redact(found.what)})
                    shown[-1]["advice"] = redact(found.advice)
                    if found.result is CheckStatus.FAILED:
                        report.code = ExitCode.OPERATOR_REQUIRED

            if log is not None:
                show(None, examined_log(log, sinks))
            for name, sink in sinks.items():
                show(name, examined(sink, name))

    _shown(log, as_json, draw_findings, run)


@cli.command()
@_log
@click.option("--sink", required=True, metavar="NAME", help="The sink's name in the query and in FILE.")
@_sinks
@_timeout
@_json
def transactions(log: str, sink: str, sinks_file: Path, timeout_s: float, as_json: bool) -> None:
    """Show every transaction that is open in a sink's target, with the log's verdict beside it. Changes nothing."""

    def run(report: Report, redact: Redaction) -> None:
        history = _history(log, report)
        sinks = read_sinks(sinks_file, redact)
        if sink not in sinks:
            raise ConfigurationError(f"{sinks_file} has no sink {sink!r}; it has {', '.join(sorted(sinks))}.")
        if history.sinks and sink not in history.sinks:
            say(f"no kept decision of this log names a sink {sink!r}; they name {', '.join(history.sinks)}.")
        with _waiting(timeout_s, redact) as waiting:
            recovery = Recovery(history, {sink: sinks[sink]}, None)
            rows = waiting.call(f"listing the transactions of sink {sink!r}", recovery.look)
        report.document |= {"sink": sink, "transactions": [row.to_json() for row in rows]}
        report.code = ExitCode.IN_DOUBT if rows else ExitCode.FINE

    _shown(log, as_json, draw_transactions, run)


@cli.command()
@_log
@_sinks
@_replay_copies
@click.option("--orphans", is_flag=True, help="Only roll back what no driver can decide any more, and fence none.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@_yes
@_timeout
@_json
def resolve(
    *,
    log: str,
    sinks_file: Path,
    replay_copies: str | None,
    orphans: bool,
    dry_run: bool,
    yes: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Do what the query's recovery would do, without the query: commit what is decided, abort the rest.

    This opens a new incarnation of the log, so a driver that still runs is fenced and stops. With --orphans it does
    not: only transactions of rounds that are over are rolled back, and the query goes on.
    """

    def run(report: Report, redact: Redaction) -> None:
        report.document |= {"dry_run": dry_run, "opened": None, "committed": [], "replayed": [], "aborted": []}
        report.document |= {"orphans": orphans}
        with _recovery(log, sinks_file, replay_copies, timeout_s, report, redact) as (history, recovery, waiting):
            if dry_run:
                is_work = report.document["plan"] or history.tail.unresolved
                report.code = ExitCode.IN_DOUBT if is_work else ExitCode.FINE
                return
            if orphans:
                waiting.call("rolling back orphans", recovery.end_orphans)
                return
            if not (report.document["plan"] or history.tail.unresolved or report.document["leftover_copies"]):
                return
            _ask_to_fence(history, yes)
            _recover(recovery, waiting, report)

    _shown(log, as_json, draw_recovery, run)


@cli.command()
@_log
@click.option("--batch", "batch_id", type=click.IntRange(min=0), required=True, metavar="N", help="The batch in doubt.")
@click.option(
    "--accept-loss",
    is_flag=True,
    required=True,
    help="Required: the records of what is given up will not be in the target.",
)
@_sinks
@_replay_copies
@click.option("--by", metavar="WHO", help="Whose name the log keeps.  [default: user@host]")
@_yes
@_timeout
@_json
def abandon(
    *,
    log: str,
    batch_id: int,
    accept_loss: bool,
    sinks_file: Path,
    replay_copies: str | None,
    by: str | None,
    yes: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Give up what is lost of a decided batch, so that the query can go on without it.

    The only way past a TransactionLost or an OutcomeUnknown that can't be mended. First everything is done that resolve
    does. Only what is lost even then is given up, and the log keeps who did so, when, and which transactions.
    """

    def run(report: Report, redact: Redaction) -> None:
        who = by or _user()
        report.document |= {"batch_id": batch_id, "by": who, "noted": False, "given_up": []}
        report.document |= {"opened": None, "committed": [], "replayed": [], "aborted": []}
        if not accept_loss:
            raise click.UsageError("--accept-loss is required: what is given up will not be in the target")
        history = _history(log, report)
        _refuse_what_is_not_in_doubt(history, batch_id)
        with _recovery(log, sinks_file, replay_copies, timeout_s, report, redact) as (history, recovery, waiting):
            _refuse_what_is_not_in_doubt(history, batch_id)
            _ask_to_fence(history, yes)
            try:
                _recover(recovery, waiting, report)
            except OperatorRequired as error:
                if recovery.stuck != batch_id:  # batches are committed in order
                    where = "the sweep" if recovery.stuck is None else f"batch {recovery.stuck}"
                    say(f"nothing of batch {batch_id} was given up: recovery stopped at {where}.")
                    raise
                lost = waiting.call(f"committing what can be of batch {batch_id}", recovery.lost, batch_id)
                if not lost:
                    raise
                report.document["given_up"] = [transaction.to_json() for transaction in lost]
                for transaction in lost:
                    say(redact(f"{transaction.committable.transaction_id}: {transaction.error}"))
                _ask_to_give_up(report.document["given_up"], batch_id, yes, error)
                waiting.call("writing to the log", recovery.give_up, batch_id, lost, who)
                report.document["noted"] = True
                _recover(recovery, waiting, report)
            else:
                say(f"all of batch {batch_id} is committed: nothing had to be given up, and nothing was.")

    _shown(log, as_json, draw_recovery, run)


@cli.group(name="checkpoint")
def checkpoint_group() -> None:
    """Compare a query's checkpoint with its log, and write back what it lacks.

    CHECKPOINT is the URL or path that the query was given as 'checkpointLocation'.
    """


@checkpoint_group.command(name="compare")
@_checkpoint
@_log
@_json
def compare_checkpoint(checkpoint: str, log: str, as_json: bool) -> None:
    """Show whether a checkpoint and a log are of the same age, and what repair would do. Changes nothing."""

    def run(report: Report, _: Redaction) -> None:
        report.document |= {"checkpoint": checkpoint}
        Repair(checkpoint, log, report)

    _shown(log, as_json, draw_checkpoint, run)


@checkpoint_group.command(name="repair")
@_checkpoint
@_log
@_yes
@_json
def repair_checkpoint(checkpoint: str, log: str, yes: bool, as_json: bool) -> None:
    """Write what a checkpoint lacks back from the log, so that the query goes on exactly where it was.

    The query must not run. A copy of what is replaced stays in the checkpoint, where Spark does not look.
    """

    def run(report: Report, _: Redaction) -> None:
        report.document |= {"checkpoint": checkpoint, "repaired": False}
        repair = Repair(checkpoint, log, report)
        report.code = ExitCode.FINE
        if not repair.plan.changes:
            return
        if not as_json:
            report.show(as_json, draw_checkpoint)
        _ask(repair.question, yes, "Nothing was changed.")
        repair.run()
        report.code = ExitCode.FINE

    _shown(log, as_json, draw_repair, run)


# What the commands share. -----------------------------------------------------------------------------------------


def _history(log: str, report: Report) -> History:
    history = read_history(log)
    report.document |= {"owner": history.tail.owner, "log_id": history.tail.log_id}
    return history


def _lines(events: Path, owner: str) -> list[Line | None]:
    try:
        return list(read_lines(events, owner))
    except OSError as error:
        raise ConfigurationError(f"the events file {events} can't be read: {error.strerror}.") from error


def _report_status(history: History, report: Report) -> None:
    report.document |= _status(history)
    report.code = ExitCode.IN_DOUBT if history.tail.unresolved else ExitCode.FINE


def _status(history: History) -> Document:
    tail = history.tail
    return {
        "owner": tail.owner,
        "log_id": tail.log_id,
        "incarnation": tail.incarnation,
        "kind": tail.kind,
        "written_at": tail.written_at,
        "clean_stop": history.is_clean,
        "entries": len(history.entries),
        "decided": tail.decided,
        "committed_through": tail.committed_through,
        "waits_for": None if history.notice is None else asdict(history.notice),
        "in_doubt": [
            {
                "batch_id": decision.batch_id,
                "incarnation": decision.round.incarnation,
                "since": history.in_doubt_since(decision.batch_id),
                "sinks": {
                    name: {"transactions": len(of_sink), "records": sum(c.records or 0 for c in of_sink)}
                    for name, of_sink in decision.committables.items()
                },
            }
            for decision in tail.unresolved
        ],
        "abandoned": [
            {"batch_id": a.given_up.batch_id, "by": a.by, "at": a.at, "sinks": _by_sink(a.given_up)}
            for a in tail.abandoned
        ],
    }


def _by_sink(given_up: Decision) -> Document:
    return {
        name: {"transactions": [c.transaction_id for c in of_sink], "records": sum(c.records or 0 for c in of_sink)}
        for name, of_sink in given_up.committables.items()
    }


@contextlib.contextmanager
def _recovery(
    log: str, sinks_file: Path, replay_copies: str | None, timeout_s: float, report: Report, redact: Redaction
) -> Iterator[tuple[History, Recovery, Waiting]]:
    """Everything that can be found out before anything is changed, in ``report``; then the means to change it."""
    history = _history(log, report)
    sinks = read_sinks(sinks_file, redact)
    recovery = Recovery(history, sinks, replay_copies)
    recovery.check()
    for name in sorted(set(history.sinks) - sinks.keys()):
        say(f"{sinks_file} has no sink {name!r}, which this log has written to: what is open there stays open.")
    with _waiting(timeout_s, redact) as waiting:
        plan = waiting.call(f"listing the transactions of {', '.join(sorted(sinks))}", recovery.look)
        copies = waiting.call("listing the replay copies", recovery.leftover_copies)
        report.document |= {"plan": [row.to_json() for row in plan], "leftover_copies": len(copies)}
        work = Work()
        report.document |= {"committed": work.committed, "replayed": work.replayed, "aborted": work.aborted}
        twopc.register_observer(work)
        try:
            yield history, recovery, waiting
        finally:
            twopc.unregister_observer(work)


@contextlib.contextmanager
def _waiting(timeout_s: float, redact: Redaction) -> Iterator[Waiting]:
    waiting = Waiting(timeout_s, lambda text: say(redact(text)))
    twopc.register_observer(waiting)
    try:
        yield waiting
    finally:
        twopc.unregister_observer(waiting)


def _recover(recovery: Recovery, waiting: Waiting, report: Report) -> None:
    try:
        waiting.call("opening the log", recovery.run)
    finally:
        report.opened = report.opened or recovery.log is not None
        report.document["opened"] = recovery.log.incarnation if recovery.log else None


def _refuse_what_is_not_in_doubt(history: History, batch_id: int) -> None:
    in_doubt = [decision.batch_id for decision in history.tail.unresolved]
    if batch_id not in in_doubt:
        raise Refused(
            f"batch {batch_id} is not in doubt, so there is nothing to abandon: the log has decided batch"
            f" {history.tail.decided}, and in doubt is {', '.join(map(str, in_doubt)) or 'none'}. Nothing was changed."
        )


def _ask_to_fence(history: History, yes: bool) -> None:
    state = "it stopped cleanly" if history.is_clean else "it runs, or did not stop cleanly"
    _ask(
        f"This opens incarnation {history.tail.incarnation + 1} of query {history.tail.owner}. A driver of incarnation"
        f" {history.tail.incarnation} ({state}; its newest entry is of {history.tail.written_at}) is fenced by that and"
        " stops. Go on?",
        yes,
        "Nothing was changed.",
    )


def _ask_to_give_up(lost: list[dict[str, Any]], batch_id: int, yes: bool, error: OperatorRequired) -> None:
    records = sum(row["records"] or 0 for row in lost)
    try:
        _ask(
            f"Give up {len(lost)} transactions of batch {batch_id}, with {records} records that no reader will ever see"
            " by this query? This can't be undone.",
            yes,
            "Nothing was given up.",
        )
    except Refused as refused:
        raise refused from error


def _ask(question: str, yes: bool, otherwise: str) -> None:
    if yes:
        return
    try:
        answer = click.confirm(f"twopc: {question}", err=True)
    except click.Abort:
        say("")
        raise Refused(f"There was no answer; --yes answers yes. {otherwise}") from None
    if not answer:
        raise Refused(f"The answer was no. {otherwise}")


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _shown(
    log: str | None, as_json: bool, draw: Callable[[Any, Document], None], command: Callable[[Report, Redaction], None]
) -> None:
    report, redact = Report({"log": log}), Redaction()
    stuck = False
    try:
        command(report, redact)
    except click.UsageError:
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # every error is told, and none as a traceback
        report.fail(error, redact)
        stuck = isinstance(error, NoAnswer | KeyboardInterrupt)
    try:
        report.show(as_json, draw)
    except OSError as error:  # such as a full disk, or a pipe that nobody reads any more
        say(f"the result can't be written to standard output: {error.strerror}.")
        report.code, stuck = exit_code(error, report.opened), True  # or Python would try once more as it ends
    if stuck:  # a thread that waits for a target would hold the process back
        sys.stderr.flush()
        os._exit(report.code)
    sys.exit(report.code)


def run() -> None:
    """Run the command that the process was started as."""
    logging.getLogger().addHandler(logging.NullHandler())  # what a client has to say is in the errors
    cli(prog_name="twopc")
