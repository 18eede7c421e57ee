"""Spans and metrics for OpenTelemetry, through its API (extra ``opentelemetry``).

Attributes of twopc begin with ``twopc.``. ``error.type`` follows the semantic conventions. Only conventions that are
stable in version 1.45.0 are used.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from importlib.metadata import version

from opentelemetry import metrics, trace
from opentelemetry.metrics import Meter
from opentelemetry.util.types import Attributes, AttributeValue

from twopc.events import BatchFailed, BatchFinished, Event
from twopc.hookspecs import hookimpl
from twopc.observers._instruments import BUCKETS_S, INSTRUMENTS, Instrument, Kind, Measured, measure

_NS_IN_MS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_ERROR = "error.type"


class OpenTelemetryObserver:
    """Creates the spans of a batch when its run ends, and records the metrics that docs/metrics.md lists.

    The spans are children of the current span of the thread that ran the batch. Their times are computed back from the
    end by the batch's metrics: the gaps between phases are microseconds. The span of a failed run records the
    exception, and has the status ERROR.

    Args:
        provider: the tracer provider, or None for the global one.
        meter_provider: the meter provider, or None for the global one.
    """

    def __init__(
        self, provider: trace.TracerProvider | None = None, meter_provider: metrics.MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer("twopc", version("twopc-core"), provider)
        meter = metrics.get_meter("twopc", version("twopc-core"), meter_provider)
        self._instruments = {instrument: _instrument(meter, instrument) for instrument in INSTRUMENTS}

    @hookimpl
    def twopc_event(self, event: Event, at: datetime) -> None:
        for one in measure(event, at):
            self._record(one)
        if isinstance(event, BatchFinished | BatchFailed):
            self._trace(event, (at - _EPOCH) // timedelta(microseconds=1) * 1000)

    def _record(self, one: Measured) -> None:
        names = (_ERROR if label == "error" else f"twopc.{label}" for label in one.instrument.labels)
        attributes = dict(zip(names, one.labels, strict=True))
        self._instruments[one.instrument](one.value, attributes)

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


def _instrument(meter: Meter, instrument: Instrument) -> Callable[[float, Attributes], None]:
    """Create an instrument. Return the function that records a value with its attributes."""
    name, unit, meaning = f"twopc.{instrument.opentelemetry}", instrument.unit, instrument.meaning
    match instrument.kind:
        case Kind.COUNTER:
            return meter.create_counter(name, unit, meaning).add
        case Kind.GAUGE:
            return meter.create_gauge(name, unit, meaning).set
        case Kind.HISTOGRAM:
            return meter.create_histogram(name, unit, meaning, explicit_bucket_boundaries_advisory=BUCKETS_S).record


def _attributes(batch: BatchFinished | BatchFailed) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {"twopc.owner": batch.owner, "twopc.batch_id": batch.batch_id}
    if isinstance(batch, BatchFailed):
        return {**attributes, _ERROR: type(batch.error).__name__}
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
