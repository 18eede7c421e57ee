"""What the file of definitions of a pipeline registers: a sink, and two flows into it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark import pipelines
from pyspark.sql import SparkSession

from tests.campaigns.spark.driver import kafka, source
from tests.campaigns.spark.job import FLOWS, TO_KAFKA, Job
from tests.campaigns.spark.plans import PLANS
from twopc.spark import TwoPhaseCommitDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def define(told: str) -> None:
    """Register them. Each flow takes its part of the rows, so the sink gets each row once."""
    job = Job(**json.loads(told))
    spark = SparkSession.active()
    spark.dataSource.register(TwoPhaseCommitDataSource)
    pipelines.create_sink("orders", "twopc", {"sink": "faulty-kafka", **kafka(job)})
    for number, name in enumerate(FLOWS):

        def part(number: int = number) -> DataFrame:
            output = PLANS[job.plan].compute(source(spark, job))
            return output.where(f"crc32(key) % {len(FLOWS)} = {number}").selectExpr(*TO_KAFKA)

        pipelines.append_flow(target="orders", name=name)(part)
