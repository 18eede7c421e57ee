"""``twopc serve-metrics``: what logs hold, as metrics for Prometheus."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence

import click

from twopc.cli.commands.running import show
from twopc.cli.output import Report, say
from twopc.cli.readings import WatchedLog
from twopc.cli.sinks_file import Redaction
from twopc.errors import ConfigurationError

PORT = 9465
"""Beside 9464, where docs/monitoring.md has a driver serve its own."""

INTERVAL_S = 15.0
"""Prometheus scrapes every minute by default, and mostly every 15 s."""


@click.command("serve-metrics")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    metavar="PORT",
    help="The port to listen on; 0: a free one.",
)
@click.option(
    "--interval-s",
    type=click.FloatRange(min=0, min_open=True),
    default=INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait between two readings of a log.",
)
def serve_metrics(logs: tuple[str, ...], host: str, port: int, interval_s: float) -> None:
    """Serve metrics of any number of logs to Prometheus. Reads only the logs, and changes nothing."""

    def run(_: Report, redact: Redaction) -> None:
        watched = _watched(logs)
        served_at = _serve(host, port, watched)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # by default, a container's first process ignores it
        say(f"serving http://{host}:{served_at}/metrics: {len(watched)} logs, read every {interval_s:g} s")
        for log in watched:
            log.follow(interval_s, lambda line: say(redact(line)))
        threading.Event().wait()

    show(None, False, lambda *_: None, run)


def _watched(logs: Sequence[str]) -> list[WatchedLog]:
    """Raises ConfigurationError if a log is none, or if two have one name."""
    watched = [WatchedLog(url) for url in dict.fromkeys(logs)]
    name, times = Counter(log.name for log in watched).most_common(1)[0]
    if times > 1:
        raise ConfigurationError(f"{times} LOGs are the same place, {name}: name each log once")
    return watched


def _serve(host: str, port: int, logs: Sequence[WatchedLog]) -> int:
    try:
        from prometheus_client import CollectorRegistry

        from twopc.cli.exporter import LogsCollector, serve
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"serve-metrics needs {error.name}: pip install 'twopc-core[cli,prometheus]'"
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LogsCollector(logs))
    return serve(host, port, registry)
