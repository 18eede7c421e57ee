"""Spark Structured Streaming over the two-phase-commit coordinator."""

from twopc.spark.data_source import TwoPhaseCommitDataSource
from twopc.spark.foreach_batch import ForeachBatch, foreach_batch
from twopc.spark.stopping import stop

__all__ = ["ForeachBatch", "TwoPhaseCommitDataSource", "foreach_batch", "stop"]
