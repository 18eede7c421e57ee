"""``twopc report``: a page with the history of a log, as a file or served."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from twopc.cli.commands import parameters
from twopc.cli.commands.running import show
from twopc.cli.commands.status import add_status
from twopc.cli.live import LivePage, describe_error, serve
from twopc.cli.output import Document, Report, batch_number, say
from twopc.cli.page import Contents, now, render
from twopc.cli.sinks_file import Redaction
from twopc.cli.timeline import timeline, totals
from twopc.errors import ConfigurationError
from twopc.events import BatchFailed, BatchFinished
from twopc.exit_codes import exit_code
from twopc.log.history import read_history
from twopc.observers.json_lines import Recorded, read_lines

PORT = 8765
"""A port that neither Spark's user interface nor an exporter of metrics has by default."""


@click.command()
@parameters.log
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The HTML page, which needs no network. An existing file is replaced.",
)
@click.option("--serve", "is_served", is_flag=True, help="Serve the page on 127.0.0.1 until Ctrl-C.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help=f"Where --serve listens; {PORT} by default. 0 is any free port.",
)
@click.option(
    "--events",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file of the query's JsonLinesObserver: times of phases, and batches that the log no longer keeps.",
)
@parameters.as_json
def report(
    log: str, output: Path | None, is_served: bool, port: int | None, events: Path | None, as_json: bool
) -> None:
    """Show the history of a log on a page: batches, crashes, trends, what is in doubt. Reads only the log and FILE.

    Needs -o FILE or --serve.
    """
    if (output is not None) == is_served:
        raise click.UsageError("name the file of the page with -o, or serve the page with --serve")
    if port is not None and not is_served:
        raise click.UsageError("--port is for --serve")
    if is_served and as_json:
        raise click.UsageError("--serve prints no JSON: write the page with -o, or call status again and again")

    def run(report: Report, _: Redaction) -> None:
        if output is None:
            _serve(log, events, PORT if port is None else port, report)
        else:
            _write(output, render(_contents(log, events, report)))
            report.document["page"] = str(output)

    show(log, as_json, _draw, run)


def _contents(log: str, events: Path | None, report: Report) -> Contents:
    """Read the log and the events file, and put what they say into the document."""
    made_at = now()
    history = read_history(log)
    lines, remarks = _lines(events, history.tail.owner) if events else ([], [])
    moments = timeline(history, lines)
    add_status(history, report)
    sums = totals(moments)
    report.document |= {"moments": len(moments), "totals": asdict(sums), "remarks": remarks}
    return Contents(report.document, history, moments, sums, events is not None, remarks, made_at)


def _lines(events: Path, owner: str) -> tuple[list[Recorded], list[str]]:
    """Return the query's batches, and what is wrong with the file."""
    own: list[Recorded] = []
    others: Counter[str] = Counter()
    unread = 0
    try:
        for recorded in read_lines(events):
            if recorded is None:
                unread += 1
            elif isinstance(event := recorded.event, BatchFinished | BatchFailed):
                own += [recorded] if event.owner == owner else []
                others[event.owner] += event.owner != owner
    except OSError as error:
        raise ConfigurationError(f"the events file {events} can't be read: {error.strerror}.") from error
    remarks = [f"{unread:,} lines of the events file could not be read."] if unread else []
    if not own:
        of_others = f" {others.total():,} lines are of other queries, such as {min(others)!r}." if others else ""
        remarks.append(f"The events file {events} has no line of query {owner!r}.{of_others}")
    return own, remarks


def _write(output: Path, page: str) -> None:
    try:
        output.write_text(page, encoding="utf-8", errors="replace")  # JSON may hold half a surrogate pair
    except OSError as error:
        raise ConfigurationError(f"the page {output} can't be written: {error.strerror}.") from error


def _serve(log: str, events: Path | None, port: int, report: Report) -> None:
    """Serve the page until Ctrl-C. The exit code is that of the last read."""
    newest: Report | None = None
    wrong = ""

    def read() -> Contents:
        nonlocal newest
        newest = Report({"log": log})
        return _contents(log, events, newest)

    def seen(error: Exception | None) -> None:
        nonlocal wrong
        assert newest is not None  # it has been read
        text = describe_error(error) if error else ""
        report.code = exit_code(error, False) if error else newest.code
        if text != wrong:
            say(text or "the log can be read again")
        wrong = text
        if not error:
            known = newest.document
            line.update(
                f"batch {batch_number(known['decided'])} decided, {len(known['in_doubt'])} in doubt, at {now()}"
            )

    with contextlib.suppress(KeyboardInterrupt), Console(stderr=True).status("Ctrl-C ends this.") as line:
        serve(LivePage(read, seen), port, lambda url: say(f"{url} shows the log. Ctrl-C ends this."))


def _draw(console: Console, document: Document) -> None:
    if "page" in document:
        console.print(Text(f"{document['page']}: {document['moments']} moments, {len(document['in_doubt'])} in doubt"))
        for remark in document["remarks"]:
            console.print(Text(remark))
