"""Spark with Iceberg's own runtime: a process that executes SQL, in an environment with a matching Spark.

``python -m tests.support.iceberg_spark SETTINGS`` reads one line of JSON per statement or stream, and writes one line
in response.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.support.environments import Environment, made, uv
from tests.support.pages import ROOT
from tests.support.spark_home import set_java_and_python
from tests.support.spark_session import session, write_all
from twopc_kafka_broker.jars import maven_jars

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

SPARK_VERSION = "4.1.4"
"""No runtime of Iceberg is published for Spark 4.2 yet."""

_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_NAME = "iceberg-spark-runtime-4.1-1.12.0"

_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


class SqlFailed(Exception):
    """Spark refused a statement, or could not execute it."""


def iceberg_environment() -> Environment:
    """Return an environment with Spark and the lake sinks. Raises NotHere if it can't be created."""
    return made(ROOT / "build" / "environments", uv(), SPARK_VERSION, "", "plugins/iceberg", "plugins/delta")


def iceberg_jars() -> tuple[Path, ...]:
    """Return the jars of Iceberg's runtime for this Spark."""
    return maven_jars(_NAME, _RUNTIME)


class IcebergSpark:
    """Executes SQL with the catalog ``lake``.

    Args:
        environment: an environment with Spark.
        catalog: the catalog's properties, with Iceberg's names.
        log: the file of Spark's log.
    """

    def __init__(self, environment: Environment, catalog: Mapping[str, str], log: Path) -> None:
        settings = {f"spark.sql.catalog.lake.{name}": value for name, value in catalog.items()}
        command = [environment.python, "-m", "tests.support.iceberg_spark", json.dumps(settings)]
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Execute a statement, and return its rows.

        Raises:
            SqlFailed: with Spark's error.
        """
        found: list[dict[str, Any]] = self.table(statement).to_pylist()
        return found

    def table(self, statement: str) -> pa.Table:
        """Execute a statement, and return its rows as an Arrow table."""
        return self._asked(statement)

    def stream(self, table: str, folder: Path, **options: str) -> pa.Table:
        """Stream the table's current rows, from where the last stream with this folder ended. Return all rows streamed
        so far.

        Raises:
            SqlFailed: with the query's error.
        """
        return self._asked({"table": table, "folder": str(folder), "options": options})

    def _asked(self, what: str | dict[str, Any]) -> pa.Table:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "Spark ended: see its log"
        answer = json.loads(line)
        if "error" in answer:
            raise SqlFailed(answer["error"])
        file = Path(answer["file"])
        with pa.ipc.open_file(file.read_bytes()) as reader:
            found = reader.read_all()
        file.unlink()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # its end of input
        self._process.wait(timeout=60)


# In Spark's process. ------------------------------------------------------------------------------------------------


def main() -> None:
    """Execute each statement of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the JVM goes to the log, not among the responses
    set_java_and_python()
    settings = {
        "spark.sql.extensions": _EXTENSIONS,
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        # Other processes also change the tables.
        "spark.sql.catalog.lake.cache-enabled": "false",
        **json.loads(sys.argv[1]),
    }
    jars, java = os.pathsep.join(map(str, iceberg_jars())), "-XX:ReservedCodeCacheSize=200m"
    spark = session(settings=settings, jars=jars, java=java, log_level="WARN")
    with tempfile.TemporaryDirectory() as folder:
        for number, line in enumerate(sys.stdin):
            file = Path(folder, f"{number}.arrow")
            try:
                asked = json.loads(line)
                found = (spark.sql(asked) if isinstance(asked, str) else _streamed(spark, **asked)).toArrow()
                with pa.ipc.new_file(file, found.schema) as writer:
                    writer.write_table(found)
                answer = {"file": str(file)}
            except Exception as error:  # noqa: BLE001  # the test handles any error
                answer = {"error": f"{type(error).__name__}: {_without_stack(str(error))}"}
            print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


def _streamed(spark: SparkSession, table: str, folder: str, options: dict[str, str]) -> DataFrame:
    of_table = spark.readStream.format("iceberg").options(**options).load(table)
    write_all(of_table.writeStream.format("parquet").option("path", f"{folder}/rows"), f"{folder}/checkpoint")
    return spark.read.schema(of_table.schema).parquet(f"{folder}/rows")


def _without_stack(error: str) -> str:
    """Return a Java error without its stack trace."""
    return "\n".join(line for line in error.splitlines() if not line.lstrip().startswith(("at ", "...")))


if __name__ == "__main__":
    main()
