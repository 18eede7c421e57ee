"""A Spark Connect client to be killed: ``python -m tests.campaigns.spark.client sc://... '{...}'``, with a ``Job``."""

import json
import os
import sys

from pyspark.sql import SparkSession

from tests.campaigns.spark.driver import run_stream
from tests.campaigns.spark.job import Job
from twopc.spark import TwoPhaseCommitDataSource


def main() -> None:
    url, told = sys.argv[1:]
    job = Job(**json.loads(told))
    job.client.write_text(str(os.getpgrp()))
    spark = SparkSession.builder.remote(url).getOrCreate()
    spark.dataSource.register(TwoPhaseCommitDataSource)
    run_stream(spark, job)


if __name__ == "__main__":
    main()
