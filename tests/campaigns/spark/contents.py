"""The comparison of the target systems with the same computation in batch, and the search for leftovers."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.campaigns.spark import refusing
from tests.campaigns.spark.job import TO_KAFKA, Job
from tests.campaigns.spark.plans import PLANS, SCHEMA, is_bad
from tests.support.contents import Difference, difference, in_files, in_topic, left_in_files
from twopc_kafka.client.control import control_of

Contents = Counter[str]

PATIENCE_S = 10
"""How long a difference may last: a broker answers a commit before readers see everything."""


@dataclass(frozen=True)
class Found:
    """The number of differences between a query's target systems and the expected contents."""

    lost: int
    duplicates: int
    leftovers: int


def in_batch(spark: SparkSession, plan: str, records: str) -> Contents:
    """Compute the plan over the whole input with Spark's batch execution."""
    computed = PLANS[plan].in_batch(spark.read.schema(SCHEMA).json(records))
    return Counter(row.value for row in computed.selectExpr(*TO_KAFKA).collect())


def compare(job: Job, expected: Contents) -> Found:
    """Wait for up to ``PATIENCE_S`` until nothing differs. Return the differences."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := _compare(job, expected)) != Found(0, 0, 0) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _compare(job: Job, expected: Contents) -> Found:
    plan, folder = PLANS[job.plan], Path(job.folder)
    values = in_topic(job.servers, job.target)
    found = Difference()
    if plan.output_mode == "update":
        found += Difference(0, len(values) - len(set(values)))  # successive updates of a key differ
        values = _last_of_each_key(values)
    refused = Counter({v: times for v, times in expected.items() if plan.has_bad and is_bad(json.loads(v))})
    targets = {"kafka": values, **(refusing.contents(job) if plan.has_bad else {})}
    for there in targets.values():
        found += difference((expected - refused).elements(), there)
    bad = [(row["sink"], _as_json(json.loads(row["row"]))) for row in in_files(folder / "bad")]
    found += difference(((sink, value) for sink in targets for value in refused.elements()), bad)
    if job.writes_files:
        found += difference(expected.elements(), map(_as_json, in_files(folder / "parquet")))
    ongoing = control_of({"bootstrap_servers": [job.servers]}).list_ongoing(f"{job.target}.")
    left = [file for each in ("parquet", "bad") for file in left_in_files(folder / each)]
    of_others = refusing.left(job) if plan.has_bad else 0
    return Found(found.lost, found.duplicates, len(ongoing) + len(left) + of_others)


def _last_of_each_key(values: Iterable[str]) -> list[str]:
    return list({json.loads(value)["key"]: value for value in values}.values())


def _as_json(row: dict[str, Any]) -> str:
    """Return a row as Spark's to_json writes it."""
    return json.dumps({name: value for name, value in row.items() if value is not None}, separators=(",", ":"))
