"""The drivers of a demonstration: each is killed, except the last, which runs to the end of the source."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeAlias

from settings import Settings

from twopc.errors import Retriable
from twopc_kafka.client.control import control_of
from twopc_kafka.options import ARROW, WRITERS
from twopc_kafka_broker import DevelopmentError

DRIVER_TIMEOUT_S = 300

Kill: TypeAlias = "tuple[str, Callable[[], bool] | None]"
"""The moment at which a driver dies, and a function that returns whether it has come. If None, the driver kills itself.
"""


@dataclass(frozen=True)
class Drivers:
    """The drivers of one demonstration.

    Attributes:
        script: the script of a driver: a file in this folder, or a path.
        show: shows the current step, and returns how many records are visible.
    """

    script: str
    settings: Settings
    show: Callable[[str], int]

    def kill(self, kills: Iterable[Kill], total: int) -> list[str]:
        """Run a driver for each kill. Return the moments, for the report. Each kill is drawn when it is due."""
        killed = []
        for number, (moment, has_come) in enumerate(kills, 1):
            with self._driver(replace(self.settings, die_at=moment), number) as process:
                what = f"kill {number} of {total}: {moment}"
                self._wait_for(has_come or (lambda: False), process, what, number)
                if process.poll() not in (None, -signal.SIGKILL):
                    raise SystemExit(f"driver {number} was to be killed and ended by itself; see {self._log(number)}")
            killed.append(moment)
        return killed

    def finish(self, number: int) -> None:
        """Run a last driver to the end of the source."""
        with self._driver(self.settings, number) as process:
            self._wait_for(lambda: False, process, "last restart, to the end of the source", number)
            if process.returncode != 0:
                raise SystemExit(f"the last driver failed; see {self._log(number)}")

    @contextmanager
    def _driver(self, settings: Settings, number: int) -> Iterator[subprocess.Popen[bytes]]:
        """Run a driver in a separate process group, with its JVM and Python workers, and kill the group at the end."""
        with self._log(number).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / self.script), json.dumps(asdict(settings))],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                start_new_session=True,
            )
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _log(self, number: int) -> Path:
        """Return the file for a driver's output."""
        return Path(self.settings.folder) / f"driver-{number}.log"

    def _wait_for(self, has_come: Callable[[], bool], process: subprocess.Popen[bytes], what: str, number: int) -> None:
        """Wait until the moment has come or the driver has ended. Fail if readers get no more records meanwhile."""
        records, since = -1, time.monotonic()
        while not has_come() and process.poll() is None:
            if (now := self.show(what)) > records:
                records, since = now, time.monotonic()
            if time.monotonic() > since + DRIVER_TIMEOUT_S:
                raise SystemExit(f"no record came for {DRIVER_TIMEOUT_S} s: {what}; see {self._log(number)}")
            time.sleep(0.02)


def while_tasks_write(settings: Settings) -> Kill:
    """Return a kill while a Kafka transaction is open."""

    def tasks_write() -> bool:
        try:
            return bool(control_of({"bootstrap_servers": [settings.servers]}).list_ongoing("twopc."))
        except Retriable:
            return False  # the broker creates its transaction log for the first transaction

    return "while tasks write", tasks_write


def at_random(settings: Settings, chance: random.Random) -> Kill:
    """Return a kill up to three seconds after the first commit."""
    folder = Path(settings.folder)
    written, wait_s = len(read_events(folder)), chance.uniform(0, 3)

    def has_come() -> bool:
        if len(read_events(folder)) == written:
            return False
        time.sleep(wait_s)
        return True

    return f"at random ({wait_s:.2f} s after its first commit)", has_come


def read_events(folder: Path) -> list[dict[str, object]]:
    """Return the events that the drivers recorded. A line that a kill cut off is left out."""
    path = folder / "events.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def recovered(events: list[dict[str, object]], kind: str) -> int:
    """Return how many transactions restarted drivers had to end. A recovery also repeats commits that the previous
    driver made but did not record in the log. These are not counted."""

    def of(event: dict[str, object]) -> str:
        return json.dumps(event["committable"], sort_keys=True)

    ended = [event for event in events if event["event"] == kind]
    before = {of(event) for event in ended if not event["recovered"]}
    return len({of(event) for event in ended if event["recovered"]} - before)


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Run a demonstration as a program. An error of its servers or Ctrl-C ends it without a traceback."""
    try:
        sys.exit(main())
    except DevelopmentError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped")


def parsed_arguments(description: str, folder: str) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--records", type=int, default=336_776, help="flights to load (default: all)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the random kills of another run")
    parser.add_argument("--writer", choices=WRITERS, default=ARROW, help="of the Kafka sink (default: arrow)")
    parser.add_argument("--folder", default=folder, help=f"where to work; emptied first (default: {folder})")
    return parser.parse_args()
