"""``twopc report``: a page with the timeline of a log."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from twopc.cli.commands import parameters
from twopc.cli.commands.running import show
from twopc.cli.commands.status import add_status
from twopc.cli.output import Document, Report
from twopc.cli.page import render
from twopc.cli.sinks_file import Redaction
from twopc.cli.timeline import timeline
from twopc.errors import ConfigurationError
from twopc.log.history import read_history
from twopc.observers.json_lines import Line, read_lines


@click.command()
@parameters.log
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The HTML page, which needs no network. An existing file is replaced.",
)
@click.option(
    "--events",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file of the query's JsonLinesObserver: times of phases, and batches that the log no longer keeps.",
)
@parameters.as_json
def report(log: str, output: Path, events: Path | None, as_json: bool) -> None:
    """Write a page with the timeline of a log: batches, recoveries, what is in doubt. Reads only the log and FILE."""

    def run(report: Report, _: Redaction) -> None:
        history = read_history(log)
        lines = _lines(events, history.tail.owner) if events else []
        moments = timeline(history, [line for line in lines if line])
        add_status(history, report)
        made_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        page = render(report.document, history, moments, lines.count(None), made_at)
        try:
            output.write_text(page, encoding="utf-8", errors="replace")  # JSON may hold half a surrogate pair
        except OSError as error:
            raise ConfigurationError(f"the page {output} can't be written: {error.strerror}.") from error
        report.document |= {"page": str(output), "moments": len(moments)}

    show(log, as_json, _draw, run)


def _lines(events: Path, owner: str) -> list[Line | None]:
    try:
        return list(read_lines(events, owner))
    except OSError as error:
        raise ConfigurationError(f"the events file {events} can't be read: {error.strerror}.") from error


def _draw(console: Console, document: Document) -> None:
    if "page" in document:
        console.print(Text(f"{document['page']}: {document['moments']} moments, {len(document['in_doubt'])} in doubt"))
