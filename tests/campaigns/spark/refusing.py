"""Targets of every backend but Kafka, each of which refuses bad records for a reason of its own."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import make_conninfo

import twopc
from tests.campaigns.spark.job import Job
from tests.campaigns.spark.plans import IS_BAD
from tests.campaigns.tables.lake import tables_in
from tests.campaigns.tables.table import LakeTable
from tests.support.contents import in_files, in_table, left_in_files
from twopc.spark import Output

WITHOUT_VALUE = [f"IF({IS_BAD}, NULL, to_json(struct(*))) AS value"]
"""The tables' column takes no null."""

WITHOUT_FOLDER = ["to_json(struct(*)) AS value", f"IF({IS_BAD}, char(0), 'good') AS folder"]
"""No folder can be named after a NUL."""

SCHEMA = pa.schema([pa.field("value", pa.string(), nullable=False)])


def outputs(job: Job) -> Mapping[str, Output]:
    of_folder = {"path": str(_folder(job)), "format": "parquet", "partition_by": "folder"}
    of_table = {"conninfo": job.conninfo, "table": "records"}
    return {
        "folders": Output(twopc.create_sink("files", of_folder), WITHOUT_FOLDER),
        "postgres": Output(twopc.create_sink("postgres", of_table), WITHOUT_VALUE),
        **{name: Output(table.sink(), WITHOUT_VALUE) for name, table in _lake_tables(job).items()},
    }


def created(job: Job) -> Job:
    """Create the tables. Return the job with a database of its own, as prepared transactions are the server's."""
    for table in _lake_tables(job).values():
        table.create(SCHEMA)
    with psycopg.connect(job.conninfo, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(job.target)))
    job = replace(job, conninfo=make_conninfo(job.conninfo, dbname=job.target))
    with psycopg.connect(job.conninfo, autocommit=True) as database:
        database.execute("CREATE TABLE records (value text NOT NULL)")
    return job


def contents(job: Job) -> Mapping[str, list[str]]:
    """Return the values in each target."""
    return {
        "folders": [row["value"] for row in in_files(_folder(job) / "folder=good")],
        "postgres": [value for (value,) in in_table(job.conninfo, "SELECT value FROM records")],
        **{name: table.read().column("value").to_pylist() for name, table in _lake_tables(job).items()},
    }


def left(job: Job) -> int:
    """Return how many transactions are not ended, and how many of their files are left."""
    prepared = in_table(job.conninfo, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    files = [*left_in_files(_folder(job)), *(each for table in _lake_tables(job).values() for each in table.files())]
    return len(prepared) + len(files)


def _folder(job: Job) -> Path:
    return Path(job.folder) / "folders"


def _lake_tables(job: Job) -> Mapping[str, LakeTable]:
    return tables_in(Path(job.folder), "spark.records")
