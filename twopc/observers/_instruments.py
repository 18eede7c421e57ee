"""The metrics of twopc, with their names in Prometheus (https://prometheus.io/docs/practices/naming) and OpenTelemetry,
whose semantic conventions 1.45.0 have no names for them. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from twopc.events import (
    BatchFailed,
    BatchFinished,
    CallRetried,
    Event,
    PhaseEntered,
    TransactionAborted,
    TransactionCommitted,
    TransactionReplayed,
)

BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""Histogram buckets. A decision takes milliseconds, and a Spark job may take minutes."""


class Kind(Enum):
    """The kind of an instrument. Its values are added up, replace the previous one, or form a distribution."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric."""

    kind: Kind  # how its values combine
    prometheus: str  # its name in Prometheus, without ``twopc_``
    opentelemetry: str  # its name in OpenTelemetry, without ``twopc.``
    unit: str  # in UCUM's code, as OpenTelemetry writes units
    meaning: str  # a sentence
    labels: tuple[str, ...]  # the names of its labels


def _counter(prometheus: str, unit: str, meaning: str, *labels: str, opentelemetry: str = "") -> Instrument:
    name = opentelemetry or prometheus.removesuffix("_total")
    return Instrument(Kind.COUNTER, prometheus, name, unit, meaning, ("owner", *labels))


def _gauge(prometheus: str, opentelemetry: str, unit: str, meaning: str) -> Instrument:
    return Instrument(Kind.GAUGE, prometheus, opentelemetry, unit, meaning, ("owner",))


def _histogram(prometheus: str, opentelemetry: str, meaning: str, *labels: str) -> Instrument:
    return Instrument(Kind.HISTOGRAM, prometheus, opentelemetry, "s", meaning, ("owner", *labels))


BATCHES = _counter(
    "batches_total", "{batch}", "Finished batches; if already decided, not written again.", "already_decided"
)
BATCH_S = _histogram("batch_duration_seconds", "batch.duration", "Time of a finished batch, the sum of its phases.")
PHASE_S = _histogram("phase_duration_seconds", "phase.duration", "Time of a finished batch in each phase.", "phase")
RECORDS = _counter("records_total", "{record}", "Records of finished batches.", "sink")
BYTES = _counter(
    "record_bytes_total", "By", "Bytes of these records as Arrow holds them.", "sink", opentelemetry="record.size"
)
TRANSACTIONS = _counter("transactions_total", "{transaction}", "Transactions of finished batches.", "sink")
UNROUTED = _counter("unrouted_records_total", "{record}", "Records of finished batches that went to no sink.")
BAD = _counter("bad_records_total", "{record}", "Records that sinks refused, and another one got.")
BATCH_ID = _gauge("batch_id", "batch.id", "1", "The newest finished batch.")
FINISHED_S = _gauge("batch_finished_timestamp_seconds", "batch.finish_time", "s", "When it finished, as Unix time.")
FAILED = _counter("failed_batches_total", "{batch}", "Failed runs of batches, by the class of the error.", "error")
RETRIES = _counter("retries_total", "{call}", "Calls that a target system could not answer.")
COMMIT_RETRIES = _counter("commit_retries_total", "{call}", "Repeated calls that commit or complete a decided batch.")
UNANSWERED_S = _gauge(
    "unanswered_seconds",
    "unanswered.duration",
    "s",
    "How long the call that is being repeated has had no answer; 0 if none. Alert above 60.",
)
RECOVERED = _counter(
    "recovered_transactions_total", "{transaction}", "Those of earlier incarnations, committed or rolled back.", "sink"
)
ABORTED = _counter("aborted_transactions_total", "{transaction}", "Undecided transactions, rolled back.", "sink")
REPLAYED = _counter("replayed_transactions_total", "{transaction}", "Lost transactions, written again.", "sink")

INSTRUMENTS = (
    *(BATCHES, BATCH_S, PHASE_S, RECORDS, BYTES, TRANSACTIONS, UNROUTED, BAD, BATCH_ID, FINISHED_S, FAILED, RETRIES),
    *(COMMIT_RETRIES, UNANSWERED_S, RECOVERED, ABORTED, REPLAYED),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured value. ``labels`` are the values of the instrument's labels, in the same order."""

    instrument: Instrument
    value: float
    labels: tuple[str, ...]


def measure(event: Event, at: datetime) -> Iterator[Measured]:
    """Yield the measurements in an event. ``at`` is the event's time."""
    match event:
        case BatchFinished():
            yield from _measure_batch(event, at)
        case BatchFailed(error=error, owner=owner):
            yield Measured(FAILED, 1, (owner, type(error).__name__))
        case CallRetried(owner=owner, waited_s=waited_s, decided_batch_id=decided):
            yield Measured(RETRIES, 1, (owner or "",))
            if decided is not None:
                yield Measured(COMMIT_RETRIES, 1, (owner or "",))
            yield Measured(UNANSWERED_S, waited_s, (owner or "",))
        case PhaseEntered(owner=owner):
            yield Measured(UNANSWERED_S, 0, (owner,))
        case TransactionAborted(sink, _, recovered, owner):
            yield Measured(ABORTED, 1, (owner, sink))
            if recovered:
                yield Measured(RECOVERED, 1, (owner, sink))
        case TransactionCommitted(sink=sink, recovered=True, owner=owner):
            yield Measured(RECOVERED, 1, (owner, sink))
        case TransactionReplayed(sink=sink, owner=owner):
            yield Measured(REPLAYED, 1, (owner, sink))


def _measure_batch(batch: BatchFinished, at: datetime) -> Iterator[Measured]:
    yield Measured(BATCHES, 1, (batch.owner, str(batch.already_decided).lower()))
    yield Measured(BATCH_S, sum(batch.phases_ms.values()) / 1000, (batch.owner,))
    for phase, spent_ms in batch.phases_ms.items():
        yield Measured(PHASE_S, spent_ms / 1000, (batch.owner, phase))
    for instrument, of_sinks in ((RECORDS, batch.records), (BYTES, batch.bytes), (TRANSACTIONS, batch.transactions)):
        for sink, count in of_sinks.items():
            yield Measured(instrument, count, (batch.owner, sink))
    yield Measured(UNROUTED, batch.unrouted, (batch.owner,))
    yield Measured(BAD, batch.bad_records, (batch.owner,))
    yield Measured(BATCH_ID, batch.batch_id, (batch.owner,))
    yield Measured(FINISHED_S, at.timestamp(), (batch.owner,))
