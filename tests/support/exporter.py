"""``twopc serve-metrics`` as a separate process on a free port, and the metrics that it serves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

# A shell makes background processes and their children ignore Ctrl-C.
COMMAND = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import twopc.cli; twopc.cli.main()"

INTERVAL_S = 0.05
ENDS_WITHIN_S = 30


@dataclass(frozen=True)
class Sample:
    """A value of a time series."""

    name: str
    labels: dict[str, str]
    value: float

    def __str__(self) -> str:
        labels = [f'{name}="{value}"' for name, value in sorted(self.labels.items())]
        return f"{self.name}{{{','.join(labels)}}}"


def samples(text: str) -> list[Sample]:
    """Parse an exporter's response."""
    families = text_string_to_metric_families(text)
    return [Sample(each.name, dict(each.labels), each.value) for family in families for each in family.samples]


class Exporter:
    """The running command, as a context manager. Ended by its process id."""

    def __init__(self, *arguments: object, interval_s: float = INTERVAL_S) -> None:
        given = ("serve-metrics", *arguments, "--port", 0, "--interval-s", interval_s)
        command = [sys.executable, "-c", COMMAND, *map(str, given)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = ""

    def __enter__(self) -> Self:
        assert self.process.stderr is not None
        self.said = self.process.stderr.readline()
        found = re.search(r"http://\S+", self.said)
        assert found, self.said + self.process.stderr.read()
        self.url = found[0].rstrip(":")
        return self

    def scrape(self) -> list[Sample]:
        with urllib.request.urlopen(self.url, timeout=10) as answer:  # noqa: S310
            return samples(answer.read().decode())

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the series with at least these labels; None if there is none."""
        found = [each.value for each in self.scrape() if each.name == name and labels.items() <= each.labels.items()]
        assert len(found) < 2, f"{name}{labels}: {len(found)} series"
        return found[0] if found else None

    def wait_for(self, name: str, value: float | None, **labels: str) -> None:
        deadline = time.monotonic() + ENDS_WITHIN_S
        while (seen := self.value(name, **labels)) != value:
            assert time.monotonic() < deadline, f"{name}{labels} is {seen}, not {value}"
            time.sleep(0.02)

    def hear(self, text: str) -> str:
        """Return the command's messages up to a line that contains ``text``."""
        assert self.process.stderr is not None
        said = ""
        while text not in said:
            line = self.process.stderr.readline()
            assert line, said
            said += line
        return said

    def interrupt(self) -> tuple[int, str]:
        """Send Ctrl-C. Return the exit code and the command's messages that were not read before."""
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=ENDS_WITHIN_S)
        return self.process.returncode, said

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=ENDS_WITHIN_S)


def age(log: Path, by_s: float) -> None:
    """Backdate every entry of a log on a disk, and so its decisions."""
    for path in log.glob("0*.json"):
        text = path.read_text(encoding="utf-8")
        found = re.search(r'"written_at": "([^"]+)"', text)
        assert found
        older = datetime.fromisoformat(found[1]) - timedelta(seconds=by_s)
        path.write_text(text.replace(found[1], older.isoformat(timespec="milliseconds")), encoding="utf-8")
