"""PySpark's daemon with the imports done: a Python worker that is killed is back in milliseconds, not in seconds."""

import pyarrow.parquet
import pyspark.worker
from pyspark.daemon import manager

import twopc.spark.task
import twopc_files.sink
import twopc_kafka.sink

__all__ = ["pyarrow", "pyspark", "twopc", "twopc_files", "twopc_kafka"]

if __name__ == "__main__":
    manager()
