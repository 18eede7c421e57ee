"""Reads tables with Spark and the runtimes of Iceberg and Delta: ``spark_reader.py PLACES FOLDER``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa

from tests.support.iceberg_spark import iceberg_jars
from tests.support.spark_home import set_java_and_python
from tests.support.spark_session import session
from twopc_kafka_broker.jars import maven_jars


def main() -> None:
    """Write each table to the folder as an Arrow file."""
    set_java_and_python()
    of_delta = maven_jars("delta-spark-4.1-4.4.0", "io.delta:delta-spark_4.1_2.13:4.4.0")
    jars = [*iceberg_jars(), *(jar for jar in of_delta if jar.name.startswith("delta-"))]
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    spark = session(settings=settings, jars=os.pathsep.join(map(str, jars)))
    for name, (kind, place) in json.loads(sys.argv[1]).items():
        found = spark.read.format(kind).load(place).toArrow()
        with (
            pa.OSFile(str(Path(sys.argv[2], f"{name}.arrow")), "wb") as file,
            pa.ipc.new_file(file, found.schema) as to,
        ):
            to.write_table(found)
    spark.stop()


if __name__ == "__main__":
    main()
