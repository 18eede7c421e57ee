"""The spans that OpenTelemetry's SDK exports."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from twopc.errors import LogMismatch
from twopc.observers.opentelemetry import OpenTelemetryObserver


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider()


@pytest.fixture
def exporter(provider: TracerProvider, observe: Any) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observe(OpenTelemetryObserver(provider))
    return exporter


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
        "twopc recovering",
        "twopc pre-committing",
        "twopc sealing",
        "twopc deciding",
        "twopc committing",
        "twopc sweeping",
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
    assert dict(failed.attributes or {}) == {
        "twopc.owner": "orders",
        "twopc.batch_id": 7,
        "error.type": "LogMismatch",
    }
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
