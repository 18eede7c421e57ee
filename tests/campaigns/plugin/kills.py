"""Kafka, PostgreSQL and files in one decision. The driver is killed at every step, PostgreSQL at every other."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import psycopg

from tests.support.contents import Difference, difference, in_files, in_table, in_topic, left_in_files
from tests.support.loop import Job
from tests.support.postgres_server import PostgresServer
from twopc_kafka_broker import KafkaBroker

PARTITIONS, RECORDS = 3, 5
SINKS = ("files", "kafka", "postgres")

STEPS = (
    *(f"vote {n}" for n in range(1, PARTITIONS + 1)),
    *("sealing", "deciding", "committing"),
    *(f"commit {n}" for n in range(1, PARTITIONS * len(SINKS) + 1)),
    "sweeping",
)
"""See ``Job.kill_at``."""


def prove(folder: Path) -> dict[str, int]:
    """Kill the driver once at each step, each time in another batch. Also kill the server at every other step.

    Returns:
        ``lost`` and ``duplicates`` in all target systems together; ``leftovers``: pending files and prepared
        transactions.
    """
    topic, table = "orders", "orders"
    kills = 0
    with KafkaBroker(folder / "broker") as broker, PostgresServer(max_prepared_transactions=20) as server:
        broker.create_topic(topic, partitions=2)
        with psycopg.connect(server.conninfo) as connection:
            connection.execute("CREATE TABLE orders (value text)")
        options = {
            "kafka": {"bootstrap.servers": broker.bootstrap_servers, "topic": topic},
            "postgres": {"conninfo": server.conninfo, "table": table},
            "files": {"path": str(folder / "files")},
        }
        sinks = {name: (name, options[name]) for name in SINKS}
        job = Job(str(folder), sinks, partitions=PARTITIONS, records=RECORDS)
        for number, step in enumerate((*STEPS, "")):
            replace(job, batches=number + 1, kill_in=number, kill_at=step).run()
            if step:
                kills += 1
            if step and number % 2:
                server.kill()
                server.start()
                kills += 1
        prepared = in_table(server.conninfo, "SELECT gid FROM pg_prepared_xacts")
        targets = (
            [value for (value,) in in_table(server.conninfo, "SELECT value FROM orders")],
            in_topic(broker.bootstrap_servers, topic),
            [row["value"] for row in in_files(folder / "files")],
        )
    expected = job.all_values(len(STEPS) + 1)
    found = sum((difference(expected, values) for values in targets), Difference())
    return {
        "kills": kills,
        "lost": found.lost,
        "duplicates": found.duplicates,
        "leftovers": len(prepared) + len(left_in_files(folder / "files")),
    }


if __name__ == "__main__":
    print(json.dumps(prove(Path(sys.argv[1]))))  # the result for the parent process
