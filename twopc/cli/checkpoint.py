"""A checkpoint and its log: the comparison, as a document, and the repair."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TypeAlias

from twopc.checkpoint.comparison import UNCHANGED, Comparison, compare
from twopc.checkpoint.folder import CheckpointFolder
from twopc.checkpoint.repair import Plan, mend, plan
from twopc.cli.output import Document, Report
from twopc.errors import Refused
from twopc.exit_codes import ExitCode
from twopc.log.batch_identity import ABSENT
from twopc.log.history import ATTEMPTS, History, read_history
from twopc.transaction import JsonValue

ASIDE = "twopc-put-aside"
"""The folder in the checkpoint that keeps the replaced files. Spark does not look there."""

_Seen: TypeAlias = "tuple[History, Comparison, Plan]"


class Repair:
    """One comparison of a checkpoint with its log, and then the repair, unless one of them has changed since.

    Raises:
        Refused: the checkpoint can't be repaired exactly; the report has the differences.
        ConfigurationError, CorruptLog: the checkpoint or the log can't be read.
    """

    def __init__(self, checkpoint: str, log: str, report: Report) -> None:
        self._folder = CheckpointFolder(checkpoint)
        self._log = log
        self._report = report
        self.history, self._compared, self.plan = self._look()

    @property
    def question(self) -> str:
        """The question to the operator, with the facts that an answer needs."""
        tail = self.history.tail
        state = (
            "It stopped cleanly"
            if self.history.is_clean
            else f"It may still run: its log was not closed, and the newest entry was written at {tail.written_at}"
        )
        return f"Query {tail.owner} must not run. {state}. Change the checkpoint?"

    def run(self) -> None:
        """Repair the checkpoint.

        Raises:
            Refused: the query runs; nothing was changed.
        """
        history, _, planned = self._look()
        if (history.tail, planned) != (self.history.tail, self.plan):
            raise Refused(
                f"the checkpoint or the log has changed since they were compared: the query runs. {UNCHANGED} Stop it,"
                " and run this again."
            )
        aside = f"{ASIDE}/{datetime.now(timezone.utc).strftime('%Y%m%dT%H%M%SZ')}"
        mend(self._folder, planned, aside)
        self._report.document |= {"repaired": True, "put_aside": f"{self._folder.url}/{aside}"}

    def _look(self) -> _Seen:
        history, compared = self._both()
        document, tail = self._report.document, history.tail
        document |= {"owner": tail.owner, "log_id": tail.log_id, "written_at": tail.written_at}
        document |= {"clean_stop": history.is_clean, "decided": tail.decided, **_shown(compared)}
        planned = plan(self._folder, compared)
        document["changes"] = [
            {"path": change.path, "action": "put aside" if change.data is None else "write"}
            for change in planned.changes
        ]
        document |= {"goes_on_with": planned.goes_on_with, "remaining": planned.remaining}
        self._report.code = ExitCode.IN_DOUBT if planned.changes else ExitCode.FINE
        return history, compared, planned

    def _both(self) -> tuple[History, Comparison]:
        """Read both as of one moment. A running query may decide a batch while they are read."""
        for _ in range(ATTEMPTS):
            history = read_history(self._log)
            compared = compare(self._folder, history.entries)
            if read_history(self._log).tail == history.tail:
                return history, compared
        raise Refused(f"the log changes while it is compared: the query runs. {UNCHANGED} Stop it, or try again.")


def _shown(compared: Comparison) -> Document:
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
