"""``twopc resolve``: recovery without the query."""

from __future__ import annotations

from pathlib import Path

import click

from twopc.cli.commands import parameters
from twopc.cli.commands.running import show
from twopc.cli.commands.settling import ask_to_fence, draw, recover, recovery_of
from twopc.cli.output import Report
from twopc.cli.sinks_file import Redaction
from twopc.exit_codes import ExitCode


@click.command()
@parameters.log
@parameters.sinks_file()
@parameters.replay_copies
@click.option(
    "--orphans", is_flag=True, help="Only roll back transactions that no driver can decide any more; fence no driver."
)
@click.option("--dry-run", is_flag=True, help="Show what the command would do, and change nothing.")
@parameters.yes
@parameters.timeout_s
@parameters.as_json
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
    """Recover without the query: commit the decided transactions, abort the others.

    This opens a new incarnation of the log, so a driver that still runs is fenced and stops. With --orphans, the
    command opens none: it only rolls back transactions of rounds that are over, and the query goes on.
    """

    def run(report: Report, redact: Redaction) -> None:
        report.document |= {"dry_run": dry_run, "opened": None, "committed": [], "replayed": [], "aborted": []}
        report.document |= {"orphans": orphans}
        with recovery_of(log, sinks_file, replay_copies, timeout_s, report, redact) as (history, recovery, waiting):
            if dry_run:
                is_work = report.document["plan"] or history.tail.unresolved
                report.code = ExitCode.IN_DOUBT if is_work else ExitCode.FINE
                return
            if orphans:
                waiting.call("rolling back orphans", recovery.end_orphans)
                return
            if not (report.document["plan"] or history.tail.unresolved or report.document["leftover_copies"]):
                return
            ask_to_fence(history, yes)
            recover(recovery, waiting, report)

    show(log, as_json, draw, run)
