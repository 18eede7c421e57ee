"""What ``twopc doctor`` examines, before there is a query: each sink of the file, and the place of the commit log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from twopc.checks import CheckResult, CheckStatus
from twopc.cli.history import read_history
from twopc.errors import TwoPhaseCommitError
from twopc.log.entries import check_prefixes
from twopc.log.store import LATE_LISTINGS, LocalStore, LogStore, open_store
from twopc.plugins import distribution_of
from twopc.sink import TwoPhaseCommitSink

LOG_ID = "doctor"
"""Stands in the names of what is tried, in the place of a log's own id, which is twelve hexadecimal digits. Always the
same, so that the next examination finds what a killed one left."""


def examined(sink: TwoPhaseCommitSink[Any], name: str) -> Iterator[CheckResult]:
    """What is found of one sink, as it is found; ends with what failed where nothing more can be found out."""
    yield CheckResult.passed(f"the backend here is {distribution_of(type(sink))}")
    try:
        sink.bind(name, LOG_ID)
        answers = CheckResult.of("the target answers, and lists what is open", lambda: _sweep(sink))
        yield answers
        if answers.result is CheckStatus.PASSED:
            yield from sink.check()
    except (TwoPhaseCommitError, OSError) as error:
        yield CheckResult.failed("the examination can't go on", str(error))
    finally:
        sink.close()


def _sweep(sink: TwoPhaseCommitSink[Any]) -> None:
    for left in sink.recover():
        sink.abort(left)


def examined_log(url: str, sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> Iterator[CheckResult]:
    """What is found of the commit log's place, and of the log if there is one."""
    try:
        store = open_store(url)
        store.try_put_if_absent()
        yield CheckResult.passed("an entry is created only where there is none, tried with one that was removed again")
        yield from _examined_mount(store)
        if not store.slots():
            yield CheckResult.passed("no log is there yet: the first start of the query begins it")
            return
        history = read_history(url)
        check_prefixes(history.tail, {name: sink.prefix for name, sink in sinks.items()})
        yield CheckResult.passed(f"the log of query {history.tail.owner} is there; all entries can be read")
    except (TwoPhaseCommitError, OSError) as error:
        yield CheckResult.failed("a commit log can be kept there", str(error))


def _examined_mount(store: LogStore) -> Iterator[CheckResult]:
    mount = store.mount if isinstance(store, LocalStore) else None
    if mount is not None and mount.is_network:
        what = "each machine sees at once what others write to the log"
        yield (
            CheckResult.warned(what, f"On {mount}, {LATE_LISTINGS}.") if mount.may_be_late else CheckResult.passed(what)
        )
