"""Serves readings as Prometheus metrics, by its client library (extra ``prometheus``).

A scrape reads no log. It returns the newest reading of each log (``twopc.cli.readings``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twopc.cli.readings import Watched
from twopc.errors import ConfigurationError


def serve(host: str, port: int, watched: Sequence[Watched]) -> int:
    """Serve the metrics of ``watched`` on daemon threads. Return the port, which is a free one if ``port`` is 0. Raises
    ConfigurationError: the address can't be used."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ReadingsCollector(watched))
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"metrics can't be served at {host}:{port}: {error.strerror or error}. Name another --port or --host."
        ) from error
    return int(server.server_port)


class ReadingsCollector(Collector):
    """The metrics of logs and sinks that docs/metrics.md lists."""

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._watched = watched

    def collect(self) -> Iterable[Metric]:
        families = {name: GaugeMetricFamily(name, meaning, labels=labels) for name, meaning, labels in METRICS}
        for name, labels, value in chain.from_iterable(each.samples() for each in self._watched):
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
    """Return a label that UTF-8 can encode. Paths may contain invalid bytes, and JSON may contain lone surrogates. A
    single such label would make every scrape fail."""
    return label.encode(errors="replace").decode()
