"""The commands of ``twopc``, each in a module of its own with the document that it prints and how it is drawn.

==============  ===========================================================================
module          what it has
==============  ===========================================================================
status          ``twopc status``: what a log has decided, and what is in doubt
report          ``twopc report``: the same and its history, as a page
serve_metrics   ``twopc serve-metrics``: the same of any number of logs, for Prometheus
doctor          ``twopc doctor``: checks before the first batch
backends        ``twopc backends``: the installed backends
transactions    ``twopc transactions``: open transactions with the log's verdicts
resolve         ``twopc resolve``: recovery without the query
abandon         ``twopc abandon``: gives up what is lost
checkpoint      ``twopc checkpoint``: compares and repairs a checkpoint
parameters      arguments and options that several commands have
running         how a command runs: one document, questions, exit codes
settling        what ``resolve`` and ``abandon`` share: recovery, and its result
==============  ===========================================================================
"""

from __future__ import annotations

import logging

import click

from twopc.cli.commands.abandon import abandon
from twopc.cli.commands.backends import backends
from twopc.cli.commands.checkpoint import checkpoint
from twopc.cli.commands.doctor import doctor
from twopc.cli.commands.report import report
from twopc.cli.commands.resolve import resolve
from twopc.cli.commands.serve_metrics import serve_metrics
from twopc.cli.commands.status import status
from twopc.cli.commands.transactions import transactions


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="twopc-core", prog_name="twopc")
def cli() -> None:
    """Show and settle the transactions that a query left in doubt, and check its target systems before the first batch.

    LOG is the URL or path that the query was given as 'log'.

    Exit codes: 0 fine, 1 something is in doubt or needs repair, 2 wrong usage, 3 refused and nothing changed, 4 an
    operator must decide, 5 fenced by a newer driver, 6 a target system did not answer, 70 any other error.
    """


for command in (status, report, serve_metrics, backends, doctor, transactions, resolve, abandon, checkpoint):
    cli.add_command(command)


def run() -> None:
    """Run the command that the process was started as."""
    logging.getLogger().addHandler(logging.NullHandler())  # the errors contain what a client logs
    cli(prog_name="twopc")
