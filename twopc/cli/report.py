"""What a command shows: one document. Programs get it as JSON, people as tables made from the same document."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from twopc.checks import CheckStatus
from twopc.cli.exit_codes import ExitCode, exit_code
from twopc.cli.verdicts import Verdict
from twopc.errors import TwoPhaseCommitError

Document: TypeAlias = "dict[str, Any]"

WIDE = 200
"""Columns where the output is no terminal: a log file or a pager can scroll, and ids should stay in one piece."""

SHOWN = 50
"""Rows of one table; a batch may have a transaction for each of thousands of partitions, and JSON has them all."""

WATCH_S = 1.0
"""Between two looks at a log, each of which reads its 33 entries at most."""


@dataclass
class Report:
    """The document of one command, as far as it got."""

    document: Document = field(default_factory=dict)
    opened: bool = False
    code: ExitCode = ExitCode.FINE

    def fail(self, error: BaseException, redact: Callable[[str], str]) -> None:
        """Add what went wrong."""
        self.code = exit_code(error, self.opened)
        message = str(error) or "interrupted"
        if self.code is ExitCode.DEFECT:
            message += " -- this is a defect of twopc or of a plugin, please report it"
        if self.opened and self.code is not ExitCode.OPERATOR_REQUIRED:
            message += " The log was opened before, which fenced older drivers; running the command again is safe."
        self.document["error"] = {"kind": type(error).__name__, "message": redact(message)}

    def show(self, as_json: bool, draw: Callable[[Console, Document], None]) -> None:
        """Results go to standard output, what went wrong to standard error as well."""
        if as_json:
            print(json.dumps({**self.document, "exit_code": int(self.code)}, indent=1))
        else:
            draw(_console(sys.stdout), self.document)
            if error := self.document.get("error"):
                sys.stdout.flush()
                say(f"{error['kind']}: {error['message']}")
        sys.stdout.flush()


def say(text: str) -> None:
    """A line for a person beside the results."""
    print(f"twopc: {text}", file=sys.stderr, flush=True)


def _console(file: Any) -> Console:
    return Console(file=file, width=None if file.isatty() else WIDE, highlight=False, markup=False, emoji=False)


# Tables. ----------------------------------------------------------------------------------------------------------


def draw_status(console: Console, document: Document) -> None:
    """The state of a log."""
    if "owner" in document:
        console.print(status_view(document))


def status_view(document: Document) -> Group:
    """The state of a log, to be printed or watched."""
    stop = "stopped cleanly" if document["clean_stop"] else "runs, or did not stop cleanly"
    facts = _facts(
        {
            "log": document["log"],
            "query": f"{document['owner']} (log id {document['log_id']})",
            "incarnation": f"{document['incarnation']}, {stop}",
            "newest entry": f"{document['kind']}, written {document['written_at']}; {document['entries']} entries kept",
            "last decided batch": _batch(document["decided"]),
            "committed through": _batch(document["committed_through"]),
        }
    )
    doubt = [
        (d["batch_id"], d["incarnation"], sink, counts["transactions"], counts["records"], d["since"])
        for d in document["in_doubt"]
        for sink, counts in d["sinks"].items()
    ]
    parts: list[RenderableType] = [facts]
    if waits_for := document["waits_for"]:
        parts.append(
            f"Needs an operator: {waits_for['what']}: no answer for {waits_for['waited_s']:.0f} s at {waits_for['at']}"
            f" ({waits_for['reason']})"
        )
    if document["in_doubt"]:
        columns = ("batch", "incarnation", "sink", "transactions", "records", "since")
        parts.append(_table("In doubt: decided, and not known to be committed", columns, doubt))
        parts.append("A query that runs settles this by itself. If none does: start it again, or 'twopc resolve'.")
    else:
        parts.append("Nothing is in doubt.")
    lost = [
        (a["batch_id"], sink, len(of_sink["transactions"]), of_sink["records"], a["by"], a["at"])
        for a in document["abandoned"]
        for sink, of_sink in a["sinks"].items()
    ]
    if lost:
        columns = ("batch", "sink", "transactions", "records", "by", "at")
        parts.append(_table("Given up: decided, and not in the target", columns, lost))
    return Group(*parts)


def watch_status(report: Report, look: Callable[[], None]) -> None:
    """Show the status in ``report`` again and again, until Ctrl-C. ``look`` renews it; what it raises is shown, since a
    log that can't be read now may be readable soon."""
    wrong: RenderableType = ""
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(console=_console(sys.stdout), transient=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(Group(status_view(report.document), wrong, "Ctrl-C ends this."), refresh=True)
            time.sleep(WATCH_S)
            try:
                look()
                wrong = ""
            except (TwoPhaseCommitError, OSError) as error:
                wrong = Text(f"Not up to date: {type(error).__name__}: {error}", style="bold")


def draw_page(console: Console, document: Document) -> None:
    """Where the page is."""
    if "page" in document:
        console.print(Text(f"{document['page']}: {document['moments']} moments, {len(document['in_doubt'])} in doubt"))


def draw_transactions(console: Console, document: Document) -> None:
    """The transactions of one sink, or of all, with the verdicts."""
    rows = document.get("transactions")
    if rows is None:
        return
    _judged(console, f"Transactions of log {document['log_id']}", rows)
    if not rows:
        console.print("No transaction of this log is open, and none is in doubt.")


def draw_recovery(console: Console, document: Document) -> None:
    """What recovery does or did."""
    if "plan" not in document:
        return
    if document.get("dry_run"):
        _judged(console, "What resolve would do (nothing was changed)", document["plan"])
        if document["leftover_copies"]:
            console.print(f"{document['leftover_copies']} replay copies would be removed when they are not needed.")
        if not document["plan"]:
            console.print("Nothing to resolve.")
        return
    for what in ("committed", "replayed", "aborted"):
        rows = [(r["sink"], r["transaction_id"], _count(r["records"])) for r in document.get(what, ())]
        if rows:
            console.print(_table(what.capitalize(), ("sink", "transaction", "records"), rows))
    lost = document.get("given_up", ())
    if lost:
        rows = [(r["sink"], r["transaction_id"], _count(r["records"])) for r in lost]
        by = f"by {document['by']}" if document["noted"] else "NOT given up"
        console.print(_table(f"Lost of batch {document['batch_id']}, {by}", ("sink", "transaction", "records"), rows))
    if "error" not in document:
        console.print(_recovered(document))


def _recovered(document: Document) -> str:
    if document.get("orphans"):
        return f"{len(document['aborted'])} orphans were rolled back. No driver was fenced."
    if document.get("opened") is None:
        return "Nothing to resolve; nothing was changed."
    return f"Nothing is in doubt any more. Incarnation {document['opened']} is closed."


def draw_checkpoint(console: Console, document: Document) -> None:
    """A checkpoint beside its log, and what repair does about it."""
    if "planned" not in document:
        return
    kept = document["kept_from"]
    console.print(
        _facts(
            {
                "log": f"{document['log']}: decided batch {_batch(document['decided'])}, {document['written_at']}",
                "": "does not tell what batches read" if kept is None else f"tells what batches read from {kept} on",
                "checkpoint": f"{document['checkpoint']}: planned batch {_batch(document['planned'])},"
                f" noted batch {_batch(document['noted'])} as done",
                "query": f"{document['query_id']}, {'with' if document['has_state'] else 'without'} state",
            }
        )
    )
    rows = [(batch_id, "", "decided", "not planned") for batch_id in document["missing"]]
    rows += [("", path, "", "cut off") for path in document["cut_off"]]
    rows += [
        (mismatch["batch_id"], each["path"], _json(each["decided"]), _json(each["planned"]))
        for mismatch in document["mismatches"]
        for each in mismatch["differences"]
    ]
    if rows:
        console.print(_table("Differences", ("batch", "where", "log", "checkpoint"), rows))
    for mismatch in document["mismatches"]:
        for source, count in mismatch["records"].items():
            way = f"{count} records later" if count > 0 else f"{-count} records earlier"
            console.print(f"Batch {mismatch['batch_id']} of the checkpoint ends {way} in source {source}.")
    if document.get("changes"):
        changes = [(change["action"], change["path"]) for change in document["changes"]]
        console.print(_table("What repair does", ("", "file"), changes))
    if "changes" in document:
        console.print(_going_on(document))


def draw_repair(console: Console, document: Document) -> None:
    """What was done, below what was shown before the question."""
    if not document.get("changes"):
        draw_checkpoint(console, document)
    elif document["repaired"]:
        console.print(f"Repaired. What was replaced is in {document['put_aside']}.")


def _going_on(document: Document) -> str:
    batch_id, remaining = document["goes_on_with"], document["remaining"]
    if batch_id is None:
        return (
            "The query goes on with a new batch." if document["changes"] else "Nothing to repair: they belong together."
        )
    text = f"The query goes on with batch {batch_id}, which it evaluates once more and does not write again."
    if not document["changes"]:
        text = f"Nothing to repair. {text}"
    if remaining:
        text += (
            f" It then stops with LogMismatch: its state takes every batch, one by one. Repair and start it {remaining}"
            " more times."
        )
    return text


def _json(value: object) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def draw_findings(console: Console, document: Document) -> None:
    """What was examined, with the advice below it, and how much of it failed."""
    table = Table(box=None, pad_edge=False)
    for column in ("sink", "result", "what was examined, and what to do"):
        table.add_column(column, overflow="fold")
    rows = document.get("findings", ())
    for row in rows:
        told = "\n".join(filter(None, (row["what"], row["advice"])))
        table.add_row(*map(Text, (row["sink"] or "(the log)", row["result"], told)))
    if rows:
        console.print(table)
    results = [row["result"] for row in rows]
    if "error" not in document:
        console.print(", ".join(f"{results.count(result.value)} {result.value}" for result in CheckStatus))


def _judged(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        cells = [
            (
                r["sink"],
                r["transaction_id"],
                _batch(r["batch_id"], "-"),
                _count(r["records"]),
                Verdict(r["verdict"]).meaning,
            )
            for r in rows
        ]
        console.print(_table(title, ("sink", "transaction", "batch", "records", "verdict"), cells))


def _facts(facts: Mapping[str, str]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    return grid


def _table(title: str, columns: Iterable[str], rows: Sequence[Iterable[object]]) -> Group:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows[:SHOWN]:
        table.add_row(*(Text(str(cell)) for cell in row))
    more = [f"and {len(rows) - SHOWN} more: --json has all of them"] if len(rows) > SHOWN else []
    return Group("", table, *more)


def _batch(batch_id: int | None, nothing: str = "none") -> str:
    return nothing if batch_id is None or batch_id < 0 else str(batch_id)


def _count(records: int | None) -> str:
    return "?" if records is None else str(records)
