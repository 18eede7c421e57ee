"""The ``twopc`` command, with which an operator sees and settles what is in doubt, gives up what is lost, and checks
target systems before there is a query.

==============  ===========================================================================
module          what it does
==============  ===========================================================================
commands        the commands, one module each
readings        reads logs, sinks and events again and again, each on a thread of its own
exporter        serves what they hold as metrics of Prometheus
sinks_file      creates the sinks from the operator's file
query_module    loads the sinks of a query from its own program
verdicts        decides what becomes of each transaction; no I/O
recovery        has the coordinator recover
checkpoint      compares a checkpoint with its log, and repairs it
waiting         bounds the time of calls to target systems
output          prints a command's document
timeline        puts a history in order, and adds it up; no I/O
time_axis       places times on an axis whose long gaps are cut; no I/O
trend           draws how a quantity changed; no I/O
page            draws the history as HTML
live            serves that page
==============  ===========================================================================
"""

from __future__ import annotations

import sys

from twopc.exit_codes import ExitCode

_NEEDED = ("click", "jinja2", "rich", "tomli")
"""The packages of the extra ``cli``."""


def main() -> None:
    """Run the console script."""
    try:
        from twopc.cli.commands import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        print(f"twopc: the command needs {error.name}: pip install 'twopc-core[cli]'", file=sys.stderr)
        sys.exit(ExitCode.USAGE)
    run()
