"""Kafka, PostgreSQL and files in one decision, whose driver is killed at every step, and PostgreSQL with it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq

from tests.campaigns.plugin.loop import STEPS, values
from tests.support.postgres_server import PostgresServer
from tests.support.topic_reader import records_of
from twopc_kafka_broker import KafkaBroker


def prove(folder: Path) -> dict[str, int]:
    """Kill at each step once, each in a batch of its own, with the server as well in every other. ``lost`` and
    ``duplicates`` are those of all targets together, ``leftovers`` what is staged or prepared still."""
    topic, table = "orders", "orders"
    kills = 0
    with KafkaBroker(folder / "broker") as broker, PostgresServer(max_prepared_transactions=20) as server:
        broker.create_topic(topic, partitions=2)
        with psycopg.connect(server.conninfo) as connection:
            connection.execute("CREATE TABLE orders (value text)")
        sinks = {
            "kafka": {"bootstrap.servers": broker.bootstrap_servers, "topic": topic},
            "postgres": {"conninfo": server.conninfo, "table": table},
            "files": {"path": str(folder / "files")},
        }
        for number, step in enumerate((*STEPS, None)):
            job = {"folder": str(folder), "sinks": sinks, "batches": number + 1, "kill": step}
            _run(job, -signal.SIGKILL if step else 0)
            if step:
                kills += 1
            if step and number % 2:
                server.kill()
                server.start()
                kills += 1
        expected = Counter(value for batch_id in range(len(STEPS) + 1) for value in values(batch_id))
        with psycopg.connect(server.conninfo) as connection:
            rows = [value for (value,) in connection.execute("SELECT value FROM orders")]
            [(prepared,)] = connection.execute("SELECT count(*) FROM pg_prepared_xacts").fetchall()
        records = records_of(broker.bootstrap_servers, topic, "read_committed")
        files = [pq.read_table(file) for file in (folder / "files").glob("*.parquet")]
        found = [
            Counter(rows),
            Counter(record.value.decode() for record in records),
            Counter(value for file in files for value in file["value"].to_pylist()),
        ]
    return {
        "postgres_kills": kills,
        "lost": sum((expected - of_target).total() for of_target in found),
        "duplicates": sum((of_target - expected).total() for of_target in found),
        "leftovers": prepared + len(list((folder / "files" / "_twopc").iterdir())),
    }


def _run(job: dict[str, Any], ends_with: int) -> None:
    command = [sys.executable, "-m", "tests.campaigns.plugin.loop", json.dumps(job)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode != ends_with:
        raise RuntimeError(f"the loop ended with {ended.returncode} at {job['kill']!r}:\n{ended.stderr}")


if __name__ == "__main__":
    print(json.dumps(prove(Path(sys.argv[1]))))  # its answer to the process that runs it
