"""Recovery for ``resolve`` and ``abandon``: preparation, the question before it, and the drawing of its result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

import twopc
from twopc.cli.commands.running import ask, history_of, waiting_for_targets
from twopc.cli.output import Document, Report, record_count, say, table, verdicts_table
from twopc.cli.recovery import Recovery, Work
from twopc.cli.sinks_file import Redaction, read_sinks
from twopc.cli.waiting import Waiting
from twopc.log.history import History


@contextlib.contextmanager
def recovery_of(
    log: str, sinks_file: Path, replay_copies: str | None, timeout_s: float, report: Report, redact: Redaction
) -> Iterator[tuple[History, Recovery, Waiting]]:
    """Add the plan of the recovery to ``report``, without changing anything. Then yield the log's history, the
    recovery, and the runner of its calls."""
    history = history_of(log, report)
    sinks = read_sinks(sinks_file, redact)
    recovery = Recovery(history, sinks, replay_copies)
    recovery.check()
    for name in sorted(set(history.sinks) - sinks.keys()):
        say(f"{sinks_file} has no sink {name!r}, which this log has written to: its open transactions stay open.")
    with waiting_for_targets(timeout_s, redact) as waiting:
        plan = waiting.call(f"listing the transactions of {', '.join(sorted(sinks))}", recovery.look)
        copies = waiting.call("listing the replay copies", recovery.leftover_copies)
        report.document |= {"plan": [row.to_json() for row in plan], "leftover_copies": len(copies)}
        work = Work()
        report.document |= {"committed": work.committed, "replayed": work.replayed, "aborted": work.aborted}
        twopc.register_observer(work)
        try:
            yield history, recovery, waiting
        finally:
            twopc.unregister_observer(work)
            work.sort()


def recover(recovery: Recovery, waiting: Waiting, report: Report) -> None:
    """Run the recovery. Even if it fails, the document then names the incarnation that the recovery opened."""
    try:
        waiting.call("opening the log", recovery.run)
    finally:
        report.opened = report.opened or recovery.incarnation is not None
        report.document["opened"] = recovery.incarnation


def ask_to_fence(history: History, yes: bool) -> None:
    """Ask whether an older driver may be fenced. Raises Refused: the answer is no."""
    state = "it stopped cleanly" if history.is_clean else "it runs, or did not stop cleanly"
    ask(
        f"This opens incarnation {history.tail.incarnation + 1} of query {history.tail.owner}. A driver of incarnation"
        f" {history.tail.incarnation} ({state}; its newest entry is of {history.tail.written_at}) will be"
        " fenced and stop. Go on?",
        yes,
        "Nothing was changed.",
    )


def draw(console: Console, document: Document) -> None:
    """Draw the plan of a recovery, or its result."""
    if "plan" not in document:
        return
    if document.get("dry_run"):
        if document["plan"]:
            console.print(verdicts_table("What resolve would do (nothing was changed)", document["plan"]))
        if document["leftover_copies"]:
            console.print(f"{document['leftover_copies']} replay copies would be removed when they are not needed.")
        if not document["plan"]:
            console.print("Nothing to resolve.")
        return
    titles = {what: what.capitalize() for what in ("committed", "replayed", "aborted")}
    if "given_up" in document:
        by = f"by {document['by']}" if document["noted"] else "NOT given up"
        titles["given_up"] = f"Lost of batch {document['batch_id']}, {by}"
    for what, title in titles.items():
        rows = [(r["sink"], r["transaction_id"], record_count(r["records"])) for r in document.get(what, ())]
        if rows:
            console.print(table(title, ("sink", "transaction", "records"), rows))
    if "error" not in document:
        console.print(_summary(document))


def _summary(document: Document) -> str:
    if document.get("orphans"):
        return f"{len(document['aborted'])} orphans were rolled back. No driver was fenced."
    if document.get("opened") is None:
        return "Nothing to resolve; nothing was changed."
    return f"Nothing is in doubt any more. Incarnation {document['opened']} is closed."
