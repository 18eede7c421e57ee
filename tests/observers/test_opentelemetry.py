"""The spans and metrics that OpenTelemetry's SDK exports."""

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, StatusCode

from twopc.errors import LogMismatch
from twopc.events import BatchFinished
from twopc.observers._instruments import BUCKETS_S, INSTRUMENTS
from twopc.observers.opentelemetry import OpenTelemetryObserver
from twopc.observing import notify


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider()


@pytest.fixture
def exporter(provider: TracerProvider, observe: Any) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observe(OpenTelemetryObserver(provider, NoOpMeterProvider()))
    return exporter


@pytest.fixture
def metrics(observe: Any) -> Callable[[], dict[str, Metric]]:
    """Each metric by its name, as a reader of the SDK collects it."""
    reader = InMemoryMetricReader()
    observe(OpenTelemetryObserver(NoOpTracerProvider(), MeterProvider([reader])))

    def collect() -> dict[str, Metric]:
        collected = reader.get_metrics_data()
        assert collected is not None
        [of_resource] = collected.resource_metrics
        [of_scope] = of_resource.scope_metrics
        return {metric.name: metric for metric in of_scope.metrics}

    return collect


def values(metric: Metric) -> dict[tuple[Any, ...], Any]:
    """The points of a metric by the values of their attributes."""
    return {tuple((point.attributes or {}).values()): point for point in metric.data.data_points}


def spans(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def test_a_batch_is_a_span_and_its_phases_are_its_children_one_after_the_other(
    run: Any, exporter: InMemorySpanExporter
) -> None:
    before_ns = time.time_ns()
    run(0)
    [batch] = spans(exporter, "twopc batch")
    children = [span for span in exporter.get_finished_spans() if span is not batch]
    assert [span.name for span in children] == [
        *("twopc recovering", "twopc pre-committing", "twopc sealing", "twopc deciding"),
        *("twopc committing", "twopc sweeping"),
    ]
    assert {span.parent.span_id if span.parent else None for span in children} == {batch.context.span_id}
    ends = [batch.start_time, *(span.end_time for span in children)]
    assert ends == [*(span.start_time for span in children), batch.end_time]
    assert before_ns <= (batch.start_time or 0) < (batch.end_time or 0) <= time.time_ns()


def test_a_span_has_the_metrics_of_its_batch(run: Any, exporter: InMemorySpanExporter) -> None:
    run(0)
    run(0, 1)
    written, again, _ = spans(exporter, "twopc batch")
    assert dict(written.attributes or {}) == {
        "twopc.owner": "orders",
        "twopc.batch_id": 0,
        "twopc.already_decided": False,
        "twopc.retries": 1,
        "twopc.recovered": 0,
        "twopc.unrouted": 0,
        "twopc.bad_records": 0,
        "twopc.records.archive": 3,
        "twopc.bytes.archive": 24,
        "twopc.transactions.archive": 1,
    }
    assert (again.attributes or {})["twopc.already_decided"] is True


def test_a_failed_run_is_a_span_with_its_error(run: Any, exporter: InMemorySpanExporter) -> None:
    run(0)
    with pytest.raises(LogMismatch):
        run(7)
    [_, failed] = spans(exporter, "twopc batch")
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "LogMismatch")
    assert dict(failed.attributes or {}) == {"twopc.owner": "orders", "twopc.batch_id": 7, "error.type": "LogMismatch"}
    assert [event.name for event in failed.events] == ["exception"]
    phases = [span.name for span in exporter.get_finished_spans() if span.parent]
    assert phases[-1] == "twopc recovering"


def test_batches_are_below_the_span_in_which_they_are_run(
    run: Any, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    with provider.get_tracer("a loop").start_as_current_span("nightly") as nightly:
        run(0)
    [batch] = spans(exporter, "twopc batch")
    assert batch.parent is not None
    assert batch.parent.span_id == nightly.get_span_context().span_id


# Metrics. ---------------------------------------------------------------------------------------------------------


def test_the_metrics_are_those_of_prometheus_with_units_and_names_of_opentelemetry(run: Any, metrics: Any) -> None:
    run(0, leaves_open=True)
    run(0, 1)
    with pytest.raises(LogMismatch):
        run(7)
    found = metrics()
    assert {name: metric.unit for name, metric in found.items()} == {
        f"twopc.{each.opentelemetry}": each.unit
        for each in INSTRUMENTS
        if each.opentelemetry != "replayed_transactions"  # none was
    }
    assert {unit for metric in found.values() for unit in [metric.unit]} == {
        *("s", "By", "1", "{record}", "{batch}", "{transaction}", "{call}")
    }
    [records] = values(found["twopc.records"]).items()
    assert (records[0], records[1].value) == (("orders", "archive"), 6)
    assert dict(records[1].attributes) == {"twopc.owner": "orders", "twopc.sink": "archive"}
    [failed] = found["twopc.failed_batches"].data.data_points
    assert (dict(failed.attributes), failed.value) == ({"twopc.owner": "orders", "error.type": "LogMismatch"}, 1)


def test_times_are_in_seconds_with_buckets_for_them(run: Any, metrics: Any) -> None:
    started = time.perf_counter()
    run(0, 1)
    took_s = time.perf_counter() - started
    found = metrics()
    [batch] = found["twopc.batch.duration"].data.data_points
    assert batch.explicit_bounds == BUCKETS_S
    assert (batch.count, 0 < batch.sum < took_s) == (2, True)
    phases = values(found["twopc.phase.duration"])
    assert batch.sum == pytest.approx(sum(point.sum for point in phases.values()))
    assert phases["orders", "deciding"].count == 2


def test_a_forwarded_batch_has_the_time_at_which_it_finished(exporter: InMemorySpanExporter, metrics: Any) -> None:
    at = datetime(2026, 11, 27, 12, 0, 0, 5000, tzinfo=timezone.utc)
    notify(BatchFinished(7, False, {}, {}, {}, {"deciding": 2000.0}, 0, 0, "orders"), at)
    [batch] = spans(exporter, "twopc batch")
    assert batch.end_time == 1_795_780_800_005_000_000
    assert batch.start_time == batch.end_time - 2_000_000_000
    [finished] = metrics()["twopc.batch.finish_time"].data.data_points
    assert finished.value == at.timestamp()
