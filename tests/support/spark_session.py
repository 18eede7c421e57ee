"""Spark for drivers of tests and campaigns: a session that starts fast, and a query that reads its source to the
end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a short-lived JVM."""


def session(
    master: str = "local[2]",
    settings: Mapping[str, str] | None = None,
    *,
    jars: str = "",
    java: str = "",
    log_level: str = "ERROR",
) -> SparkSession:
    """Start Spark, or return the existing session.

    Args:
        settings: settings of the session, which add to or replace the defaults.
        jars: a class path for the driver and the executors. Unlike ``spark.jars``, it is not copied at each executor's
            start.
        java: further options for every JVM.
        log_level: the log level; empty for Spark's default.
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
    """Return the settings with which ``session`` starts Spark, from the same arguments."""
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
    """Run a query, batch by batch, until it has written its whole source."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
