"""What logs hold, as metrics of Prometheus, through its client library (extra ``prometheus``), which also serves them.

A scrape reads no log. It gets the newest reading of each (``twopc.cli.readings``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twopc.cli.readings import WatchedLog
from twopc.cli.sink_readings import WatchedSink
from twopc.errors import ConfigurationError
from twopc.events import Event
from twopc.observers.prometheus import PrometheusObserver


class Exporter:
    """The metrics of one command, and where they are served."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)

    def observe(self) -> Callable[[Event, datetime], None]:
        """Return a function that adds an event, and when it happened, to the metrics of ``PrometheusObserver``."""
        return PrometheusObserver(self._registry).twopc_event

    def serve(self, host: str, port: int, logs: Sequence[WatchedLog], sinks: Sequence[WatchedSink]) -> int:
        """Serve the metrics on daemon threads. Return the port; 0 takes a free one.

        Raises:
            ConfigurationError: nothing can be served there.
        """
        self._registry.register(LogsCollector(logs, sinks))
        try:
            server, _ = start_http_server(port, host, self._registry)
        except OSError as error:
            raise ConfigurationError(
                f"metrics can't be served at {host}:{port}: {error.strerror or error}. Name another --port or --host."
            ) from error
        return int(server.server_port)


class LogsCollector(Collector):
    """The metrics of logs and sinks that docs/metrics.md lists."""

    def __init__(self, logs: Sequence[WatchedLog], sinks: Sequence[WatchedSink] = ()) -> None:
        self._logs = logs
        self._sinks = sinks

    def collect(self) -> Iterable[Metric]:
        families = {name: GaugeMetricFamily(name, meaning, labels=labels) for name, meaning, labels in METRICS}
        of_logs = (sample for log in self._logs for sample in _samples(log))
        of_sinks = (sample for sink in self._sinks for sample in _samples_of_sink(sink))
        for name, labels, value in chain(of_logs, of_sinks):
            families[name].add_metric([_encodable(label) for label in labels], value)
        return families.values()


METRICS_OF_LOGS = (
    ("twopc_log_up", "1 if the newest reading of the log has succeeded, else 0.", ["log"]),
    ("twopc_log_read_timestamp_seconds", "When the newest successful reading began.", ["log"]),
    ("twopc_log_entries", "Entries that the log keeps; 0: no query has begun a log there.", ["log"]),
    ("twopc_log_bytes", "Size of the entries that the log keeps.", ["log", "owner"]),
    ("twopc_log_batch_id", "The newest decided batch; absent before the first.", ["log", "owner"]),
    ("twopc_log_incarnation", "The incarnation that wrote the newest entry.", ["log", "owner"]),
    (
        "twopc_log_last_entry_timestamp_seconds",
        "Time of the newest entry, by the driver's clock.",
        ["log", "owner"],
    ),
    ("twopc_log_clean_stop", "1 if the newest coordinator has stopped cleanly, else 0.", ["log", "owner"]),
    ("twopc_log_unanswered_seconds", "How long a call has had no answer, from a minute on; else 0.", ["log", "owner"]),
    ("twopc_oldest_in_doubt_seconds", "How long the oldest batch in doubt has been so; 0 if none.", ["log", "owner"]),
    ("twopc_usual_in_doubt_seconds", "How long a batch usually is in doubt in the log.", ["log", "owner"]),
    (
        "twopc_in_doubt_transactions",
        "Decided transactions, not known to be committed.",
        ["log", "owner", "sink"],
    ),
    ("twopc_abandoned_transactions", "Decided transactions that operators gave up.", ["log", "owner", "sink"]),
)

METRICS_OF_SINKS = (
    ("twopc_sink_up", "1 if the newest reading of the sink has succeeded, else 0.", ["log", "sink"]),
    ("twopc_sink_read_timestamp_seconds", "When the newest successful reading began.", ["log", "sink"]),
    ("twopc_open_transactions", "Transactions that are open in the target system.", ["log", "owner", "sink"]),
    ("twopc_oldest_transaction_seconds", "Age of the oldest open transaction; 0 if none.", ["log", "owner", "sink"]),
    (
        "twopc_transaction_timeout_seconds",
        "The age at which it is rolled back, if ever.",
        ["log", "owner", "sink"],
    ),
    ("twopc_held_back_seconds", "How long readers are held back at one place; 0 if not.", ["log", "owner", "sink"]),
)

METRICS = (*METRICS_OF_LOGS, *METRICS_OF_SINKS)


def _encodable(label: str) -> str:
    """Return a label that can be served. A path may have bytes that are no UTF-8, and JSON half a surrogate pair; one
    such label would make each scrape of all logs fail."""
    return label.encode(errors="replace").decode()


def _samples(log: WatchedLog) -> Iterator[tuple[str, list[str], float]]:
    reading = log.reading
    yield "twopc_log_up", [log.name], log.is_up
    if reading is None:
        return
    yield "twopc_log_read_timestamp_seconds", [log.name], reading.at_s
    yield "twopc_log_entries", [log.name], reading.query.entries if reading.query else 0
    if reading.query is None:
        return
    query = reading.query
    of_query = [log.name, query.owner]
    yield "twopc_log_bytes", of_query, query.bytes
    if query.batch_id is not None:
        yield "twopc_log_batch_id", of_query, query.batch_id
    yield "twopc_log_incarnation", of_query, query.incarnation
    yield "twopc_log_last_entry_timestamp_seconds", of_query, query.last_entry_s
    yield "twopc_log_clean_stop", of_query, query.is_clean
    yield "twopc_log_unanswered_seconds", of_query, query.unanswered_s
    yield "twopc_oldest_in_doubt_seconds", of_query, query.oldest_in_doubt_s
    yield "twopc_usual_in_doubt_seconds", of_query, query.usual_in_doubt_s
    for sink in query.in_doubt:  # every sink of the query, so that no series ends when its batch is committed
        yield "twopc_in_doubt_transactions", [*of_query, sink], query.in_doubt[sink]
        yield "twopc_abandoned_transactions", [*of_query, sink], query.abandoned[sink]


def _samples_of_sink(sink: WatchedSink) -> Iterator[tuple[str, list[str], float]]:
    reading = sink.reading
    if not sink.waits:
        yield "twopc_sink_up", [sink.log.name, sink.sink], sink.is_up
    if reading is None:
        return
    yield "twopc_sink_read_timestamp_seconds", [sink.log.name, sink.sink], reading.at_s
    of_sink = [sink.log.name, reading.owner, sink.sink]
    yield "twopc_open_transactions", of_sink, reading.open.count
    for name, seconds in (
        ("twopc_oldest_transaction_seconds", reading.open.oldest_s),
        ("twopc_transaction_timeout_seconds", reading.open.timeout_s),
        ("twopc_held_back_seconds", reading.held_back_s),
    ):
        if seconds is not None:
            yield name, of_sink, seconds
