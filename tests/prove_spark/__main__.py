"""``make prove-spark``: Spark is killed at every step, in every way that it writes; see ``docs/spark.md``."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from tests.prove_spark.case import Bench, feed_folder
from tests.prove_spark.contents import Contents, in_batch
from tests.prove_spark.plans import PLANS
from tests.prove_spark.ways import WAYS
from tests.storm.query import end_jvm
from twopc_kafka.development import KafkaBroker, spark_kafka_jars

console = Console()


def prove(way: str, bench: Bench, progress: Progress) -> dict[str, Any]:
    """Run all cases of a way, and report."""
    started = time.monotonic()
    cases = WAYS[way]
    bar = progress.add_task(way, total=sum(len(case.strikes) + 1 for case in cases), found="")
    outcomes = [bench.run(case, lambda: progress.update(bar, advance=1)) for case in cases]
    told = [what for outcome in outcomes for what in outcome.told]
    progress.update(bar, found=f"{len(told)} failures" if told else "")
    lost, duplicates = sum(o.lost for o in outcomes), sum(o.duplicates for o in outcomes)
    return {
        "kills": sum(outcome.kills for outcome in outcomes),
        "lost": lost,
        "duplicates": duplicates,
        "equal_to_batch": lost == duplicates == 0,
        "leftovers": sum(outcome.leftovers for outcome in outcomes),
        "told": told,
        "spark": outcomes[0].spark,
        "python": outcomes[0].python,
        "seconds": round(time.monotonic() - started, 1),
    }


def expected(folder: Path, jars: str) -> dict[str, Contents]:
    """What each plan gives in batch over the whole input. Leaves an archive of the classes that this has loaded."""
    feed_folder(folder / "records")
    archive = f"-Xlog:disable -XX:ArchiveClassesAtExit={folder / 'classes.jsa'}"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraClassPath", jars)
        .config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {archive}")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    try:
        return {name: in_batch(spark, name, str(folder / "records")) for name in PLANS}
    finally:
        spark.stop()
        end_jvm()


def main() -> int:
    """The exit code: 1 if anything is wrong."""
    given = parsed_arguments()
    folder = given.folder.resolve()
    shutil.rmtree(folder / "work", ignore_errors=True)
    (folder / "work").mkdir(parents=True)
    report: dict[str, Any] = {}
    columns = (*Progress.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[found]}"))
    with KafkaBroker(folder / "work" / "broker") as broker, Progress(*columns, console=console) as progress:
        jars = ":".join(map(str, spark_kafka_jars(pyspark.__version__)))
        bench = Bench(folder / "work", broker, sys.executable, jars, expected(folder / "work", jars))
        with ThreadPoolExecutor(given.processes) as pool:
            for way, found in zip(
                given.ways, pool.map(lambda way: prove(way, bench, progress), given.ways), strict=True
            ):
                report[way] = found
                (folder / "report.json").write_text(json.dumps(report, indent=1))
    console.print_json(data=report)
    return 1 if any(of_way["told"] for of_way in report.values()) else 0


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove_spark", description=__doc__)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--processes", type=int, default=2, help="ways at a time")
    parser.add_argument("--folder", type=Path, default=Path("build/spark"), help="where to work, and the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
