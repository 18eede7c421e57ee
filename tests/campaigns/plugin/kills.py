"""Loops whose driver is killed at every step of a batch, and whose servers are killed, too, by target systems.

``python -m tests.campaigns.plugin.kills NAME FOLDER`` prints the result as JSON; ``--help`` lists the arguments. Each
result has ``kills``; ``lost`` and ``duplicates`` in all target systems together; and ``leftovers``: pending files, and
transactions that are open or prepared when the loop is done.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import psycopg

from tests.campaigns.killed_loop import (
    each_commit,
    every_other_time,
    killed_at_each,
    open_transactions,
    restarted,
    steps,
)
from tests.campaigns.plugin.service import killed
from tests.support.contents import Difference, difference, in_files, in_table, in_topic, left_in_files
from tests.support.killed_writer import AFTER, BEFORE, killed_writer
from tests.support.kills import ENDS_AFTER_S, start_logged
from tests.support.loop import Job
from tests.support.mariadb_server import VERSION, VERSIONS, MariaDbServer
from tests.support.postgres_server import PostgresServer
from tests.support.pravega_server import PravegaServer
from tests.support.sql_databases import TYPES, Databases, ask, staged
from twopc_kafka_broker import KafkaBroker
from twopc_pravega.options import Stream

Result: TypeAlias = "dict[str, Any]"

PARTITIONS = 3
KEYS = 12

BATCHES_AMID = 40
"""How many batches a driver writes while its server is killed."""

LONGEST_AMID_S = 1.5
"""About how long it takes to start, and to write these batches."""


def together(folder: Path, _: argparse.Namespace) -> Result:
    """Kafka, PostgreSQL and files in one decision. PostgreSQL is killed, too."""
    with KafkaBroker(folder / "broker") as broker, PostgresServer(max_prepared_transactions=20) as server:
        broker.create_topic("orders", partitions=2)
        with psycopg.connect(server.conninfo) as connection:
            connection.execute("CREATE TABLE orders (value text)")
        sinks = {
            "files": ("files", {"path": str(folder / "files")}),
            "kafka": ("kafka", {"bootstrap.servers": broker.bootstrap_servers, "topic": "orders"}),
            "postgres": ("postgres", {"conninfo": server.conninfo, "table": "orders"}),
        }
        job = Job(str(folder), sinks, partitions=PARTITIONS, records=5)
        moments = steps(PARTITIONS, *each_commit(PARTITIONS * len(sinks)))
        kills = killed_at_each(job, moments, every_other_time(server))
        prepared = in_table(server.conninfo, "SELECT gid FROM pg_prepared_xacts")
        targets = (
            [value for (value,) in in_table(server.conninfo, "SELECT value FROM orders")],
            in_topic(broker.bootstrap_servers, "orders"),
            [row["value"] for row in in_files(folder / "files")],
        )
    leftovers = len(prepared) + len(left_in_files(folder / "files"))
    return _result(kills, job.all_values(len(moments) + 1), targets, leftovers)


def _result(
    kills: int, expected: Iterable[Hashable], targets: Iterable[Iterable[Hashable]], leftovers: int
) -> dict[str, int]:
    """Compare the contents of each target system with what was written. Return what each result has."""
    wanted = list(expected)
    of_records = sum((difference(wanted, found) for found in targets), Difference())
    return {"kills": kills, **asdict(of_records), "leftovers": leftovers}


def mysql(folder: Path, given: argparse.Namespace) -> Result:
    """MariaDB with and without a binary log, by appends and by changes. It is killed, too, also amid batches."""
    results = {}
    for binlog in (False, True):
        with MariaDbServer(binlog=binlog, version=given.version) as server:
            for is_keyed in (False, True):
                name = f"{'upsert' if is_keyed else 'append'}, binlog {'on' if binlog else 'off'}"
                of_run = folder / name.replace(", ", "-").replace(" ", "-")
                of_run.mkdir(parents=True)
                results[name] = _mysql(of_run, server, is_keyed, given)
    return {"version": given.version, **_summed(results), "runs": results}


def _mysql(folder: Path, server: MariaDbServer, is_keyed: bool, given: argparse.Namespace) -> dict[str, int]:
    _ask(server, "DROP DATABASE IF EXISTS lake")
    _ask(server, "CREATE DATABASE lake CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    key = "`key` VARCHAR(50) PRIMARY KEY" if is_keyed else "KEY (value)"
    _ask(server, f"CREATE TABLE lake.orders (value VARCHAR(50) NOT NULL, {key}) ENGINE=InnoDB")
    job = _of_table(folder, "mysql", server.url("lake"), is_keyed)
    moments = steps(PARTITIONS, *each_commit(PARTITIONS)) * given.rounds
    kills = killed_at_each(job, moments, every_other_time(server))
    batches, chance = len(moments) + 1, random.Random(given.seed)  # noqa: S311  # a seed must reproduce a run
    for _ in range(given.amid):
        batches += BATCHES_AMID
        moment_s = chance.uniform(0.3, LONGEST_AMID_S)
        _killed_amid(replace(job, batches=batches, runs_again=True), server, folder / "driver.log", moment_s)
    found = _ask(server, "SELECT `key`, value FROM lake.orders" if is_keyed else "SELECT value FROM lake.orders")
    left = len(_ask(server, "XA RECOVER"))
    return {"batches": batches, **_result(kills + given.amid, replace(job, batches=batches).rows(), [found], left)}


def _killed_amid(job: Job, server: MariaDbServer, log: Path, moment_s: float) -> None:
    """Kill the server while the loop runs. Then run the loop to its end: it may have given up its round."""
    driver = start_logged(log, "-m", "tests.support.loop", json.dumps(asdict(job)))
    time.sleep(moment_s)
    restarted(server)
    driver.wait(ENDS_AFTER_S)
    if driver.returncode:
        job.run()


def _ask(server: MariaDbServer, statement: str) -> list[tuple[str, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def sql(folder: Path, given: argparse.Namespace) -> Result:
    """Staging tables on each database, by appends and by changes. The database's server is killed, too."""
    results = {}
    with Databases(own=True) as databases:
        for database in TYPES:
            for is_keyed in (False, True):
                name = f"{database}-{'upsert' if is_keyed else 'append'}"
                results[name] = _sql(folder / name, databases, database, is_keyed, given.rounds)
    return {**_summed(results), "runs": results}


