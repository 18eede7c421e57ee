"""Spans for OpenTelemetry, by its API (extra ``opentelemetry``): a batch, and its phases as children."""

from __future__ import annotations

import time
from importlib.metadata import version

from opentelemetry import trace

from twopc.events import BatchFinished, Event
from twopc.hookspecs import hookimpl

_NS_IN_MS = 1_000_000


class OpenTelemetryObserver:
    """Makes the spans of a batch when it has finished, as children of the span that is current where it was run.

    Their times are those of the figures, back from the end: what lies between two phases is microseconds. ``provider``:
    None for the global one.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("twopc", version("twopc-core"), provider)

    @hookimpl
    def twopc_event(self, event: Event) -> None:
        if isinstance(event, BatchFinished):
            self._trace(event, time.time_ns())

    def _trace(self, batch: BatchFinished, end_ns: int) -> None:
        phases_ns = {phase: int(spent_ms * _NS_IN_MS) for phase, spent_ms in batch.phases_ms.items()}
        at_ns = end_ns - sum(phases_ns.values())
        span = self._tracer.start_span("twopc batch", attributes=_attributes(batch), start_time=at_ns)
        within = trace.set_span_in_context(span)
        for phase, spent_ns in phases_ns.items():
            child = self._tracer.start_span(f"twopc {phase}", within, start_time=at_ns)
            at_ns += spent_ns
            child.end(at_ns)
        span.end(end_ns)


def _attributes(batch: BatchFinished) -> dict[str, str | bool | int]:
    attributes: dict[str, str | bool | int] = {
        "twopc.owner": batch.owner,
        "twopc.batch_id": batch.batch_id,
        "twopc.already_decided": batch.already_decided,
        "twopc.retries": batch.retries,
        "twopc.recovered": batch.recovered,
    }
    for figure in ("records", "bytes", "transactions"):
        of_sinks: dict[str, int] = getattr(batch, figure)
        attributes |= {f"twopc.{figure}.{sink}": count for sink, count in of_sinks.items()}
    return attributes
