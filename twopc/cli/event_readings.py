"""The events of queries, read from their file on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from twopc.cli.readings import Watched
from twopc.errors import ConfigurationError
from twopc.events import BatchFinished, Event
from twopc.observers.json_lines import EventReader, Recorded


class WatchedEvents(Watched):
    """A file of events, reported from the time when it is first read.

    Of what the file has at that time, only the newest finished batch of each query is reported. Counters that began
    with all that a file keeps would rise again by that much with each start.

    Args:
        path: the file. It need not be there yet.
        report: is called with each event, and when it happened.

    Raises:
        ConfigurationError: the file can't be read.
    """

    def __init__(self, path: Path, report: Callable[[Event, datetime], None]) -> None:
        self.name = f"events of {path}"
        self._report = report
        self._has_begun = False
        try:
            self._reader = EventReader(path)
        except OSError as error:
            raise ConfigurationError(f"the events file {path} can't be read: {error.strerror}.") from error

    def _read(self) -> None:
        recorded: Iterable[Recorded] = self._reader.read()
        if not self._has_begun:
            recorded = _newest_batches(recorded)
        for each in recorded:
            self._report(each.event, each.at)
        self._has_begun = True

    def _found(self) -> str:
        return "read"


def _newest_batches(recorded: Iterable[Recorded]) -> list[Recorded]:
    finished = {each.event.owner: each for each in recorded if isinstance(each.event, BatchFinished)}
    return list(finished.values())
