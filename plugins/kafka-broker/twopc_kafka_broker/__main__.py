"""Prepare the broker and Spark's Kafka source: find or fetch a JDK, download the jars, and report what was done."""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import sys
import time
from pathlib import Path

from twopc_kafka_broker.errors import DevelopmentError, JavaNotFound
from twopc_kafka_broker.jars import broker_classpath, spark_kafka_jars
from twopc_kafka_broker.java import SPARK_MODULES, Java, fetch_java, find_java


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m twopc_kafka_broker", description=__doc__)
    parser.add_argument(
        "--java-home-file",
        type=Path,
        metavar="FILE",
        help="write the path that JAVA_HOME should have to FILE",
    )
    options = parser.parse_args(arguments)
    # Each download logs a line when it begins.
    logging.basicConfig(format="%(message)s ...", stream=sys.stdout)
    logging.getLogger("twopc_kafka_broker").setLevel(logging.INFO)
    try:
        _prepare(options.java_home_file)
    except DevelopmentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _prepare(java_home_file: Path | None) -> None:
    java = _java()
    print(f"Java {java.version}: {java.home}")
    if java_home_file is not None:
        java_home_file.parent.mkdir(parents=True, exist_ok=True)
        java_home_file.write_text(f"{java.home}\n", encoding="utf-8")
    began = time.monotonic()
    jars = broker_classpath()
    print(f"broker: {len(jars)} jars in {jars[0].parent} ({time.monotonic() - began:.1f} s)")
    if (spark_version := _spark_version()) is not None:
        began = time.monotonic()
        jars = spark_kafka_jars(spark_version)
        print(f"Spark's Kafka source: {len(jars)} jars in {jars[0].parent} ({time.monotonic() - began:.1f} s)")


def _java() -> Java:
    modules = SPARK_MODULES if _spark_version() is not None else ()
    try:
        return find_java(modules)
    except JavaNotFound:
        return fetch_java(modules)


def _spark_version() -> str | None:
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
