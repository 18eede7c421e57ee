"""Pravega and files in one decision. The driver is killed at every step, the cluster at every third batch.

``python -m tests.campaigns.plugin.pravega_kills FOLDER [--rounds N] [--cluster-kills N]``
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.contents import Difference, difference, in_files, left_in_files
from tests.support.killed_writer import AFTER, BEFORE, killed_writer
from tests.support.loop import Job
from tests.support.pravega_server import PravegaServer
from twopc.log.commit_log import read_tail
from twopc.log.store import open_store
from twopc.retry import until_answered
from twopc_pravega import PravegaSink
from twopc_pravega.options import Stream

PARTITIONS, RECORDS = 3, 20

STEPS = (
    *(f"vote {n}" for n in range(1, PARTITIONS + 1)),
    *("sealing", "deciding", "committing"),
    *(f"commit {n}" for n in range(1, 2 * PARTITIONS + 1)),
    "sweeping",
)
"""See ``Job.kill_at``."""


def prove(folder: Path, rounds: int, cluster_kills: int) -> dict[str, Any]:
    """Kill the driver once at each step, so many rounds, each time in another batch. At some of these kills, also kill
    the controller, the segment store or both, and start them again. Also kill writers of other queries.

    Returns:
        the kills; ``lost`` and ``duplicates`` in both target systems together; ``leftovers``: pending files, and
        transactions that are open when the query is done.
    """
    started = time.monotonic()
    steps = STEPS * rounds
    every = max(1, len(steps) // cluster_kills) if cluster_kills else 0
    driver, writers, cluster = 0, 0, 0
    with PravegaServer() as server:
        stream = Stream("campaign", "orders")
        server.admin.create_scope(stream.scope)
        server.admin.create_stream(stream, segments=2)
        options = {**server.options, "stream": str(stream)}
        sinks = {"orders": ("pravega", options), "files": ("files", {"path": str(folder / "files")})}
        folder.mkdir(parents=True, exist_ok=True)
        job = Job(str(folder), sinks, partitions=PARTITIONS, records=RECORDS)
        for number, step in enumerate((*steps, "")):
            replace(job, batches=number + 1, kill_in=number, kill_at=step).run()
            driver += bool(step)
            if step and number % len(STEPS) == 0:
                for when in (BEFORE, AFTER):  # a writer of another query, which no coordinator settles
                    killed_writer("pravega", options, when, "killed-writer")
                    writers += 1
            if step and every and number % every == 0:
                (server.kill, server.store.kill, server.controller.kill)[cluster % 3]()
                cluster += 1
                server.start()
            if step and number % len(STEPS) == 5:
                server.admin.scale(stream, 2 + number % 3)
        left = open_transactions(options, folder)
        targets = (
            [event.decode() for events in server.admin.events(stream).values() for event in events],
            [row["value"] for row in in_files(folder / "files")],
        )
    expected = job.all_values(len(steps) + 1)
    found = sum((difference(expected, values) for values in targets), Difference())
    return {
        "kills": driver + writers + cluster,
        "driver_kills": driver,
        "writer_kills": writers,
        "cluster_kills": cluster,
        "records": len(expected),
        "lost": found.lost,
        "duplicates": found.duplicates,
        "leftovers": left + len(left_in_files(folder / "files")),
        "seconds": round(time.monotonic() - started),
    }


def open_transactions(options: dict[str, str], folder: Path) -> int:
    """Return how many transactions of the query are open."""
    tail = read_tail(open_store(folder / "log"))
    assert tail is not None
    sink = PravegaSink(options)
    sink.bind("orders", tail[1].log_id)
    until_answered("the campaign", sink.open)
    return len(until_answered("the campaign", lambda: [*sink.recover()]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder, for the log, the files and the position")
    parser.add_argument("--rounds", type=int, default=6, help="how often the driver is killed at each step")
    parser.add_argument("--cluster-kills", type=int, default=24, help="about how often servers are killed")
    given = parser.parse_args(arguments)
    print(json.dumps(prove(given.folder, given.rounds, given.cluster_kills)))


if __name__ == "__main__":
    main()
