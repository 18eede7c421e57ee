"""PostgreSQL → Debezium → Kafka → Spark → Iceberg, Delta and PostgreSQL, while the driver is killed six times.

``make demo-cdc`` runs it. Several writers change a bank's accounts and transfers; twopc applies the changes to three
copies in one decision. It exits with 1 unless every reader finds exactly the source's rows in every copy.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
from bank import TABLES, Server, Writers, writing
from capture import PREFIX, TOPICS, Capture, debezium_jars
from cdc_query import MOMENTS, CdcSettings
from cdc_report import CdcReport, Difference
from copies import create_copies, read_copies
from drivers import Drivers, Kill, at_random, exit_with, read_events, recovered
from psycopg.conninfo import make_conninfo
from rich.console import Console
from source import progress_bar, starting_broker

from tests.support.postgres_server import PostgresServer
from twopc_kafka_broker import spark_kafka_jars

KILLS = 2 + len(MOMENTS)
CAPTURED_WITHIN_S = 300

console = Console()


def main() -> int:
    """Run the demonstration. Return the exit code."""
    given = parsed_arguments()
    started = time.monotonic()
    folder = Path(given.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        progress = stack.enter_context(progress_bar(console))
        task = progress.add_task("fetching Debezium", total=None)

        def show(what: str) -> int:
            """Show the current step and how many batches are written. Return the size of the recorded events."""
            events = folder / "events.jsonl"
            text = events.read_text(encoding="utf-8") if events.exists() else ""
            progress.update(task, description=what, completed=text.count('"BatchFinished"'))
            return len(text)

        debezium_jars()
        broker = stack.enter_context(starting_broker(progress, *TOPICS.values(), f"{PREFIX}.message"))
        show("starting two PostgreSQL servers")
        source = stack.enter_context(Server())
        mirror = stack.enter_context(PostgresServer(max_prepared_transactions=20))
        os.environ["PGPASSWORD"] = mirror.password  # not an argument: every user may list those
        settings = CdcSettings(
            servers=broker.bootstrap_servers,
            jars=",".join(map(str, spark_kafka_jars("4.2.0"))),
            folder=str(folder),
            records_per_batch=max(100, given.transactions // 4),
            mirror=make_conninfo(mirror.conninfo, password=None),
        )
        create_copies(settings)
        writers = stack.enter_context(writing(source, given.accounts, given.writers))
        show("starting Kafka Connect with Debezium")
        capture = stack.enter_context(Capture(settings.servers, source, folder / "connect"))
        share = given.transactions // (KILLS + 1)
        chance = random.Random(given.seed)  # noqa: S311  # it chooses when to kill
        drivers = Drivers(str(Path(__file__).with_name("cdc_query.py")), settings, show)
        killed = drivers.kill(moments(settings, writers, share, chance), KILLS)
        writers.write(share)
        show("waiting until all changes are captured")
        wait_until(capture, writers.end_of_work())
        drivers.finish(KILLS + 1)
        show("reading and comparing every row of every copy")
        source_rows = {table: source.rows(f"TABLE {table}") for table in TABLES}
        copies = {
            f"{table} in {copy}": Difference.of(source_rows[table], rows) for table, copy, rows in read_copies(settings)
        }
    events = read_events(folder)
    report = CdcReport(
        rows=sum(map(len, source_rows.values())),
        copies=copies,
        killed=killed,
        recovered_commits=recovered(events, "TransactionCommitted"),
        recovered_aborts=recovered(events, "TransactionAborted"),
        seconds=time.monotonic() - started,
    )
    report.write(folder / "report.json")
    report.show(console)
    console.print(f"written to {folder / 'report.json'}")
    return 0 if report.is_exact else 1


def moments(settings: CdcSettings, writers: Writers, share: int, chance: random.Random) -> Iterator[Kill]:
    """Yield the moments at which drivers are killed. The writers write a share of the transactions during each."""
    kills: list[Callable[[], Kill]] = [
        lambda: while_tasks_write(settings),
        *((lambda moment=moment: (moment, None)) for moment in MOMENTS),
        lambda: at_random(settings, chance),
    ]
    for kill in kills:
        writers.write(share)
        yield kill()


def while_tasks_write(settings: CdcSettings) -> Kill:
    """Return a kill when the first task has prepared its rows in PostgreSQL."""

    def tasks_write() -> bool:
        with psycopg.connect(settings.mirror) as connection:
            return connection.execute("SELECT FROM pg_prepared_xacts").fetchone() is not None

    return "while tasks write", tasks_write


def wait_until(capture: Capture, place: str) -> None:
    """Wait until everything before a position in the source's log is in Kafka."""
    deadline = time.monotonic() + CAPTURED_WITHIN_S
    while not capture.has_passed(place):
        if not capture.is_running or time.monotonic() > deadline:
            raise SystemExit(f"Debezium has not captured all changes; see {capture.log}")
        time.sleep(0.2)


def parsed_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="A change stream to three copies, exactly once, through kills.")
    parser.add_argument("--accounts", type=int, default=500, help="accounts at the beginning (default: 500)")
    parser.add_argument("--transactions", type=int, default=2000, help="transactions of the writers (default: 2000)")
    parser.add_argument("--writers", type=int, default=4, help="how many write at the same time (default: 4)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the random kill of another run")
    parser.add_argument("--folder", default="build/demo-cdc", help="where to work; emptied first")
    return parser.parse_args()


if __name__ == "__main__":
    exit_with(main)
