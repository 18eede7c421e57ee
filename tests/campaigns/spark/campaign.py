"""``make prove-spark``: kill Spark at every step, in every way that it writes: docs/internals/spark-campaign.md."""

import argparse
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn

from tests.campaigns.report import Report
from tests.campaigns.spark.case import Bench, feed_folder
from tests.campaigns.spark.contents import Contents, in_batch
from tests.campaigns.spark.plans import PLANS
from tests.campaigns.spark.standalone import Standalone
from tests.campaigns.spark.ways import WAYS, Way
from tests.campaigns.storm.query import end_jvm
from tests.support.environments import NotHere, made, own, packed
from tests.support.postgres_server import PostgresServer
from tests.support.progress_lines import ProgressLines
from tests.support.spark_session import session
from twopc_kafka_broker import JarsNotAvailable, KafkaBroker

console = Console()


def prove(way: Way, bench: Bench, started: Callable[[], None]) -> dict[str, Any]:
    """Run all cases of a way. Return the report."""
    began = time.monotonic()
    with ExitStack() as stack:
        if way.on_cluster:
            bench = replace(bench, master=stack.enter_context(Standalone(bench.folder / "cluster")).master)
        outcomes = [bench.run(case, started) for case in way.cases]
    lost, duplicates = sum(o.lost for o in outcomes), sum(o.duplicates for o in outcomes)
    return {
        "kills": sum(outcome.kills for outcome in outcomes),
        "lost": lost,
        "duplicates": duplicates,
        "equal_to_batch": lost == duplicates == 0,
        "leftovers": sum(outcome.leftovers for outcome in outcomes),
        "told": [what for outcome in outcomes for what in outcome.told],
        "spark": outcomes[0].spark,
        "python": outcomes[0].python,
        "seconds": round(time.monotonic() - began, 1),
    }


def expected(folder: Path, jars: str) -> dict[str, Contents]:
    """Compute each plan in batch over the whole input. Also create an archive of the loaded classes."""
    feed_folder(folder / "records")
    archive = f"-Xlog:disable -XX:ArchiveClassesAtExit={folder / 'classes.jsa'}"
    spark = session(jars=jars, java=archive, log_level="")
    try:
        return {name: in_batch(spark, name, str(folder / "records")) for name in PLANS}
    finally:
        spark.stop()
        end_jvm()


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if anything is wrong."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            stop, lambda *_: os._exit(1)
        )  # threads would continue; their child processes end with this process
    given = parsed_arguments(arguments)
    folder = given.folder.resolve()
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (folder / "report.json").unlink(missing_ok=True)
    report, outcomes = Report(given.folder / "report.json"), dict[str, Any]()
    columns = (*ProgressLines.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[found]}"))
    with (
        KafkaBroker(work / "broker") as broker,
        PostgresServer(max_prepared_transactions=20) as postgres,
        ProgressLines(*columns, console=console) as progress,
    ):
        environment = own()
        bench = Bench(work, broker, postgres, expected(work, environment.jars), environment)

        def report_on(name: str) -> None:
            way = WAYS[name]
            bar = progress.add_task(name, total=sum(len(case.starts) + 1 for case in way.cases), found="")
            try:
                used = made(folder / "environments", given.uv, way.spark, way.python) if way.spark else environment
                own_bench = replace(bench, environment=used)
                if way.is_packed:
                    archive = packed(folder / "environments", given.uv, *Path(bench.backends).glob("twopc_faulty*"))
                    own_bench = replace(own_bench, archive=str(archive))
                outcomes[name] = prove(way, own_bench, lambda: progress.advance(bar))
            except (NotHere, JarsNotAvailable) as error:
                outcomes[name] = {"absent": str(error)}
            progress.update(bar, found=", ".join(outcomes[name].get("told", ["absent"])))
            report.write(outcomes)

        with ThreadPoolExecutor(given.processes) as pool:
            list(pool.map(report_on, given.ways))
    report.show()
    failed = [way for way, outcome in outcomes.items() if outcome.get("told")]
    return report.end(f"{len(outcomes)} ways; failed: {', '.join(failed) or 'none'}", failed=bool(failed))


def parsed_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns spark", description=__doc__)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--uv", default="uv", help="the uv that creates the environments of other versions")
    at_once = max(2, (os.cpu_count() or 2) - 1)  # a start runs a JVM and up to six Python processes
    parser.add_argument("--processes", type=int, default=at_once, help="concurrent ways (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("build/spark"), help="folder for work and report")
    return parser.parse_args(arguments)
