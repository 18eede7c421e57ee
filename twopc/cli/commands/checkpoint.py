"""``twopc checkpoint``: compares a checkpoint with its log, and repairs it."""

from __future__ import annotations

import json

import click
from rich.console import Console

from twopc.cli.checkpoint import Repair
from twopc.cli.commands import parameters
from twopc.cli.commands.running import ask, show
from twopc.cli.output import Document, Report, batch_number, facts, table
from twopc.cli.sinks_file import Redaction
from twopc.exit_codes import ExitCode

_checkpoint = click.argument("checkpoint")


@click.group()
def checkpoint() -> None:
    """Compare a query's checkpoint with its log, and restore what it lacks.

    CHECKPOINT is the URL or path that the query was given as 'checkpointLocation'.
    """


@checkpoint.command()
@_checkpoint
@parameters.log
@parameters.as_json
def compare(checkpoint: str, log: str, as_json: bool) -> None:
    """Show whether a checkpoint and a log are of the same age, and what repair would do. Changes nothing."""

    def run(report: Report, _: Redaction) -> None:
        report.document |= {"checkpoint": checkpoint}
        Repair(checkpoint, log, report)

    show(log, as_json, _draw_comparison, run)


@checkpoint.command()
@_checkpoint
@parameters.log
@parameters.yes
@parameters.as_json
def repair(checkpoint: str, log: str, yes: bool, as_json: bool) -> None:
    """Restore from the log what a checkpoint lacks, so that the query goes on exactly where it was.

    The query must not run. A copy of each replaced file stays in the checkpoint, where Spark does not look.
    """

    def run(report: Report, _: Redaction) -> None:
        report.document |= {"checkpoint": checkpoint, "repaired": False}
        found = Repair(checkpoint, log, report)
        report.code = ExitCode.FINE
        if not found.plan.changes:
            return
        if not as_json:
            report.show(as_json, _draw_comparison)
        ask(found.question, yes, "Nothing was changed.")
        found.run()
        report.code = ExitCode.FINE

    show(log, as_json, _draw_repair, run)


def _draw_comparison(console: Console, document: Document) -> None:
    """The differences between a checkpoint and its log, and what repair does about them."""
    if "planned" not in document:
        return
    kept = document["kept_from"]
    console.print(
        facts(
            {
                "log": f"{document['log']}: decided batch {batch_number(document['decided'])},"
                f" {document['written_at']}",
                "": "keeps no record of what batches read"
                if kept is None
                else f"keeps what batches read, from batch {kept} on",
                "checkpoint": f"{document['checkpoint']}: planned batch {batch_number(document['planned'])},"
                f" noted batch {batch_number(document['noted'])} as done",
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
        console.print(table("Differences", ("batch", "where", "log", "checkpoint"), rows))
    for mismatch in document["mismatches"]:
        for source, count in mismatch["records"].items():
            way = f"{count} records later" if count > 0 else f"{-count} records earlier"
            console.print(f"Batch {mismatch['batch_id']} of the checkpoint ends {way} in source {source}.")
    if document.get("changes"):
        changes = [(change["action"], change["path"]) for change in document["changes"]]
        console.print(table("What repair does", ("", "file"), changes))
    if "changes" in document:
        console.print(_going_on(document))


def _draw_repair(console: Console, document: Document) -> None:
    """The result, below the comparison that was shown before the question."""
    if not document.get("changes"):
        _draw_comparison(console, document)
    elif document["repaired"]:
        console.print(f"Repaired. What was replaced is in {document['put_aside']}.")


def _going_on(document: Document) -> str:
    batch_id, remaining = document["goes_on_with"], document["remaining"]
    if batch_id is None:
        return (
            "The query goes on with a new batch."
            if document["changes"]
            else "Nothing to repair: log and checkpoint belong together."
        )
    text = f"The query goes on with batch {batch_id}, which it evaluates once more and does not write again."
    if not document["changes"]:
        text = f"Nothing to repair. {text}"
    if remaining:
        text += (
            f" It then stops with LogMismatch: its state needs every batch, one by one. Repair and start it {remaining}"
            " more times."
        )
    return text


def _json(value: object) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)
