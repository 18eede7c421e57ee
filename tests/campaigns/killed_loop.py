"""A loop without Spark whose driver is killed at each step of a batch, each time in another batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.loop import Job
from twopc.log.commit_log import read_tail
from twopc.log.store import open_store
from twopc.plugins import create_sink
from twopc.retry import until_answered


def steps(partitions: int, *commits: str) -> tuple[str, ...]:
    """Return every step of a batch, see ``Job.kill_at``. ``commits`` are those between two commits."""
    votes = (f"vote {number}" for number in range(1, partitions + 1))
    return (*votes, "sealing", "deciding", "committing", *commits, "sweeping")


def each_commit(count: int) -> tuple[str, ...]:
    """Return the steps of as many commits, one after the other."""
    return tuple(f"commit {number}" for number in range(1, count + 1))


def killed_at_each(job: Job, moments: Sequence[str], strike: Callable[[int], int]) -> int:
    """Kill the driver at each moment, then run the loop to its end: there is one batch more than there are moments.

    Args:
        strike: called when a driver was killed, with the number of its batch; it returns how many it has killed.

    Returns:
        The number of kills.
    """
    kills = 0
    for number, moment in enumerate(moments):
        replace(job, batches=number + 1, kill_in=number, kill_at=moment).run()
        kills += 1 + strike(number)
    replace(job, batches=len(moments) + 1).run()
    return kills


def open_transactions(log: Path, sinks: Mapping[str, tuple[str, Mapping[str, Any]]]) -> int:
    """Return how many transactions of a loop that has ended are open. ``sinks``: see ``Job``."""
    tail = read_tail(open_store(log))
    assert tail is not None
    left = 0
    for name, (backend, options) in sinks.items():
        sink = create_sink(backend, options)
        sink.bind(name, tail[1].log_id)
        until_answered("the campaign", sink.open)
        left += len(until_answered("the campaign", lambda sink=sink: [*sink.recover()]))
        sink.close()
    return left


def every_other_time(*servers: Any) -> Callable[[int], int]:
    """Return a strike that kills these servers after every other kill of the driver, and starts them again."""

    def strike(number: int) -> int:
        if not number % 2:
            return 0
        for server in servers:
            restarted(server)
        return len(servers)

    return strike


def restarted(server: Any) -> None:
    """Kill a server, and start it again."""
    server.kill()
    server.start()
