"""Every sink with a key in one decision. The driver is killed at each step, and the servers after every other kill."""

import sqlite3
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from tests.campaigns.every_step.campaign import Workers
from tests.campaigns.killed_loop import every_other_time, killed_at_each, steps
from tests.campaigns.tables.lake import tables_in
from tests.campaigns.tables.table import LakeTable, reader
from tests.support.contents import Difference, difference, in_table
from tests.support.keyed_changes import Change
from tests.support.loop import KEYED, Job
from tests.support.mariadb_server import MariaDbServer
from tests.support.postgres_server import PostgresServer
from tests.support.topic_reader import records_of
from twopc_kafka_broker import KafkaBroker

NAME = "every-sink"

PARTITIONS, KEYS = 2, 12
SINKS = ("delta", "iceberg", "kafka", "mysql", "postgres", "sql")

STEPS = steps(PARTITIONS, *(f"commit of {name}" for name in SINKS))


def prove(folder: Path, rounds: int, workers: Workers) -> dict[str, Any]:
    """Kill the driver ``rounds`` times at each step, each time in another batch. Others compact the lake tables now and
    then. Return the report. A row that came back counts as doubled."""
    started = time.monotonic()
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker(folder / "broker"))
        postgres = stack.enter_context(PostgresServer(max_prepared_transactions=20))
        mysql = stack.enter_context(MariaDbServer())
        lake = tables_in(folder, "db.t", upsert_by="key")
        for table in lake.values():
            table.create(KEYED)
        broker.create_topic("t", partitions=2)
        create = "CREATE TABLE t ({key} varchar(9) PRIMARY KEY, value varchar(9) NOT NULL)"
        with closing(sqlite3.connect(folder / "t.db")) as of_sqlite:
            of_sqlite.execute(create.format(key="key"))
        with psycopg.connect(postgres.conninfo) as of_postgres:
            of_postgres.execute(create.format(key="key").encode())
        with mysql.connect() as of_mysql, of_mysql.cursor() as cursor:
            cursor.execute("CREATE DATABASE t COLLATE utf8mb4_bin")
            cursor.execute(create.format(key="`key`").replace("TABLE t", "TABLE t.t"))
        options: Mapping[str, Mapping[str, Any]] = {
            "delta": lake["delta"].options,
            "iceberg": lake["iceberg"].options,
            "kafka": {"bootstrap.servers": broker.bootstrap_servers, "topic": "t", "upsert_by": "key"},
            "mysql": {"url": mysql.url("t"), "table": "t", "upsert_by": "key"},
            "postgres": {"conninfo": postgres.conninfo, "table": "t", "upsert_by": "key"},
            "sql": {"url": f"sqlite:///{folder}/t.db", "table": "t", "upsert_by": "key"},
        }
        job = Job(str(folder), {name: (name, options[name]) for name in SINKS}, partitions=PARTITIONS, keys=KEYS)
        moments = STEPS * rounds
        advance, restart = workers.bar(NAME, len(moments)), every_other_time(postgres, mysql)

        def strike(number: int) -> int:
            advance()
            if number % 3 == 2:
                for table in lake.values():
                    table.compact()
            return restart(number)

        kills = killed_at_each(job, moments, strike)
        job = replace(job, batches=len(moments) + 1)
        sent = [
            row
            for batch_id in range(job.batches)
            for partition in range(PARTITIONS)
            for of in (Change.DELETE, Change.WRITE)
            for row in job.changes(batch_id, of, partition)
        ]
        in_topic = [_decoded(record) for record in records_of(broker.bootstrap_servers, "t")]
        with closing(sqlite3.connect(folder / "t.db")) as of_sqlite:
            in_sqlite = of_sqlite.execute("SELECT key, value FROM t").fetchall()
        with mysql.connect() as of_mysql, of_mysql.cursor() as cursor:
            cursor.execute("SELECT `key`, value FROM t.t")
            in_mysql = [*cursor.fetchall()]
        found = {
            "kafka, every change": difference(sent, in_topic),
            "kafka, the last of each key": difference(job.rows(), _compacted(in_topic)),
            "sql": difference(job.rows(), in_sqlite),
            "mysql": difference(job.rows(), in_mysql),
            "postgres": difference(job.rows(), in_table(postgres.conninfo, "SELECT key, value FROM t")),
            **{name: difference(job.rows(), _in_lake(table)) for name, table in lake.items()},
        }
    total = sum(found.values(), Difference())
    told = [f"{name}: {each}" for name, each in found.items() if each != Difference()]
    return {
        "kills": kills,
        "lost": total.lost,
        "doubled": total.duplicates,
        "failures": len(told),
        "told": told,
        "seconds": round(time.monotonic() - started, 1),
    }


def _decoded(record: Any) -> tuple[str, str | None]:
    return record.key.decode(), None if record.value is None else record.value.decode()


def _compacted(records: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """All records of a key are in one partition, in their order."""
    return [(key, value) for key, value in dict(records).items() if value is not None]


def _in_lake(table: LakeTable) -> list[tuple[Any, ...]]:
    return reader().execute(f"SELECT key, value FROM {table.scan()}").fetchall()  # noqa: S608  # ours
