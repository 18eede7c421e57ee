"""The commands of ``twopc``. Each has a module of its own, which builds the command's document and draws it.

``parameters`` defines the options that several commands share, ``running`` runs a command, and ``settling`` is shared
by ``resolve`` and ``abandon``.
"""

from __future__ import annotations

import io
import logging
import sys
from importlib import import_module

import click

COMMANDS = {
    "status": "Show what a log has decided, and what is in doubt.",
    "serve-metrics": "Serve metrics of any number of logs to Prometheus.",
    "doctor": "Check the target systems before the first batch.",
    "resolve": "Recover without the query: commit the decided transactions, abort the others.",
    "abandon": "Give up the lost transactions of a decided batch.",
    "checkpoint": "Compare a query's checkpoint with its log, and restore what it lacks.",
}
"""Command → its line of help."""


class _Commands(click.Group):
    """Loads a command only when it is called. Each needs its own packages; the list of commands needs none."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"{__name__}.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="twopc-core", prog_name="twopc")
def cli() -> None:
    """Show and settle the transactions that a query left in doubt, and check its target systems before the first batch.

    LOG is the URL or path that the query was given as 'log'.

    Exit codes: 0 fine, 1 something is in doubt or needs repair, 2 wrong usage, 3 refused and nothing changed, 4 an
    operator must decide, 5 fenced by a newer driver, 6 a target system did not answer, 70 any other error.
    """


def run() -> None:
    """Run the command that the process was started as."""
    logging.getLogger().addHandler(logging.NullHandler())  # errors already contain the clients' log lines
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # like stderr: the locale may lack a character of a name
    cli(prog_name="twopc")
