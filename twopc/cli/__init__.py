"""The ``twopc`` command: a person's way to see what is in doubt, to resolve it, and to give up what is lost; and to
examine targets before there is a query.

``commands`` has the five commands, ``history`` reads a log without changing it, ``sinks_file`` makes the sinks,
``verdicts`` says what becomes of each transaction (pure), ``recovery`` has the coordinator do it, ``doctor`` examines,
``waiting`` bounds how long, ``report`` shows it, ``timeline`` puts a history in order (pure), ``page`` draws that,
``exit_codes`` tells programs.
"""

from __future__ import annotations

import sys

from twopc.cli.exit_codes import ExitCode

_NEEDED = ("click", "jinja2", "rich", "tomli")
"""The packages of the extra ``cli``."""


def main() -> None:
    """The console script."""
    try:
        from twopc.cli.commands import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        print(f"twopc: the command needs {error.name}: pip install 'twopc-core[cli]'", file=sys.stderr)
        sys.exit(ExitCode.USAGE)
    run()
