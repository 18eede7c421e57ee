"""``twopc status``: shows a log's decisions and the batches in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console, Group, RenderableType

from twopc.cli.commands import parameters
from twopc.cli.commands.running import show
from twopc.cli.output import Document, Report, batch_number, facts, table
from twopc.cli.sinks_file import Redaction
from twopc.exit_codes import ExitCode
from twopc.failures import ABORTED, IN_DOUBT, OUTAGE
from twopc.log.entries import Decision, Repetition
from twopc.log.history import History, read_history
from twopc.transaction import Committable

LISTED = 10
"""How many of the newest decided batches are listed. A log keeps about thirty."""


@click.command()
@parameters.log
@parameters.as_json
def status(log: str, as_json: bool) -> None:
    """Show what a log has decided, and what is in doubt. Reads only the log."""

    def run(report: Report, _: Redaction) -> None:
        history = read_history(log)
        report.document |= _status(history)
        report.code = ExitCode.IN_DOUBT if history.tail.unresolved else ExitCode.FINE

    show(log, as_json, _draw, run)


def _status(history: History) -> Document:
    tail, again = history.tail, history.repetition
    return {
        "owner": tail.owner,
        "log_id": tail.log_id,
        "incarnation": tail.incarnation,
        "kind": tail.kind,
        "written_at": tail.written_at,
        "clean_stop": history.is_clean,
        "entries": len(history.entries),
        "decided": tail.decided,
        "committed_through": tail.committed_through,
        "waits_for": None if history.notice is None else asdict(history.notice),
        "repetition": again and _repetition(again),
        "in_doubt": [
            {
                "batch_id": decision.batch_id,
                "incarnation": decision.round.incarnation,
                "since": history.in_doubt_since(decision.batch_id),
                "sinks": {name: _counts(of_sink) for name, of_sink in decision.committables.items()},
            }
            for decision in tail.unresolved
        ],
        "abandoned": [
            {"batch_id": a.given_up.batch_id, "by": a.by, "at": a.at, "sinks": _given_up_by_sink(a.given_up)}
            for a in tail.abandoned
        ],
        "batches": [
            {
                "batch_id": entry.decided,
                "incarnation": entry.incarnation,
                "decided_at": entry.written_at,
                "transactions": transactions,
                "records": records,
            }
            for entry, (transactions, records) in zip(history.entries, history.sizes, strict=True)
            if entry.kind == "decide"
        ][-LISTED:],
    }


_WAYS = {
    OUTAGE: "a system did not answer",
    ABORTED: "its round was rolled back",
    IN_DOUBT: "the log can be read but does not confirm appends",
}
"""Failure that usually passes → its cause. Such failures count once a minute."""


def _repetition(again: Repetition) -> Document:
    way = again.failure if again.failure in _WAYS else None
    return {"count": again.count, "since": again.since, "batch_id": again.batch_id, "way": way}


def _counts(committables: Sequence[Committable]) -> Document:
    return {"transactions": len(committables), "records": sum(c.records or 0 for c in committables)}


def _given_up_by_sink(given_up: Decision) -> Document:
    return {
        name: _counts(of_sink) | {"transactions": [c.transaction_id for c in of_sink]}
        for name, of_sink in given_up.committables.items()
    }


def _draw(console: Console, document: Document) -> None:
    if "owner" not in document:
        return
    stop = "stopped cleanly" if document["clean_stop"] else "runs, or did not stop cleanly"
    known = facts(
        {
            "log": document["log"],
            "query": f"{document['owner']} (log id {document['log_id']})",
            "incarnation": f"{document['incarnation']}, {stop}",
            "newest entry": f"{document['kind']}, written {document['written_at']}; {document['entries']} entries kept",
            "last decided batch": batch_number(document["decided"]),
            "committed through": batch_number(document["committed_through"]),
        }
    )
    doubt = [
        (d["batch_id"], d["incarnation"], sink, counts["transactions"], counts["records"], d["since"])
        for d in document["in_doubt"]
        for sink, counts in d["sinks"].items()
    ]
    parts: list[RenderableType] = [known]
    if waits_for := document["waits_for"]:
        parts.append(
            f"Needs an operator: {waits_for['what']}: no answer for {waits_for['waited_s']:.0f} s at {waits_for['at']}"
            f" ({waits_for['reason']})"
        )
    if again := document["repetition"]:
        what = (
            "The query has failed before a batch"
            if again["batch_id"] is None
            else f"Batch {again['batch_id']} has failed"
        )
        count, since, reason = again["count"], again["since"], _WAYS.get(again["way"])
        how = f"{count} times in the same way since {since}."
        if reason is not None:
            how = f"in {count} different minute{'s' * (count != 1)} since {since}: {reason}."
        parts.append(f"{what} {how}")
    if document["in_doubt"]:
        open_ = ("batch", "incarnation", "sink", "transactions", "records", "since")
        parts.append(table("In doubt: decided, and not known to be committed", open_, doubt))
        parts.append("A running query settles this by itself. If none runs, start it again, or run 'twopc resolve'.")
    else:
        parts.append("Nothing is in doubt.")
    lost = [
        (a["batch_id"], sink, len(of_sink["transactions"]), of_sink["records"], a["by"], a["at"])
        for a in document["abandoned"]
        for sink, of_sink in a["sinks"].items()
    ]
    if lost:
        gone = ("batch", "sink", "transactions", "records", "by", "at")
        parts.append(table("Given up: decided, and missing from the target system", gone, lost))
    if document["batches"]:
        shown = ("batch", "incarnation", "decided at", "transactions", "records")
        parts.append(table("Newest decided batches", shown, [batch.values() for batch in document["batches"]]))
    console.print(Group(*parts))
