"""What the demonstrations and their drivers share: settings, topics, and a Spark session that starts quickly."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from twopc_kafka.options import ARROW

SOURCE, TARGET, BASELINE = "flights", "enriched", "baseline"
"""The topics that the queries read and write."""


@dataclass(frozen=True)
class Settings:
    """A driver's settings, passed as JSON in its first argument."""

    servers: str
    jars: str
    folder: str
    records_per_batch: int
    writer: str = ARROW
    die_at: str | None = None


def session(settings: Settings) -> SparkSession:
    """Start Spark."""
    return (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.jars", settings.jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # It is killed after seconds, so a quick start matters most.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
