"""Spark for drivers of tests and campaigns: a session that starts soon, and a query over all that its source has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that lives for seconds."""


def session(
    master: str = "local[2]",
    settings: Mapping[str, str] | None = None,
    *,
    jars: str = "",
    java: str = "",
    log_level: str = "ERROR",
) -> SparkSession:
    """Start Spark, or return the session that there is.

    Args:
        settings: of the session, in addition or instead.
        jars: a class path for driver and executors. Not ``spark.jars``, which each executor copies at its start.
        java: options of every JVM, in addition.
        log_level: empty for Spark's own.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master)
    for name, value in settings_of(settings or {}, jars=jars, java=java).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if log_level:
        spark.sparkContext.setLogLevel(log_level)
    return spark


def settings_of(settings: Mapping[str, str], *, jars: str = "", java: str = "") -> dict[str, str]:
    """Return the settings with which ``session`` starts Spark. Its arguments mean the same there."""
    quick = f"{QUICK} {java}".rstrip()
    return {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        **{f"spark.{process}.extraJavaOptions": quick for process in ("driver", "executor")},
        **({f"spark.{process}.extraClassPath": jars for process in ("driver", "executor")} if jars else {}),
        **settings,
    }


def write_all(writer: DataStreamWriter, checkpoint: Path | str) -> None:
    """Run a query until it has written all that its source has, batch by batch."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
