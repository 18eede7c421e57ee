"""PySpark's daemon with all imports done, so that a killed Python worker is back in milliseconds instead of seconds."""

import pyarrow.parquet
import pyspark.worker
from pyspark.daemon import manager

import twopc.spark.task
import twopc_delta.sink
import twopc_files.sink
import twopc_iceberg.sink
import twopc_kafka.sink

__all__ = ["pyarrow", "pyspark", "twopc", "twopc_delta", "twopc_files", "twopc_iceberg", "twopc_kafka"]

if __name__ == "__main__":
    manager()
