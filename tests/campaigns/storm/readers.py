"""The readers of whole batches beside the query, which the storm kills, too, and what they have shown."""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from tests.campaigns.storm.query import Settings
from tests.support.topic_reader import records_of
from tests.support.whole_batches import JAVA, PYTHON, NoCompiler, Reader, reader_in

SHOWN_S = 180
"""How long the readers may take to show the rest when the query has ended."""

console = Console()


class Readers:
    """The readers of a storm, by their language; none if no markers are written."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._readers: dict[str, Reader] = {}
        for language in (PYTHON, JAVA) if settings.markers else ():
            folder = Path(settings.folder) / "readers" / language
            try:
                reader = reader_in(language, settings.servers, folder, settings.markers, settings.targets)
            except NoCompiler as error:
                console.print(f"no reader in Java: {error}", highlight=False)
            else:
                self._readers[language] = reader

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Have all readers run while the context is open."""
        try:
            self.supervise()
            yield
        finally:
            for reader in self._readers.values():
                reader.kill()

    def supervise(self) -> None:
        """Start every reader that is gone again."""
        for reader in self._readers.values():
            reader.supervise()

    def kill_one(self, chance: random.Random) -> str | None:
        """Kill a reader. Return its language, or None if there is none."""
        if not self._readers:
            return None
        language = chance.choice(sorted(self._readers))
        self._readers[language].kill()
        return language

    def finish(self, sent: int) -> None:
        """Wait until the readers have shown as many records as were sent."""
        deadline = time.monotonic() + SHOWN_S
        while time.monotonic() < deadline and any(
            sum(map(len, self._numbers(reader).values())) < sent for reader in self._readers.values()
        ):
            self.supervise()
            time.sleep(0.5)

    def compare(self, sent: int) -> dict[str, dict[str, int]]:
        """Compare what was shown with the numbers below ``sent``, and each batch with its records in the topics, where
        the query has noted Spark's number of the batch in a header of its own."""
        if not self._readers:
            return {}
        batches: dict[int, list[int]] = {}
        for topic in self._settings.targets:
            for record in records_of(self._settings.servers, topic):
                batches.setdefault(int(dict(record.headers)["batch"]), []).append(int(record.value))
        return {
            language: {**compared(self._numbers(reader), batches, sent), "starts": reader.starts}
            for language, reader in self._readers.items()
        }

    def _numbers(self, reader: Reader) -> dict[int, list[int]]:
        """Return batch → the numbers that a reader has shown of it."""
        return {
            int(name.split(".")[1]): [int(value) for topic, value in rows if topic != self._settings.markers]
            for name, rows in reader.shown().items()
        }


def compared(shown: Mapping[int, Sequence[int]], batches: Mapping[int, Sequence[int]], sent: int) -> dict[str, int]:
    """Compare the batches that a reader has shown with those that were written, and with the numbers below ``sent``."""
    times = Counter(number for numbers in shown.values() for number in numbers)
    return {
        "shown": len(shown),
        "torn": sum(sorted(numbers) != sorted(batches.get(batch, ())) for batch, numbers in shown.items()),
        "lost": len(set(range(sent)) - times.keys()),
        "doubled": sum(count - 1 for count in times.values()),
    }
