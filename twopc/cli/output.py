"""The output of a command: one document, as JSON for programs, as tables for operators."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from twopc.cli.verdicts import Verdict
from twopc.cli.waiting import NoAnswer
from twopc.errors import TwoPhaseCommitError
from twopc.exit_codes import ExitCode, exit_code

Document: TypeAlias = "dict[str, Any]"

WIDE = 200
"""Columns if the output is no terminal: a log file or a pager can scroll, and ids should stay in one piece."""

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}

SHOWN = 50
"""Rows of one table. A batch may have one transaction for each of thousands of partitions; JSON has them all."""


@dataclass
class Report:
    """The document of one command, as far as it got."""

    document: Document = field(default_factory=dict)
    opened: bool = False
    code: ExitCode = ExitCode.FINE

    def fail(self, error: BaseException, redact: Callable[[str], str]) -> None:
        """Add the error that ended the command."""
        self.code = exit_code(error, self.opened)
        message = str(error) or "interrupted"
        if self.code is ExitCode.OTHER:
            message += " -- this is a defect of twopc or of a plugin, please report it"
        if self.opened and self.code is not ExitCode.OPERATOR_REQUIRED:
            message += " The log was opened before, which fenced older drivers; running the command again is safe."
        self.document["error"] = {"kind": kind_of(error), "message": redact(message)}

    def show(self, as_json: bool, draw: Callable[[Console, Document], None]) -> None:
        """Print the results to standard output, and an error to standard error as well."""
        if as_json:
            print(json.dumps({**self.document, "exit_code": int(self.code)}, indent=1))
        else:
            draw(standard_output(), readable(self.document))
            if error := self.document.get("error"):
                sys.stdout.flush()
                say(f"{error['kind']}: {error['message']}")
        sys.stdout.flush()


def kind_of(error: BaseException) -> str:
    """Return the error's class in the catalog, or the name of a class that is not in it."""
    if isinstance(error, TwoPhaseCommitError) and not isinstance(error, NoAnswer):
        return error.kind
    return type(error).__name__


def say(text: str) -> None:
    """Print a line for the operator, beside the results."""
    print(f"twopc: {readable(text)}", file=sys.stderr, flush=True)


def readable(value: Any) -> Any:
    """Return a document whose texts show control characters, and halves of surrogate pairs, as their codes. Whoever can
    write to a log's place can put them into its texts: a terminal would obey the first, and take none of the others."""
    if isinstance(value, str):
        return value.translate(_CONTROL).encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {readable(key): readable(each) for key, each in value.items()}
    return [readable(each) for each in value] if isinstance(value, (list, tuple)) else value


def standard_output() -> Console:
    """Return a console that prints text as is, and wraps it only if the output is a terminal."""
    width = None if sys.stdout.isatty() else WIDE
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def facts(values: Mapping[str, str]) -> Table:
    """Draw names and values, one per line."""
    grid = Table.grid(padding=(0, 2))
    for name, value in values.items():
        grid.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    return grid


def table(title: str, columns: Iterable[str], rows: Sequence[Iterable[object]]) -> Group:
    """Draw at most ``SHOWN`` rows, and how many more there are."""
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows[:SHOWN]:
        drawn.add_row(*(Text(str(cell)) for cell in row))
    more = [f"and {len(rows) - SHOWN} more: --json has all of them"] if len(rows) > SHOWN else []
    return Group("", drawn, *more)


def verdicts_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Group:
    """The transactions of ``twopc.cli.verdicts``, in words."""
    cells = [
        (
            row["sink"],
            row["transaction_id"],
            batch_number(row["batch_id"], "-"),
            record_count(row["records"]),
            Verdict(row["verdict"]).meaning,
        )
        for row in rows
    ]
    return table(title, ("sink", "transaction", "batch", "records", "verdict"), cells)


def batch_number(batch_id: int | None, nothing: str = "none") -> str:
    """The number of a batch, or ``nothing`` before the first batch."""
    return nothing if batch_id is None or batch_id < 0 else str(batch_id)


def record_count(records: int | None) -> str:
    """The number of records, or a question mark where it is not known."""
    return "?" if records is None else str(records)
