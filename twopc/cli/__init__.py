"""The ``twopc`` command: shows and settles transactions in doubt, gives up lost ones, and checks target systems before
there is a query."""

from __future__ import annotations

import sys

from twopc.exit_codes import ExitCode

_NEEDED = ("click", "rich", "tomli")  # the packages of the extra ``cli``


def main() -> None:
    """Run the console script."""
    try:
        from twopc.cli.commands import run

        run()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED:
            raise
        print(f"twopc: the command needs {package}: pip install 'twopc-core[cli]'", file=sys.stderr)
        sys.exit(ExitCode.USAGE)
