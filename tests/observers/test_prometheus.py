"""What Prometheus scrapes over HTTP from its own client library's server."""

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from twopc.errors import LogMismatch
from twopc.events import CallRetried
from twopc.observers._instruments import INSTRUMENTS
from twopc.observers.prometheus import PrometheusObserver
from twopc.observing import notify

Scrape = Callable[[], dict[str, float]]


@pytest.fixture
def scrape(observe: Any) -> Iterator[Scrape]:
    """Each sample by its name and labels as Prometheus gets them."""
    registry = CollectorRegistry()
    observe(PrometheusObserver(registry))
    server, thread = start_http_server(0, "127.0.0.1", registry)

    def read() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    yield read
    server.shutdown()
    server.server_close()
    thread.join()


def test_what_batches_wrote_is_counted_for_each_query_and_sink(run: Any, scrape: Scrape) -> None:
    run(0, 1)
    run(0, owner="returns")
    samples = scrape()
    assert samples['twopc_batches_total{already_decided="false",owner="orders"}'] == 2
    assert samples['twopc_records_total{owner="orders",sink="archive"}'] == 6
    assert samples['twopc_records_total{owner="returns",sink="archive"}'] == 3
    assert samples['twopc_record_bytes_total{owner="orders",sink="archive"}'] == 48
    assert samples['twopc_transactions_total{owner="orders",sink="archive"}'] == 2
    assert samples['twopc_batch_id{owner="orders"}'] == 1
    assert time.time() - 60 < samples['twopc_batch_finished_timestamp_seconds{owner="orders"}'] <= time.time()


def test_times_of_phases_are_in_seconds(run: Any, scrape: Scrape) -> None:
    started = time.perf_counter()
    run(0, 1)
    took_s = time.perf_counter() - started
    samples = scrape()
    for phase, times in {"recovering": 1, "pre-committing": 2, "deciding": 2, "committing": 2}.items():
        labels = f'{{owner="orders",phase="{phase}"}}'
        assert samples[f"twopc_phase_duration_seconds_count{labels}"] == times
        assert 0 < samples[f"twopc_phase_duration_seconds_sum{labels}"] < took_s
    phases_s = [value for name, value in samples.items() if name.startswith("twopc_phase_duration_seconds_sum")]
    assert samples['twopc_batch_duration_seconds_count{owner="orders"}'] == 2
    assert samples['twopc_batch_duration_seconds_sum{owner="orders"}'] == pytest.approx(sum(phases_s))


def test_retries_rollbacks_and_recoveries_are_counted(run: Any, scrape: Scrape) -> None:
    run(0, leaves_open=True)
    run(0)
    samples = scrape()
    assert samples['twopc_retries_total{owner="orders"}'] == 2
    assert samples['twopc_commit_retries_total{owner="orders"}'] == 2  # after the decision, and at recovery
    assert samples['twopc_aborted_transactions_total{owner="orders",sink="archive"}'] == 1
    assert samples['twopc_recovered_transactions_total{owner="orders",sink="archive"}'] == 1
    assert samples['twopc_batches_total{already_decided="true",owner="orders"}'] == 1


def test_failed_runs_are_counted_by_their_error(run: Any, scrape: Scrape) -> None:
    run(0)
    for _ in range(2):
        with pytest.raises(LogMismatch):
            run(7)
    assert scrape()['twopc_failed_batches_total{error="LogMismatch",owner="orders"}'] == 2


def test_calls_that_commit_nothing_are_no_retried_commits(scrape: Scrape) -> None:
    notify(CallRetried("seal", 1, 0.1, "away", 0.0, "orders"))
    samples = scrape()
    assert samples['twopc_retries_total{owner="orders"}'] == 1
    assert 'twopc_commit_retries_total{owner="orders"}' not in samples


def test_the_page_lists_every_metric_of_both_systems() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `twopc_(\w+)` \| .* \| `twopc\.([a-z._]+)` \|", page, re.MULTILINE)
    assert rows == [(each.prometheus, each.opentelemetry) for each in INSTRUMENTS]
