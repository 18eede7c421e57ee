"""MariaDB under kills: the driver at every step of a batch, and the server between steps and amid a batch.

``python -m tests.campaigns.plugin.mysql_kills FOLDER [--rounds N] [--amid N] [--seed N] [--version V]`` runs four
configurations, with and without a binary log, and appends or upserts and deletes, and prints the result as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from tests.support.contents import Difference, difference
from tests.support.kills import ENDS_AFTER_S, start_logged
from tests.support.loop import Job
from tests.support.mariadb_server import VERSION, VERSIONS, MariaDbServer

PARTITIONS, RECORDS, KEYS = 3, 5, 12

STEPS = (
    *(f"vote {n}" for n in range(1, PARTITIONS + 1)),
    *("sealing", "deciding", "committing"),
    *(f"commit {n}" for n in range(1, PARTITIONS + 1)),
    "sweeping",
)
"""See ``Job.kill_at``."""

BATCHES_AMID = 40
"""How many batches a driver writes while its server is killed."""

LONGEST_AMID_S = 1.5
"""About how long it takes to start, and to write these batches."""


def prove(folder: Path, server: MariaDbServer, is_keyed: bool, rounds: int, amid: int, seed: int) -> dict[str, int]:
    """Kill the driver at each step, each time in another batch, and the server after every other one. Then kill the
    server ``amid`` times at moments by chance, while a driver writes.

    Returns:
        The numbers of kills, of records lost and doubled, and of transactions that are still prepared.
    """
    ask(server, "DROP DATABASE IF EXISTS lake")
    ask(server, "CREATE DATABASE lake CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    key = "`key` VARCHAR(50) PRIMARY KEY" if is_keyed else "KEY (value)"
    ask(server, f"CREATE TABLE lake.orders (value VARCHAR(50) NOT NULL, {key}) ENGINE=InnoDB")
    options = {"url": server.url("lake"), "table": "orders", **({"upsert_by": "key"} if is_keyed else {})}
    job = Job(str(folder), {"orders": ("mysql", options)}, partitions=PARTITIONS, records=RECORDS)
    job = replace(job, keys=KEYS if is_keyed else 0)
    kills = batches = 0
    for number, step in enumerate((*STEPS * rounds, "")):
        batches = number + 1
        replace(job, batches=batches, kill_in=number, kill_at=step).run()
        kills += bool(step)
        if step and number % 2:
            restarted(server)
            kills += 1
    for moment in moments(amid, seed):
        batches += BATCHES_AMID
        kills += 1
        killed_amid(replace(job, batches=batches, runs_again=True), server, folder / "driver.log", moment)
    found = ask(server, "SELECT `key`, value FROM lake.orders" if is_keyed else "SELECT value FROM lake.orders")
    of_records = difference(replace(job, batches=batches).rows(), found)
    left = len(ask(server, "XA RECOVER"))
    return {"kills": kills, "batches": batches, **asdict(of_records), "leftovers": left}


def moments(count: int, seed: int) -> Iterator[float]:
    chance = random.Random(seed)  # noqa: S311  # a seed must reproduce a run
    return (chance.uniform(0.3, LONGEST_AMID_S) for _ in range(count))


def killed_amid(job: Job, server: MariaDbServer, log: Path, moment_s: float) -> None:
    """Kill the server while the loop runs. Then run the loop to its end: it may have given up its round."""
    driver = start_logged(log, "-m", "tests.support.loop", json.dumps(asdict(job)))
    time.sleep(moment_s)
    restarted(server)
    driver.wait(ENDS_AFTER_S)
    if driver.returncode:
        job.run()


def restarted(server: MariaDbServer) -> None:
    server.kill()
    server.start()


def ask(server: MariaDbServer, statement: str) -> list[tuple[str, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=2, help="how often the driver is killed at each step")
    parser.add_argument("--amid", type=int, default=5, help="how often the server is killed amid a batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--version", choices=VERSIONS, default=VERSION)
    given = parser.parse_args(arguments)
    results = {}
    for binlog in (False, True):
        with MariaDbServer(binlog=binlog, version=given.version) as server:
            for is_keyed in (False, True):
                name = f"{'upsert' if is_keyed else 'append'}, binlog {'on' if binlog else 'off'}"
                folder = given.folder / name.replace(", ", "-").replace(" ", "-")
                folder.mkdir(parents=True)
                results[name] = prove(folder, server, is_keyed, given.rounds, given.amid, given.seed)
    every = Difference(*(sum(each[of] for each in results.values()) for of in ("lost", "duplicates")))
    total = {of: sum(each[of] for each in results.values()) for of in ("kills", "batches", "leftovers")}
    print(json.dumps({"version": given.version, **total, **asdict(every), "runs": results}))


if __name__ == "__main__":
    main(sys.argv[1:])
