"""Spans for OpenTelemetry, through its API (extra ``opentelemetry``): a batch, and its phases as children."""

from __future__ import annotations

import time
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from twopc.events import BatchFailed, BatchFinished, Event
from twopc.hookspecs import hookimpl

_NS_IN_MS = 1_000_000


class OpenTelemetryObserver:
    """Makes the spans of a batch when its run ends, as children of the span that is current where it was run.

    Their times are those of the metrics, counted back from the end: the gap between two phases is microseconds. A
    failed run ends with its exception and the status ERROR. ``provider``: None for the global one.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("twopc", version("twopc-core"), provider)

    @hookimpl
    def twopc_event(self, event: Event) -> None:
        if isinstance(event, BatchFinished | BatchFailed):
            self._trace(event, time.time_ns())

    def _trace(self, batch: BatchFinished | BatchFailed, end_ns: int) -> None:
        phases_ns = {phase: int(spent_ms * _NS_IN_MS) for phase, spent_ms in batch.phases_ms.items()}
        at_ns = end_ns - sum(phases_ns.values())
        span = self._tracer.start_span("twopc batch", attributes=_attributes(batch), start_time=at_ns)
        within = trace.set_span_in_context(span)
        for phase, spent_ns in phases_ns.items():
            child = self._tracer.start_span(f"twopc {phase}", within, start_time=at_ns)
            at_ns += spent_ns
            child.end(at_ns)
        if isinstance(batch, BatchFailed):
            span.record_exception(batch.error, timestamp=end_ns)
            span.set_status(trace.StatusCode.ERROR, type(batch.error).__name__)
        span.end(end_ns)


def _attributes(batch: BatchFinished | BatchFailed) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {"twopc.owner": batch.owner, "twopc.batch_id": batch.batch_id}
    if isinstance(batch, BatchFailed):
        return attributes
    attributes |= {
        "twopc.already_decided": batch.already_decided,
        "twopc.retries": batch.retries,
        "twopc.recovered": batch.recovered,
        "twopc.unrouted": batch.unrouted,
        "twopc.bad_records": batch.bad_records,
    }
    for figure in ("records", "bytes", "transactions"):
        of_sinks: dict[str, int] = getattr(batch, figure)
        attributes |= {f"twopc.{figure}.{sink}": count for sink, count in of_sinks.items()}
    return attributes
