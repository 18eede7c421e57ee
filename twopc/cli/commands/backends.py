"""``twopc backends``: the installed backends, and those that can't be loaded, with the reason."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import click
from rich.console import Console

from twopc.cli.commands import parameters
from twopc.cli.commands.running import show
from twopc.cli.output import Document, Report, table
from twopc.cli.sinks_file import Redaction
from twopc.errors import ConfigurationError
from twopc.exit_codes import ExitCode
from twopc.plugins import sink_class
from twopc.registry import BACKENDS


@click.command()
@parameters.as_json
def backends(as_json: bool) -> None:
    """List the installed backends. The exit code is 3 if one of them can't be loaded."""

    def run(report: Report, _: Redaction) -> None:
        found = sorted(entry_points(group=BACKENDS), key=lambda entry_point: (entry_point.name, entry_point.value))
        report.document["backends"] = rows = [_row(entry_point) for entry_point in found]
        report.code = ExitCode.REFUSED if any(row["reason"] for row in rows) else ExitCode.FINE

    show(None, as_json, _draw, run)


def _row(entry_point: EntryPoint) -> Document:
    distribution = entry_point.dist
    return {
        "name": entry_point.name,
        "distribution": distribution.name if distribution else None,
        "version": distribution.version if distribution else None,
        "module": entry_point.module,
        "reason": _why_not(entry_point.name),
    }


def _why_not(backend: str) -> str | None:
    """Return why the backend can't be loaded, or None."""
    try:
        sink_class(backend)
    except ConfigurationError as error:
        return error.message
    return None


def _draw(console: Console, document: Document) -> None:
    rows = document.get("backends", ())
    if not rows:
        console.print("No backend is installed. Each is a distribution of its own, such as twopc-kafka.")
        return
    columns = ("name", "distribution", "version", "module")
    loaded = [[row[column] or "-" for column in columns] for row in rows if not row["reason"]]
    broken = [[*(row[column] or "-" for column in columns), row["reason"]] for row in rows if row["reason"]]
    if loaded:
        console.print(table("Backends", columns, loaded))
    if broken:
        console.print(table("Not loaded", (*columns, "reason"), broken))
