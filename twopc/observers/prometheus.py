"""Counters and times for Prometheus, through its client library (extra ``prometheus``), which also serves them.

Named as https://prometheus.io/docs/practices/naming asks: base units, the unit last, then ``total``.
"""

from __future__ import annotations

import time

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from twopc.events import (
    BatchFailed,
    BatchFinished,
    CallRetried,
    Event,
    PhaseEntered,
    TransactionAborted,
    TransactionReplayed,
)
from twopc.hookspecs import hookimpl

BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""A decision takes milliseconds and a Spark job may take minutes."""


class PrometheusObserver:
    """Keeps the metrics that docs/monitoring.md lists in ``registry``, which takes one such observer."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(name, meaning, labels, namespace="twopc", registry=registry)

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(name, meaning, ["owner"], namespace="twopc", registry=registry)

        self._batches = counter("batches_total", "Batches that finished.", "owner", "already_decided")
        self._records = counter("records_total", "Records of finished batches.", "owner", "sink")
        self._bytes = counter("record_bytes_total", "Their bytes as Arrow holds them in memory.", "owner", "sink")
        self._transactions = counter("transactions_total", "Transactions of finished batches.", "owner", "sink")
        self._unrouted = counter("unrouted_rows_total", "Rows of finished batches that went to no sink.", "owner")
        self._bad = counter("bad_records_total", "Records that sinks refused, and another one got.", "owner")
        self._recovered = counter("recovered_transactions_total", "Those of earlier incarnations, settled.", "owner")
        self._failed = counter("failed_batches_total", "Runs of batches that failed.", "owner", "error")
        self._batch_id = gauge("batch_id", "The newest finished batch.")
        self._finished_s = gauge("batch_finished_timestamp_seconds", "When it finished.")
        self._phases_s = Histogram(
            "phase_duration_seconds",
            "Time of a finished batch in each phase.",
            ["owner", "phase"],
            namespace="twopc",
            registry=registry,
            buckets=BUCKETS_S,
        )
        # Reported at once, even while a batch makes no progress.
        self._retries = counter("retries_total", "Calls that a target system could not answer.", "owner")
        self._waiting_s = gauge(
            "unanswered_seconds",
            "How long the call that is being repeated has had no answer; 0 if none. Alert above 60.",
        )
        self._aborted = counter("aborted_transactions_total", "Undecided transactions rolled back.", "owner", "sink")
        self._replayed = counter("replayed_transactions_total", "Written again after they were lost.", "owner", "sink")

    @hookimpl
    def twopc_event(self, event: Event) -> None:
        match event:
            case BatchFinished():
                self._count(event)
            case BatchFailed():
                self._failed.labels(event.owner, type(event.error).__name__).inc()
            case CallRetried():
                self._retries.labels(event.owner or "").inc()
                self._waiting_s.labels(event.owner or "").set(event.waited_s)
            case PhaseEntered():
                self._waiting_s.labels(event.owner).set(0)
            case TransactionAborted():
                self._aborted.labels(event.owner, event.sink).inc()
            case TransactionReplayed():
                self._replayed.labels(event.owner, event.sink).inc()

    def _count(self, batch: BatchFinished) -> None:
        self._batches.labels(batch.owner, str(batch.already_decided).lower()).inc()
        for counter, of_sinks in (
            (self._records, batch.records),
            (self._bytes, batch.bytes),
            (self._transactions, batch.transactions),
        ):
            for sink, count in of_sinks.items():
                counter.labels(batch.owner, sink).inc(count)
        self._unrouted.labels(batch.owner).inc(batch.unrouted)
        self._bad.labels(batch.owner).inc(batch.bad_records)
        self._recovered.labels(batch.owner).inc(batch.recovered)
        for phase, spent_ms in batch.phases_ms.items():
            self._phases_s.labels(batch.owner, phase).observe(spent_ms / 1000)
        self._batch_id.labels(batch.owner).set(batch.batch_id)
        self._finished_s.labels(batch.owner).set(time.time())
