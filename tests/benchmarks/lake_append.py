"""A table sink compared with the format's own writer in Spark, in an environment that has the fitting Spark.

``python -m tests.benchmarks.lake_append iceberg FOLDER`` prints its result as JSON.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import twopc
from tests.benchmarks.appending import COLUMNS, append_ratios
from tests.benchmarks.lake_tables import create_delta, create_iceberg, delta_rows, iceberg_rows
from tests.support.delta_spark import delta_jars
from tests.support.iceberg_spark import iceberg_jars
from tests.support.spark_home import set_java_and_python

SCHEMA = pa.schema({"id": pa.int64(), "shop": pa.int64(), "price": pa.float64(), "name": pa.string()})


@dataclass(frozen=True)
class Appended:
    """The result: the ratios of the turns, the data files of each contestant, and their bytes."""

    ratios: list[float]
    spark: str
    files: tuple[int, int]
    bytes: tuple[int, int]


@dataclass(frozen=True)
class Format:
    """A table format, with Spark's own writer of it.

    Attributes:
        theirs: the folder of Spark's table, below the benchmark's.
        create: creates our table, and returns the options of its sink.
    """

    jars: Callable[[], Sequence[Path]]
    settings: Callable[[Path], dict[str, str]]
    create: Callable[[Path, pa.Schema], dict[str, str]]
    rows: Callable[[Path], int]
    ours: str
    theirs: str
    create_theirs: Callable[[SparkSession, Path], object]
    append: Callable[[DataFrame, Path], None]
    count: Callable[[SparkSession, Path], int]


def _iceberg_settings(folder: Path) -> dict[str, str]:
    catalog = "spark.sql.catalog.lake"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(folder / "theirs"),
    }


def _iceberg_count(spark: SparkSession) -> int:
    spark.sql("REFRESH TABLE lake.db.rows")  # the query's session wrote it, and this one keeps tables for 30 s
    return int(spark.table("lake.db.rows").count())


FORMATS = {
    "iceberg": Format(
        jars=iceberg_jars,
        settings=_iceberg_settings,
        create=create_iceberg,
        rows=iceberg_rows,
        ours="iceberg",
        theirs="theirs/db/rows/data",
        create_theirs=lambda spark, _: spark.sql(
            f"CREATE TABLE lake.db.rows ({COLUMNS}) USING iceberg TBLPROPERTIES ('format-version' = '2')"
        ),
        append=lambda frame, _: frame.writeTo("lake.db.rows").append(),
        count=lambda spark, _: _iceberg_count(spark),
    ),
    "delta": Format(
        jars=delta_jars,
        settings=lambda _: {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
        create=create_delta,
        rows=delta_rows,
        ours="delta",
        theirs="theirs",
        create_theirs=lambda spark, folder: spark.sql(f"CREATE TABLE delta.`{folder}/theirs` ({COLUMNS}) USING delta"),
        append=lambda frame, folder: frame.write.format("delta").mode("append").save(f"{folder}/theirs"),
        count=lambda spark, folder: spark.read.format("delta").load(f"{folder}/theirs").count(),
    ),
}


def started(of: Format, folder: Path, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark with a format's runtime, and with ``settings`` in addition."""
    set_java_and_python()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.extraClassPath", os.pathsep.join(map(str, of.jars())))
    for key, value in {
        **of.settings(folder),
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        **(settings or {}),
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def append(name: str, folder: Path, quick: bool) -> Appended:
    """Measure, and make sure that both have written the same number of records and files."""
    from twopc.spark import foreach_batch

    of = FORMATS[name]
    spark = started(of, folder)
    of.create_theirs(spark, folder)
    write = foreach_batch(twopc.create_sink(name, of.create(folder, SCHEMA)), log=f"{folder}/log")
    ratios, records = append_ratios(spark, folder, write, lambda batch: of.append(batch, folder), quick)
    for contestant, found in (("ours", of.rows(folder)), ("Spark's", of.count(spark, folder))):
        assert found == records, f"the table of {contestant} has {found} of {records} records"
    sizes = [[file.stat().st_size for file in _data_files(folder / path)] for path in (of.ours, of.theirs)]
    spark.stop()
    (ours, theirs) = sizes
    return Appended(ratios, spark.version, (len(ours), len(theirs)), (sum(ours), sum(theirs)))


def _data_files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*.parquet") if "_delta_log" not in file.parts]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("format", choices=list(FORMATS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    print(json.dumps(asdict(append(given.format, given.folder, given.quick))))  # noqa: T201  # the result


if __name__ == "__main__":
    main()
