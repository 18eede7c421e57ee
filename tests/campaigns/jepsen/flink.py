"""Flink's KafkaSink, exactly once, on the same cluster and under the same faults as our queries, for comparison.

The job writes numbers. It runs in one process, which is started again when it is gone, from the newest checkpoint. It
writes to Kafka alone.
"""

import functools
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.peers import Flink
from tests.campaigns.jepsen.brokers import SERVERS
from tests.campaigns.jepsen.query import Kind, Query
from tests.campaigns.jepsen.reader import READERS, sightings

FLINK = "flink"
PARALLELISM = 3
A_RANGE = 1 << 40
"""How many numbers each of the source's tasks has, one task after the other."""

RECORDS_A_SECOND = 300


@functools.cache
def compiled() -> Flink:
    """Return the compiled job. Raises PeerMissing if there is no compiler."""
    return Flink.set_up(Path(__file__).with_name("FlinkNumbers.java"))


class FlinkQuery(Query):
    """A job of Flink and the supervisor of its process. Its batches are its checkpoints."""

    is_ours = is_loop = False
    worker_hosts = ()

    def mount_disks(self) -> None:
        """Do nothing: it has no log and no files."""

    def create_tables(self) -> None:
        """Do nothing: the job writes to Kafka alone."""

    def succeed(self) -> None:
        """Start the job. Call it only if none runs: what elects a leader in production is not there."""
        self.starts += 1
        arguments = (SERVERS, self.settings.topic, str(self.folder), str(PARALLELISM), str(RECORDS_A_SECOND))
        log = self.folder / "driver.log"
        self._drivers.append(self._network.start(self.host, log, *compiled().command, *arguments))

    def acknowledged(self) -> int:
        numbers = [int(path.parent.name[4:]) for path in self.folder.glob("checkpoints/*/chk-*/_metadata")]
        return max([self.batches, *numbers])

    def die(self, moment: str) -> None:
        """Kill the job, which does not tell its moments."""
        self.kill_driver()

    def tasks(self) -> list[psutil.Process]:
        """Return nothing: its tasks are threads."""
        return []

    def kill_worker(self, host: str) -> None:
        self.kill_driver()

    def recover(self) -> None:
        """Do nothing: the job has stopped with a savepoint."""

    def write_stacks(self) -> None:
        for driver in self._drivers:
            driver.send_signal(signal.SIGQUIT)


KIND = Kind({}, makes_copies=False, run_by=FlinkQuery, longest_step_s=60)


def compared(query: Query) -> dict[str, Any]:
    """Compare what each reader saw with ranges without gaps. Numbers that are missing at the end of a range are not
    found."""
    found = {
        library: difference_from_ranges(each.record.number for each in sightings(query.seen_by(library)))
        for library in READERS
    }
    return {"checkpoints": query.batches, "starts": query.starts, "ends": dict(query.ends), "readers": found}


def difference_from_ranges(numbers: Iterable[int]) -> dict[str, int]:
    """Return how many numbers there are, how many are missing in their ranges, and how many are there again."""
    seen = Counter(numbers)
    ranges: dict[int, list[int]] = defaultdict(list)
    for number in seen:
        ranges[number // A_RANGE].append(number)
    expected = sum(max(found) - number * A_RANGE + 1 for number, found in ranges.items())
    return {"records": len(seen), "lost": expected - len(seen), "duplicates": seen.total() - len(seen)}
