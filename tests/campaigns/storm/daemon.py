"""PySpark's daemon with all imports done, so that a killed Python worker is back in milliseconds instead of seconds."""

import importlib
from importlib.util import find_spec

import pyarrow.parquet
import pyspark.worker
from pyspark.daemon import manager

import twopc.spark.task

__all__ = ["pyarrow", "pyspark", "twopc"]

# An environment with another Spark may have some of them only.
for backend in ("twopc_delta", "twopc_files", "twopc_iceberg", "twopc_kafka"):
    if find_spec(backend):
        importlib.import_module(f"{backend}.sink")

if __name__ == "__main__":
    manager()
