"""Metrics for Prometheus, through its client library (extra ``prometheus``)."""

from __future__ import annotations

from datetime import datetime

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from twopc.events import Event
from twopc.hookspecs import hookimpl
from twopc.observers._instruments import BUCKETS_S, INSTRUMENTS, Instrument, Kind, measure


class PrometheusObserver:
    """Records events as metrics in ``registry``. docs/metrics.md lists the metrics. A registry can have only one such
    observer."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._metrics = {instrument: _metric(instrument, registry) for instrument in INSTRUMENTS}

    @hookimpl
    def twopc_event(self, event: Event, at: datetime) -> None:
        for one in measure(event, at):
            match self._metrics[one.instrument].labels(*one.labels):
                case Counter() as counter:
                    counter.inc(one.value)
                case Gauge() as gauge:
                    gauge.set(one.value)
                case Histogram() as histogram:
                    histogram.observe(one.value)


def _metric(instrument: Instrument, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    name = f"twopc_{instrument.prometheus}"
    match instrument.kind:
        case Kind.COUNTER:
            return Counter(name, instrument.meaning, instrument.labels, registry=registry)
        case Kind.GAUGE:
            return Gauge(name, instrument.meaning, instrument.labels, registry=registry)
        case Kind.HISTOGRAM:
            return Histogram(name, instrument.meaning, instrument.labels, registry=registry, buckets=BUCKETS_S)
