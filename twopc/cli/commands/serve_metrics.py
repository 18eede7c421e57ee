"""``twopc serve-metrics``: serves the state of logs as Prometheus metrics."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from twopc.cli.commands import parameters
from twopc.cli.commands.running import show
from twopc.cli.output import Report, say
from twopc.cli.readings import WatchedLog, WatchedSink
from twopc.cli.sinks_file import Redaction, read_sinks
from twopc.errors import ConfigurationError

PORT = 9465
"""The port next to 9464, where a driver serves its own metrics in docs/monitoring.md."""

INTERVAL_S = 15.0
"""Prometheus scrapes every minute by default; many installations scrape every 15 s."""


@click.command("serve-metrics")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option(
    "--sinks",
    "sinks_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The sinks of the query of a single LOG: also serve what they have open, and for how long.",
)
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
    type=parameters.Seconds(),
    default=INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait between two readings of a log.",
)
def serve_metrics(logs: tuple[str, ...], sinks_file: Path | None, host: str, port: int, interval_s: float) -> None:
    """Serve metrics of any number of logs to Prometheus. Changes nothing."""

    def run(_: Report, redact: Redaction) -> None:
        watched_logs = _logs(logs)
        sinks = _sinks(sinks_file, watched_logs, redact) if sinks_file else []
        try:
            from twopc.cli.exporter import serve
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"serve-metrics needs {error.name}: pip install 'twopc-core[cli,prometheus]'"
            ) from error
        watched = [*watched_logs, *sinks]
        served_at = serve(host, port, watched)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # a container's first process ignores it by default
        say(f"serving http://{host}:{served_at}/metrics: {len(watched_logs)} logs, read every {interval_s:g} s")
        for number, each in enumerate(watched):  # spread out: 200 logs in one database would take 200 connections
            each.follow(interval_s, lambda line: say(redact(line)), interval_s * number / len(watched))
        while True:
            time.sleep(1)  # short, as Python handles a signal that arrives just before a sleep only after it

    show(None, False, lambda *_: None, run)


def _logs(given: Sequence[str]) -> list[WatchedLog]:
    """Return the logs to watch. Raises ConfigurationError: a log can't be kept at one of the places, or a place is
    given twice."""
    watched = [WatchedLog(url) for url in dict.fromkeys(given)]
    name, times = Counter(log.name for log in watched).most_common(1)[0]
    if times > 1:
        raise ConfigurationError(f"{times} LOGs are the same place, {name}: name each log once")
    return watched


def _sinks(path: Path, logs: Sequence[WatchedLog], redact: Redaction) -> list[WatchedSink]:
    """Return the sinks to watch. Raises ConfigurationError: there are several logs, so the sinks' log is unknown. Also
    raises the errors of ``read_sinks``."""
    if len(logs) > 1:
        raise ConfigurationError(f"--sinks has the sinks of one query, and {len(logs)} LOGs are given: give one LOG")
    return [WatchedSink(name, sink, logs[0]) for name, sink in read_sinks(path, redact).items()]
