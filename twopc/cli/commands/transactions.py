"""``twopc transactions``: the open transactions of one sink, with the log's verdicts."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from twopc.cli.commands import parameters
from twopc.cli.commands.running import history_of, show, waiting_for_targets
from twopc.cli.output import Document, Report, say, verdicts_table
from twopc.cli.recovery import Recovery
from twopc.cli.sinks_file import Redaction, read_sinks
from twopc.errors import ConfigurationError
from twopc.exit_codes import ExitCode


@click.command()
@parameters.log
@click.option("--sink", required=True, metavar="NAME", help="The sink's name in the query and in FILE.")
@parameters.sinks_file()
@parameters.timeout_s
@parameters.as_json
def transactions(log: str, sink: str, sinks_file: Path, timeout_s: float, as_json: bool) -> None:
    """Show every open transaction of a sink with the log's verdict on it. Changes nothing."""

    def run(report: Report, redact: Redaction) -> None:
        history = history_of(log, report)
        sinks = read_sinks(sinks_file, redact)
        if sink not in sinks:
            raise ConfigurationError(f"{sinks_file} has no sink {sink!r}; it has {', '.join(sorted(sinks))}.")
        if history.sinks and sink not in history.sinks:
            say(f"no kept decision of this log names a sink {sink!r}; they name {', '.join(history.sinks)}.")
        with waiting_for_targets(timeout_s, redact) as waiting:
            recovery = Recovery(history, {sink: sinks[sink]}, None)
            rows = waiting.call(f"listing the transactions of sink {sink!r}", recovery.look)
        report.document |= {"sink": sink, "transactions": [row.to_json() for row in rows]}
        report.code = ExitCode.IN_DOUBT if rows else ExitCode.FINE

    show(log, as_json, _draw, run)


def _draw(console: Console, document: Document) -> None:
    rows = document.get("transactions")
    if rows:
        console.print(verdicts_table(f"Transactions of log {document['log_id']}", rows))
    elif rows is not None:
        console.print("No transaction of this log is open, and none is in doubt.")
