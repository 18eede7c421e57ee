"""The consumer group of a loop's source, which has no records: its offsets count batches. They are decided with the
output and committed after it.

As a process, a reader that finds out whether the offsets are ahead of the output. It reads them, and then counts the
rows of the batch before in PostgreSQL. Kafka is not asked: a leader that was replaced may still answer with an old end
of its partition. A line has a batch and the number of its rows, as soon as the group's offsets are behind that batch.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import confluent_kafka
import psycopg
import pyarrow as pa
from psycopg import sql

from tests.campaigns.jepsen.brokers import SERVERS
from tests.campaigns.jepsen.workload import TASKS, Settings, size

INTERVAL_S = 0.1
ANSWER_TIMEOUT_S = 5.0


def offsets(settings: Settings, batch: int, task: int) -> pa.RecordBatch:
    """Return what a task writes: the end of its partition of the source after a batch."""
    return pa.record_batch(
        {
            "topic": [settings.source],
            "partition": pa.array([task], pa.int32()),
            "offset": pa.array([batch + 1], pa.int64()),
        }
    )


def committed(settings: Settings, isolation_level: str = "read_uncommitted") -> Iterator[list[int]]:
    """Yield the group's offsets again and again, one per partition, 0 if there is none; or nothing if the brokers did
    not answer for ``ANSWER_TIMEOUT_S``.

    Args:
        isolation_level: with ``read_committed``, the brokers do not answer while a transaction with offsets is open.
    """
    group = {
        "bootstrap.servers": SERVERS,
        "group.id": settings.group,
        "log_level": 0,
        "isolation.level": isolation_level,
    }
    consumer = confluent_kafka.Consumer(group)
    partitions = [confluent_kafka.TopicPartition(settings.source, number) for number in range(TASKS)]
    while True:
        try:
            found = consumer.committed(partitions, timeout=ANSWER_TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            print(error, flush=True)
            yield []
        else:
            is_whole = not any(partition.error for partition in found)
            yield [max(partition.offset, 0) for partition in found] if is_whole else []
        time.sleep(INTERVAL_S)


def ahead(lines: Iterable[str], most: int) -> list[str]:
    """Return the batches behind the group's offsets whose rows were not all there."""
    found = (tuple(map(int, line.split())) for line in lines)
    expected = ((batch, rows, sum(size(batch, task, most) for task in range(TASKS))) for batch, rows in found)
    return [f"batch {batch}: {rows} of {all_rows} rows" for batch, rows, all_rows in expected if rows < all_rows]


def _rows(settings: Settings, batch: int) -> int:
    """Count the rows of a batch, as soon as PostgreSQL answers."""
    query = sql.SQL("SELECT count(*) FROM {} WHERE split_part(value, ':', 1) = %s").format(
        sql.Identifier(settings.table)
    )
    while True:
        try:
            with psycopg.connect(settings.conninfo, connect_timeout=2, tcp_user_timeout=5000) as connection:
                [(rows,)] = connection.execute(query, [str(batch)])
                return int(rows)
        except psycopg.OperationalError as error:
            print(error, flush=True)
            time.sleep(INTERVAL_S)


def main() -> None:
    settings, path = Settings(**json.loads(sys.argv[1])), Path(sys.argv[2])
    newest = 0
    for found in committed(settings):
        if max(found, default=0) > newest:
            newest = max(found)
            with path.open("a", encoding="utf-8") as lines:
                lines.write(f"{newest - 1} {_rows(settings, newest - 1)}\n")


if __name__ == "__main__":
    main()
