"""The promises that the system makes, and the error for a broken one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Promise(Enum):
    """A promise that holds in every run. The names are recorded with the mutants; the wording may change."""

    LOG_IN_ORDER = "log entries are consecutive, and only the newest incarnation writes them"
    DECIDED_ONCE = "batches are decided once and in order"
    DECIDED_WHEN_OPEN = "a transaction is decided only after it was seen to be open"
    DECIDED_IS_KEPT = "no client rolls back a decided transaction"
    AMENDED_WHEN_LOST = "an amendment replaces only transactions that the target system rolled back"
    COMMITTED_WHEN_DECIDED = "nothing is committed or visible before its decision is durable"
    COMMITTED_IN_ORDER = "batches are committed in order"
    PROGRESS_LAST = "a sink that commits last is never ahead of the others"
    WHOLE_BATCHES = "a reader of a sink that commits whole batches never sees a part of a batch"
    NEVER_OLDER = "no reader of a keyed table sees the value of a key go back, or a deleted row return"
    CHANGES_IN_ORDER = "a reader of a keyed table sees the changes of the source, applied in the order of batches"
    RESOLVED_WHEN_COMMITTED = "batches that the log records as committed are committed"
    RESOLVED_AT_REST = "the log of a query at rest records every batch as committed"
    COMPLETE_WHEN_COMMITTED = "each sink is informed of complete batches in order, after every sink has committed them"
    ANNOUNCED_WHEN_COMPLETE = "a batch is announced with what is committed, when it is complete in every sink"
    FENCED_STOPS = "a fenced coordinator stops as one that is fenced, and calls no operator"
    FENCED_BY_ANOTHER = "a coordinator is fenced only by a newer one"
    STOPS_WITH_REASON = "a query stops only for a loss, an unknown outcome or a damaged checkpoint"
    STOPS_WHEN_REPEATED = "a failure that no table knows stops the query at its third start in a row, and no other does"
    STOPS_FOR_GOOD = "a query that has stopped for an operator stops again when it is started again"
    STOPS_AFTER_THE_REST = "a query that stops has finished everything else"
    SAME_CONTENTS = "every target system has the contents of an undisturbed run"
    SWEPT = "transactions and files of dead participants are swept"
    NOTHING_LEFT = "at the end no transaction is open, and no pending file or replay copy is left"
    ENDS = "every run ends"


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that a run has broken, and what happened."""

    promise: Promise
    what: str

    def __str__(self) -> str:
        return self.what


class Violation(BaseException):
    """A promise is broken. Not an ``Exception``, so that the code under test does not swallow it."""

    def __init__(self, promise: Promise, what: str) -> None:
        super().__init__(what)
        self.broken = Broken(promise, what)
