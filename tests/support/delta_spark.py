"""Spark with Delta's own runtime, to write tables for tests and to read the sink's tables."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.spark_session import session
from twopc_kafka_broker.jars import maven_jars

_RUNTIME = "io.delta:delta-spark_4.2_2.13:4.4.0"

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def delta_jars() -> list[Path]:
    """Return the jars of Delta's runtime, without those of which Spark has its own version."""
    return [jar for jar in maven_jars("delta-spark-4.2-4.4.0", _RUNTIME) if jar.name.startswith("delta-")]


def delta_session(warehouse: Path) -> SparkSession:
    """Start Spark with Delta."""
    settings = {
        "spark.sql.extensions": _EXTENSION,
        "spark.sql.catalog.spark_catalog": _CATALOG,
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    return session(settings=settings, jars=os.pathsep.join(map(str, delta_jars())))
