"""Staging tables under kills: the driver at every step of a batch, and the database's server after every other one.

``python -m tests.campaigns.plugin.sql_kills FOLDER [--rounds N]`` runs on each database, with appends and with upserts
and deletes, and prints the result as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

from tests.support.contents import difference
from tests.support.loop import Job
from tests.support.sql_databases import TYPES, Databases, ask, staged

PARTITIONS, RECORDS, KEYS = 3, 5, 12

STEPS = (
    *(f"vote {n}" for n in range(1, PARTITIONS + 1)),
    *("sealing", "deciding", "committing", "commit 1", "sweeping"),
)
"""See ``Job.kill_at``. A batch is committed at once."""


def prove(folder: Path, databases: Databases, database: str, is_keyed: bool, rounds: int) -> dict[str, int]:
    """Kill the driver at each step, each time in another batch, and the server after every other one.

    Returns:
        The numbers of kills, of records lost and doubled, and of records and transactions that are left.
    """
    folder.mkdir(parents=True)
    url = databases.url(database, folder)
    key = "`key`" if database == "mysql" else "key"
    ask(
        url,
        f"CREATE TABLE orders (value {{key}}, {key} {{key}} PRIMARY KEY)"
        if is_keyed
        else "CREATE TABLE orders (value {key})",
    )
    options = {"url": url.render_as_string(hide_password=False), "table": "orders"}
    options |= {"upsert_by": "key"} if is_keyed else {}
    job = Job(str(folder), {"orders": ("sql", options)}, partitions=PARTITIONS, records=RECORDS)
    job = replace(job, keys=KEYS if is_keyed else 0)
    steps, kills = [*STEPS * rounds, ""], 0
    for number, step in enumerate(steps):
        replace(job, batches=number + 1, kill_in=number, kill_at=step).run()
        kills += bool(step)
        if step and number % 2 and databases.has_server(database):
            databases.kill_and_start(database)
            kills += 1
    found = ask(url, f"SELECT {key}, value FROM orders" if is_keyed else "SELECT value FROM orders")  # noqa: S608
    of_records = difference(replace(job, batches=len(steps)).rows(), found)
    [(transactions,)] = ask(url, "SELECT count(*) FROM twopc_transactions")
    return {"kills": kills, **asdict(of_records), "leftovers": staged(url) + int(str(transactions))}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=2, help="how often the driver is killed at each step")
    given = parser.parse_args(arguments)
    results = {}
    with Databases(own=True) as databases:
        for database in TYPES:
            for is_keyed in (False, True):
                name = f"{database}-{'upsert' if is_keyed else 'append'}"
                results[name] = prove(given.folder / name, databases, database, is_keyed, given.rounds)
    total = sum(map(Counter[str], results.values()), Counter({"kills": 0}))
    print(json.dumps({**{of: total[of] for of in ("kills", "lost", "duplicates", "leftovers")}, "runs": results}))


if __name__ == "__main__":
    main(sys.argv[1:])
