"""Spark Structured Streaming over the two-phase-commit coordinator."""

from twopc.spark.foreach_batch import ForeachBatch, foreach_batch

__all__ = ["ForeachBatch", "foreach_batch"]
