"""``twopc checkpoint``: compares a checkpoint with its log, and repairs it."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import click
from rich.console import Console

from twopc.checkpoint.comparison import UNCHANGED, Comparison
from twopc.checkpoint.comparison import compare as compared_with
from twopc.checkpoint.folder import CheckpointFolder
from twopc.checkpoint.repair import Plan, mend, plan
from twopc.cli.commands import parameters
from twopc.cli.commands.running import ask, show
from twopc.cli.output import Document, Report, batch_number, facts, table
from twopc.cli.sinks_file import Redaction
from twopc.errors import Refused
from twopc.exit_codes import ExitCode
from twopc.log.batch_identity import ABSENT
from twopc.log.history import ATTEMPTS, History, read_history
from twopc.transaction import JsonValue

ASIDE = "twopc-put-aside"
"""The folder in the checkpoint for replaced files. Spark ignores it."""

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
        _Repair(checkpoint, log, report)

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
        report.document["repaired"] = False
        found = _Repair(checkpoint, log, report)
        report.code = ExitCode.FINE
        if not found.plan.changes:
            return
        if not as_json:
            report.show(as_json, _draw_comparison)
        ask(found.question, yes, "Nothing was changed.")
        found.run()
        report.code = ExitCode.FINE

    show(log, as_json, _draw_repair, run)


class _Repair:
    """Compares a checkpoint with its log when it is created. ``run`` then repairs the checkpoint, unless one of them
    has changed in between. Raises Refused: the checkpoint can't be repaired exactly; the report has the differences.
    Raises ConfigurationError or CorruptLog: one of them can't be read."""

    def __init__(self, checkpoint: str, log: str, report: Report) -> None:
        self._folder = CheckpointFolder(checkpoint)
        report.document["checkpoint"] = checkpoint
        self._log = log
        self._report = report
        self.history, self._compared, self.plan = self._look()

    @property
    def question(self) -> str:
        """The question to the operator, with the facts that matter for an answer."""
        tail = self.history.tail
        state = (
            "It stopped cleanly"
            if self.history.is_clean
            else f"It may still run: its log was not closed, and the newest entry was written at {tail.written_at}"
        )
        return f"Query {tail.owner} must not run. {state}. Change the checkpoint?"

    def run(self) -> None:
        """Repair the checkpoint. Raises Refused: the query runs; nothing was changed."""
        history, _, planned = self._look()
        if (history.tail, planned) != (self.history.tail, self.plan):
            raise Refused(
                f"the checkpoint or the log has changed since they were compared: the query runs. {UNCHANGED} Stop it,"
                " and run this again."
            )
        aside = f"{ASIDE}/{datetime.now(timezone.utc).strftime('%Y%m%dT%H%M%SZ')}"
        mend(self._folder, planned, aside)
        self._report.document |= {"repaired": True, "put_aside": f"{self._folder.url}/{aside}"}

    def _look(self) -> tuple[History, Comparison, Plan]:
        history, compared = self._both()
        document, tail = self._report.document, history.tail
        document |= {"owner": tail.owner, "log_id": tail.log_id, "written_at": tail.written_at}
        document |= {"clean_stop": history.is_clean, "decided": tail.decided, **_comparison_values(compared)}
        planned = plan(self._folder, compared)
        document["changes"] = [
            {"path": change.path, "action": "put aside" if change.data is None else "write"}
            for change in planned.changes
        ]
        document |= {"goes_on_with": planned.goes_on_with, "remaining": planned.remaining}
        self._report.code = ExitCode.IN_DOUBT if planned.changes else ExitCode.FINE
        return history, compared, planned

    def _both(self) -> tuple[History, Comparison]:
        """Read the log and the checkpoint as of one moment: a running query may decide a batch in between."""
        for _ in range(ATTEMPTS):
            history = read_history(self._log)
            compared = compared_with(self._folder, history.entries)
            if read_history(self._log).tail == history.tail:
                return history, compared
        raise Refused(f"the log changes while it is compared: the query runs. {UNCHANGED} Stop it, or try again.")


def _comparison_values(compared: Comparison) -> Document:
    return {
        "query_id": compared.query_id,
        "planned": compared.planned[-1] if compared.planned else None,
        "noted": compared.noted,
        "has_state": compared.has_state,
        "kept_from": min(compared.reads, default=None),
        "missing": compared.missing,
        "cut_off": sorted(compared.cut_off),
        "mismatches": [
            {
                "batch_id": mismatch.batch_id,
                "noted": mismatch.is_noted,
                "records": dict(mismatch.records),
                "differences": [
                    {"path": each.path, "decided": _side(each.decided), "planned": _side(each.now)}
                    for each in mismatch.found
                ],
            }
            for mismatch in compared.mismatches
        ],
    }


def _side(value: JsonValue) -> JsonValue:
    return None if value == ABSENT else value


def _draw_comparison(console: Console, document: Document) -> None:
    """Draw the differences between a checkpoint and its log, and how repair resolves them."""
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
        console.print(_next_step(document))


def _draw_repair(console: Console, document: Document) -> None:
    """Draw the result, below the comparison that was shown before the question."""
    if not document.get("changes"):
        _draw_comparison(console, document)
    elif document["repaired"]:
        console.print(f"Repaired. What was replaced is in {document['put_aside']}.")


def _next_step(document: Document) -> str:
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