def _sql(folder: Path, databases: Databases, database: str, is_keyed: bool, rounds: int) -> dict[str, int]:
    folder.mkdir(parents=True)
    url = databases.url(database, folder)
    key = "`key`" if database == "mysql" else "key"
    ask(url, f"CREATE TABLE orders (value {{key}}{f', {key} {{key}} PRIMARY KEY' if is_keyed else ''})")

    job = _of_table(folder, "sql", url.render_as_string(hide_password=False), is_keyed)
    moments = steps(PARTITIONS, "commit 1") * rounds  # a batch is committed at once
    kills = killed_at_each(job, moments, every_other_time(*databases.servers(database)))
    found = ask(url, f"SELECT {key}, value FROM orders" if is_keyed else "SELECT value FROM orders")  # noqa: S608
    [(transactions,)] = ask(url, "SELECT count(*) FROM twopc_transactions")
    rows = replace(job, batches=len(moments) + 1).rows()
    return _result(kills, rows, [found], staged(url) + int(str(transactions)))


def _of_table(folder: Path, backend: str, url: str, is_keyed: bool) -> Job:
    options = {"url": url, "table": "orders", **({"upsert_by": "key"} if is_keyed else {})}
    keys = KEYS if is_keyed else 0
    return Job(str(folder), {"orders": (backend, options)}, partitions=PARTITIONS, records=5, keys=keys)


def _summed(results: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    total = sum(map(Counter[str], results.values()), Counter[str]())
    return {of: total[of] for of in next(iter(results.values()))}


def pravega(folder: Path, given: argparse.Namespace) -> Result:
    """Pravega and files in one decision. The controller, the segment store or both are killed now and then, and so are
    writers of other queries."""
    started = time.monotonic()
    of_round = steps(PARTITIONS, *each_commit(2 * PARTITIONS))
    moments = of_round * given.rounds
    every = max(1, len(moments) // given.cluster_kills) if given.cluster_kills else 0
    killed = Counter[str](writer=0, cluster=0)
    with PravegaServer() as server:
        stream = Stream("campaign", "orders")
        server.admin.create_scope(stream.scope)
        server.admin.create_stream(stream, segments=2)
        options = {**server.options, "stream": str(stream)}
        sinks = {"orders": ("pravega", options), "files": ("files", {"path": str(folder / "files")})}
        folder.mkdir(parents=True, exist_ok=True)

        def strike(number: int) -> int:
            before = killed.total()
            if number % len(of_round) == 0:
                for when in (BEFORE, AFTER):  # a writer of another query, which no coordinator settles
                    killed_writer("pravega", options, when, "killed-writer")
                    killed["writer"] += 1
            if every and number % every == 0:
                (server.kill, server.store.kill, server.controller.kill)[killed["cluster"] % 3]()
                killed["cluster"] += 1
                server.start()
            if number % len(of_round) == 5:
                server.admin.scale(stream, 2 + number % 3)
            return killed.total() - before

        job = Job(str(folder), sinks, partitions=PARTITIONS, records=20)
        kills = killed_at_each(job, moments, strike)
        left = open_transactions(folder / "log", {"orders": sinks["orders"]})
        targets = (
            [event.decode() for events in server.admin.events(stream).values() for event in events],
            [row["value"] for row in in_files(folder / "files")],
        )
    expected = job.all_values(len(moments) + 1)
    leftovers = left + len(left_in_files(folder / "files"))
    return {
        **_result(kills, expected, targets, leftovers),
        "driver_kills": len(moments),
        "writer_kills": killed["writer"],
        "cluster_kills": killed["cluster"],
        "records": len(expected),
        "seconds": round(time.monotonic() - started),
    }


def service(folder: Path, given: argparse.Namespace) -> Result:
    """``docs/without-spark.md``'s service with tokens, Avro and Glue."""
    started = time.monotonic()
    return {**killed(folder, given.rounds, given.seed), "seconds": round(time.monotonic() - started)}


CASES: Mapping[str, tuple[Callable[[Path, argparse.Namespace], Result], int]] = {
    "together": (together, 1),
    "mysql": (mysql, 2),
    "pravega": (pravega, 6),
    "service": (service, 20),
    "sql": (sql, 2),
}
"""Name → what proves it, and how often it is killed if no argument says so: at each step, ``service`` in all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CASES)
    parser.add_argument("folder", type=Path, help="an empty folder, for logs, files and positions")
    parser.add_argument("--rounds", type=int, help="how often the driver is killed at each step, the service in all")
    parser.add_argument("--amid", type=int, default=5, help="mysql: how often the server is killed amid a batch")
    parser.add_argument("--seed", type=int, default=1, help="mysql, service: selects moments")
    parser.add_argument("--version", choices=VERSIONS, default=VERSION, help="of MariaDB")
    parser.add_argument("--cluster-kills", type=int, default=24, help="pravega: about how often servers are killed")
    given = parser.parse_args()
    prove, rounds = CASES[given.name]
    given.rounds = given.rounds or rounds
    print(json.dumps(prove(given.folder, given)))  # the result for the parent process


if __name__ == "__main__":
    main()
