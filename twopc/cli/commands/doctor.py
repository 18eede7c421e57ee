"""``twopc doctor``: checks each sink and the place of the commit log before the first batch."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from twopc.checks import CheckResult, CheckStatus
from twopc.cli.commands import parameters
from twopc.cli.commands.running import show, waiting_for_targets
from twopc.cli.output import Document, Report
from twopc.cli.query_module import read_query
from twopc.cli.sinks_file import Redaction, read_sinks
from twopc.diagnosis import checks_of
from twopc.exit_codes import ExitCode


@click.command()
@click.option(
    "--query",
    metavar="MODULE:NAME",
    help="What the query's program passes to Spark: the result of foreach_batch, or the options of format('twopc').",
)
@parameters.sinks_file(required=False)
@click.option(
    "--log", metavar="URL", help="With --sinks: what the query is given as 'log', to check its place as well."
)
@parameters.timeout_s
@parameters.as_json
def doctor(query: str | None, sinks_file: Path | None, log: str | None, timeout_s: float, as_json: bool) -> None:
    """Check the target systems before the first batch: what they would refuse, and what they could lose.

    Checks try out what they can, then roll it back or remove it. Each reports passed, warning or failed. The exit
    code is 4 if one failed.
    """
    if (query is None) == (sinks_file is None):
        raise click.UsageError("Give either --query or --sinks.")
    if query is not None and log is not None:
        raise click.UsageError("--log is for --sinks: the query has its own log.")

    def run(report: Report, redact: Redaction) -> None:
        rows: list[Document] = report.document.setdefault("checks", [])
        if sinks_file is not None:
            checks = checks_of(read_sinks(sinks_file, redact), log)
        else:
            checks = checks_of(*read_query(str(query)))
        with waiting_for_targets(timeout_s, redact) as waiting:
            for sink, results in checks:
                what = "checking the log" if sink is None else f"checking sink {sink!r}"
                while result := waiting.call(what, next, results, None):
                    rows.append(_row(result, redact))
                    if result.result is CheckStatus.FAILED:
                        report.code = ExitCode.OPERATOR_REQUIRED

    show(log, as_json, _draw, run)


def _row(result: CheckResult, redact: Redaction) -> Document:
    return {
        "sink": result.sink,
        "check": redact(result.check),
        "result": result.result.value,
        "detail": redact(result.detail),
        "advice": redact(result.advice),
    }


def _draw(console: Console, document: Document) -> None:
    """Draw one line per check, however long, and the number of checks per result."""
    rows = document.get("checks", ())
    cells = [(row["sink"] or "(the log)", row["check"], row["result"], _found(row)) for row in rows]
    if cells:
        lines = [("sink", "check", "result", "detail"), *cells]
        widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[:-1]]
        for line in lines:
            padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
            console.print(Text("   ".join([*padded, line[-1]]).rstrip()), soft_wrap=True)
    results = [row["result"] for row in rows]
    if "error" not in document:
        console.print(", ".join(f"{results.count(result.value)} {result.value}" for result in CheckStatus))


def _found(row: Document) -> str:
    return " ".join("; ".join(filter(None, (row["detail"], row["advice"]))).split())
