"""The output of a command: one document, as JSON for programs or as tables for operators."""

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
"""The width if the output is not a terminal: log files and pagers scroll, and ids should not be wrapped."""

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}

SHOWN = 50
"""The most rows that a table shows. A batch may have a transaction for each of thousands of partitions. JSON output
contains all of them."""


@dataclass
class Report:
    """The document that a command fills in. If the command fails, the document contains the results up to then."""

    document: Document = field(default_factory=dict)
    opened: bool = False
    code: ExitCode = ExitCode.FINE

    def fail(self, error: BaseException, redact: Callable[[str], str]) -> None:
        """Add the error that ended the command, and set the exit code."""
        self.code = exit_code(error, self.opened)
        message = str(error) or "interrupted"
        if self.code is ExitCode.OTHER:
            message += " -- this is a defect of twopc or of a plugin, please report it"
        if self.opened and self.code is not ExitCode.OPERATOR_REQUIRED:
            message += " The log was opened before, which fenced older drivers; running the command again is safe."
        self.document["error"] = {"kind": kind_of(error), "message": redact(message)}

    def show(self, as_json: bool, draw: Callable[[Console, Document], None]) -> None:
        """Print the document to standard output; with tables, print the error to standard error."""
        if as_json:
            print(json.dumps({**self.document, "exit_code": int(self.code)}, indent=1))
        else:
            draw(standard_output(), readable(self.document))
            if error := self.document.get("error"):
                sys.stdout.flush()
                say(f"{error['kind']}: {error['message']}")
        sys.stdout.flush()


def kind_of(error: BaseException) -> str:
    """Return the name under which the catalog lists the error's class, or else the name of the class itself."""
    if isinstance(error, TwoPhaseCommitError) and not isinstance(error, NoAnswer):
        return error.kind
    return type(error).__name__


def say(text: str) -> None:
    """Print a line for the operator to standard error."""
    print(f"twopc: {readable(text)}", file=sys.stderr, flush=True)


def readable(value: Any) -> Any:
    """Return a document with control characters and lone surrogates replaced by their codes. Anyone who can write to a
    log's folder can put such characters into a log. A terminal would obey the control characters, and lone surrogates
    can't be printed."""
    if isinstance(value, str):
        return value.translate(_CONTROL).encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {readable(key): readable(each) for key, each in value.items()}
    return [readable(each) for each in value] if isinstance(value, (list, tuple)) else value


def standard_output() -> Console:
    """Return a console that prints text as it is, and wraps it only for a terminal."""
    width = None if sys.stdout.isatty() else WIDE
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def facts(values: Mapping[str, str]) -> Table:
    """Draw names and values, one per line."""
    grid = Table.grid(padding=(0, 2))
    for name, value in values.items():
        grid.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    return grid


def table(title: str, columns: Iterable[str], rows: Sequence[Iterable[object]]) -> Group:
    """Draw at most ``SHOWN`` rows, and the number of the others."""
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows[:SHOWN]:
        drawn.add_row(*(Text(str(cell)) for cell in row))
    more = [f"and {len(rows) - SHOWN} more: --json has all of them"] if len(rows) > SHOWN else []
    return Group("", drawn, *more)


def verdicts_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Group:
    """Draw judged transactions (``twopc.cli.verdicts``), with the meaning of each verdict."""
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
    """Return a batch's number as text, or ``nothing`` before the first batch."""
    return nothing if batch_id is None or batch_id < 0 else str(batch_id)


def record_count(records: int | None) -> str:
    """Return a number of records as text, or a question mark if unknown."""
    return "?" if records is None else str(records)
