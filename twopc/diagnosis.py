"""``doctor``: all checks of a query's sinks and commit log, before the first batch.

The command ``twopc doctor`` runs the same checks, one by one.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from twopc.checkpoint.offsets import grown, is_entry, partitions_by_topic
from twopc.checks import CheckResult, CheckStatus
from twopc.errors import ConfigurationError, Retriable
from twopc.keyed import key_of
from twopc.log.entries import Entry, check_prefixes
from twopc.log.history import read_history
from twopc.log.store import CheckedLogStore, LogStore, store_of
from twopc.plugins import distribution_of
from twopc.sink import TwoPhaseCommitSink

LOG_ID = "doctor"
"""Placeholder for a log id in the names of trial transactions. It can't equal a real log id, which is twelve
hexadecimal digits. The value is constant, so that the next run finds the transactions that a killed run left behind."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of all checks. As text, one status line per check.

    Attributes:
        results: the results for the commit log, then those for each sink.
    """

    results: tuple[CheckResult, ...]

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that failed: the query would stop."""
        return tuple(result for result in self.results if result.result is CheckStatus.FAILED)

    def raise_for_failed(self) -> None:
        """Raise an error if a check has failed. Warnings do not count.

        Raises:
            Retriable: all failed checks failed because they got no answer. They may pass later.
            ConfigurationError: a check failed for another reason.
        """
        if self.failed:
            kind = Retriable if all(result.may_pass_later for result in self.failed) else ConfigurationError
            raise kind("\n".join(["the query was not started, because checks failed:", *map(str, self.failed)]))

    def __str__(self) -> str:
        return "\n".join(map(str, self.results))


def doctor(
    sinks: TwoPhaseCommitSink[Any] | Mapping[str, TwoPhaseCommitSink[Any]],
    log: str | os.PathLike[str] | LogStore | None = None,
) -> Diagnosis:
    """Check what a query will need, before its first batch. Nothing stays behind, and readers see no trial writes.

    Args:
        sinks: as for ``Coordinator``; a single sink is named ``sink``. The checks run on copies.
        log: the commit log to check, too, or None.

    Run one ``doctor`` at a time per target system. If a target system does not answer, the checks take as long as the
    sink's client waits.

    Raises:
        ConfigurationError: there can't be a log at ``log``. Any other problem is reported as a result.
    """
    named = sinks if isinstance(sinks, Mapping) else {"sink": sinks}
    return Diagnosis(tuple(result for _, checks in checks_of(named, log) for result in checks))


def checks_of(
    sinks: Mapping[str, TwoPhaseCommitSink[Any]], log: str | os.PathLike[str] | LogStore | None
) -> Iterator[tuple[str | None, Iterator[CheckResult]]]:
    """Yield each sink's name and its checks, which run lazily. The checks of the log, if any, come first, under the
    name None."""
    if log is not None:
        yield None, _checks_of_log(log, sinks)
    for name, sink in sinks.items():
        checks = _checks_of_sink(sink.unbound(), name)
        yield name, (replace(result, sink=name) for result in checks)


def _checks_of_log(
    log: str | os.PathLike[str] | LogStore, sinks: Mapping[str, TwoPhaseCommitSink[Any]]
) -> Iterator[CheckResult]:
    """Check the store of the commit log, and the log if it exists."""
    check = "commit log"
    try:
        store = store_of(log)
        if isinstance(store, CheckedLogStore):
            yield from store.check()
        if not store.slots():
            yield CheckResult.passed(check, "none yet; the first start of the query creates it")
            return
        history = read_history(store)
        check_prefixes(history.tail, {name: sink.prefix for name, sink in sinks.items()})
        yield CheckResult.passed(check, f"{len(history.entries)} entries of query {history.tail.owner}")
        if any(map(key_of, sinks.values())):
            yield from _grown_topics(history.entries)
    except Exception as error:  # noqa: BLE001  # whatever a plugin raises
        yield CheckResult.failed_by(check, error)


def _grown_topics(entries: Sequence[Entry]) -> Iterator[CheckResult]:
    """Warn about topics that gained partitions between these entries. A key's newer change may be in a new partition,
    and may have been read before the older ones."""
    known = [
        (entry.decided, partitions_by_topic(entry.reads))
        for entry in entries
        if isinstance(entry.reads, dict) and is_entry(entry.reads)
    ]
    for (_, before), (batch_id, now) in itertools.pairwise(known):
        for topic, (had, has) in grown(before, now).items():
            yield CheckResult.warning(
                f"partitions of topic {topic!r}",
                f"{has} since batch {batch_id}, and {had} before: if the query had not read all older changes by then,"
                " some may have replaced newer rows",
                "compare the tables with the source; a row that differs is sent again when it is changed there",
            )


def _checks_of_sink(sink: TwoPhaseCommitSink[Any], name: str) -> Iterator[CheckResult]:
    """Check one sink. A failed connection ends the checks."""
    yield CheckResult.passed("backend", distribution_of(type(sink)))
    try:
        sink.bind(name, LOG_ID)
        listing = CheckResult.of("list of open transactions", lambda: _sweep(sink))
        yield listing
        if listing.result is CheckStatus.PASSED:
            yield from sink.check()
    except Exception as error:  # noqa: BLE001  # whatever a plugin raises
        yield CheckResult.failed_by("remaining checks", error)
    finally:
        sink.close()


def _sweep(sink: TwoPhaseCommitSink[Any]) -> None:
    for left in sink.recover():
        sink.abort(left)
