"""``twopc doctor``: checks of each sink and of the place of the commit log, before the first batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from twopc.checks import CheckResult, CheckStatus
from twopc.cli.commands import parameters
from twopc.cli.commands.running import show, waiting_for_targets
from twopc.cli.exit_codes import ExitCode
from twopc.cli.history import read_history
from twopc.cli.output import Document, Report
from twopc.cli.sinks_file import Redaction, read_sinks
from twopc.errors import TwoPhaseCommitError
from twopc.log.entries import check_prefixes
from twopc.log.store import CheckedLogStore, open_store
from twopc.plugins import distribution_of
from twopc.sink import TwoPhaseCommitSink

LOG_ID = "doctor"
"""Takes the place of a log's id, twelve hexadecimal digits, in the names of the transactions that are tried. It is
constant, so that the next run finds what a killed one left."""


@click.command()
@parameters.sinks_file
@click.option("--log", metavar="URL", help="What the query is given as 'log', to check its place as well.")
@parameters.timeout_s
@parameters.as_json
def doctor(sinks_file: Path, log: str | None, timeout_s: float, as_json: bool) -> None:
    """Check the target systems before the first batch: what they would refuse, and what they could lose.

    Checks try out what they can, and roll it back or remove it again. Each check passed, warned or failed. The exit
    code is 4 if one failed.
    """

    def run(report: Report, redact: Redaction) -> None:
        rows: list[Document] = report.document.setdefault("checks", [])
        sinks = read_sinks(sinks_file, redact)
        with waiting_for_targets(timeout_s, redact) as waiting:

            def add(sink: str | None, checks: Iterator[CheckResult]) -> None:
                what = "checking the log" if sink is None else f"checking sink {sink!r}"
                while check := waiting.call(what, next, checks, None):
                    row = {"sink": sink, "result": check.result.value, "what": redact(check.what)}
                    rows.append(row | {"advice": redact(check.advice)})
                    if check.result is CheckStatus.FAILED:
                        report.code = ExitCode.OPERATOR_REQUIRED

            if log is not None:
                add(None, _checks_of_log(log, sinks))
            for name, sink in sinks.items():
                add(name, _checks_of_sink(sink, name))

    show(log, as_json, _draw, run)


def _checks_of_sink(sink: TwoPhaseCommitSink[Any], name: str) -> Iterator[CheckResult]:
    """Check one sink. A failed connection ends the checks."""
    yield CheckResult.passed(f"backend: {distribution_of(type(sink))}")
    try:
        sink.bind(name, LOG_ID)
        listing = CheckResult.of("list of open transactions", lambda: _sweep(sink))
        yield listing
        if listing.result is CheckStatus.PASSED:
            yield from sink.check()
    except Exception as error:  # noqa: BLE001  # whatever a plugin raises
        yield _failed("remaining checks", error)
    finally:
        sink.close()


def _sweep(sink: TwoPhaseCommitSink[Any]) -> None:
    for left in sink.recover():
        sink.abort(left)


def _checks_of_log(url: str, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> Iterator[CheckResult]:
    """Check the place of the commit log, and the log if there is one."""
    try:
        store = open_store(url)
        if isinstance(store, CheckedLogStore):
            yield from store.check()
        if not store.slots():
            yield CheckResult.passed("commit log: none yet; the first start of the query creates it")
            return
        history = read_history(url)
        check_prefixes(history.tail, {name: sink.prefix for name, sink in sinks.items()})
        yield CheckResult.passed(f"commit log of query {history.tail.owner}: all entries can be read")
    except Exception as error:  # noqa: BLE001  # whatever a plugin raises
        yield _failed("commit log", error)


def _failed(check: str, error: Exception) -> CheckResult:
    match error:
        case TwoPhaseCommitError():
            return CheckResult.failed(check, error.message)
        case OSError():
            return CheckResult.failed(check, str(error))
        case _:
            return CheckResult.failed(check, f"{type(error).__name__}: {error}")


def _draw(console: Console, document: Document) -> None:
    """The checks, with the advice below each, and how many of them failed."""
    table = Table(box=None, pad_edge=False)
    for column in ("sink", "result", "check, and what to do"):
        table.add_column(column, overflow="fold")
    rows = document.get("checks", ())
    for row in rows:
        check = "\n".join(filter(None, (row["what"], row["advice"])))
        table.add_row(*map(Text, (row["sink"] or "(the log)", row["result"], check)))
    if rows:
        console.print(table)
    results = [row["result"] for row in rows]
    if "error" not in document:
        console.print(", ".join(f"{results.count(result.value)} {result.value}" for result in CheckStatus))
