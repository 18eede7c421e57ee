"""The query's progress, and the longest time without any, read from the commit log."""

import time
from collections.abc import Callable

from tests.campaigns.storm.query import Settings
from twopc.log.commit_log import read_tail
from twopc.log.store import open_store


class Availability:
    """Measures the longest time in which no batch was decided."""

    def __init__(self, settings: Settings) -> None:
        self._store = open_store(f"{settings.folder}/log")
        self._since = time.monotonic()
        self.decided: int | None = None
        self.longest_s = 0.0

    @property
    def batches(self) -> int:
        return 0 if self.decided is None else self.decided + 1

    def look(self) -> None:
        """Read the log."""
        tail = read_tail(self._store)
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._since)
        if tail and tail[1].decided != self.decided:
            self.decided, self._since = tail[1].decided, now

    def watch(self, longest_s: float, meanwhile: Callable[[], None]) -> None:
        """Read the log until another batch is decided, for at most ``longest_s``."""
        decided, deadline = self.decided, time.monotonic() + longest_s
        while self.decided == decided and time.monotonic() < deadline:
            time.sleep(0.05)
            meanwhile()
            self.look()
