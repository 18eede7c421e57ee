"""The ways in which Spark writes, each with the cases that prove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.prove_spark.case import FOREACH_BATCH_KILLS, FORMAT_KILLS, PLAN_KILLS, Case
from tests.prove_spark.job import FORMAT_BATCH, FORMAT_STREAM

WAYS: Mapping[str, Sequence[Case]] = {
    "foreach_batch": [Case("enriched", FOREACH_BATCH_KILLS)],
    "format_stream": [Case("deduplication", FORMAT_KILLS, FORMAT_STREAM)],
    "format_batch": [Case("enriched", FORMAT_KILLS, FORMAT_BATCH)],
    "aggregation": [Case("aggregation", PLAN_KILLS)],
    "join": [Case("join", PLAN_KILLS)],
    "deduplication": [Case("deduplication", PLAN_KILLS)],
    "windowed_counts": [Case("windowed_counts", PLAN_KILLS)],
}
