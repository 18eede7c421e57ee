"""The queries' computations on a known input. The same code also runs in batch.

A batch is a minute of the input. It contains records of the previous minute, records that the next batch repeats, and
records that are too late for every window. Only a query whose state and watermark survive each crash drops the late
records, recognizes the repeated ones, and counts no record twice.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame

Record = dict[str, Any]

SCHEMA = "at TIMESTAMP, kind STRING, id LONG, user STRING, late BOOLEAN"
BATCHES = 6
A_BATCH = 16
DELAY = "1 minute"
IS_BAD = "id % 7 = 3"
"""The condition in SQL of records that a query with bad ones makes unfit for its sinks."""

END = "TIMESTAMP '2026-01-01 13:00:00'"
"""The time of the last records, which advance the watermark so that all earlier windows are emitted. They are excluded
by their time only, because Spark applies any other condition before it reads the watermark."""


@dataclass(frozen=True)
class Plan:
    """A computation.

    Attributes:
        compute: maps a stream or a batch of ``SCHEMA`` to the result, which has a column ``key``.
        source: ``kafka``, or ``files`` with one file per batch.
        output_mode: Spark's output mode. With ``update``, a later value of a key replaces an earlier one.
        drops_late: whether the query has a watermark. There is none in batch, so the late records are removed there.
        to_files: whether the result also goes to Parquet, in the same decision.
        is_lost: whether Kafka rolls back what a killed driver has left open, decided or not.
        has_bad: whether a sink of every backend gets the result, too, and each of them refuses the records that
            ``IS_BAD`` holds for, which go to a folder of their own.
    """

    compute: Callable[[DataFrame], DataFrame]
    source: str = "files"
    output_mode: str = "append"
    drops_late: bool = True
    to_files: bool = False
    is_lost: bool = False
    has_bad: bool = False

    def in_batch(self, records: DataFrame) -> DataFrame:
        """Compute the expected result from the whole input at once."""
        return self.compute(records.where("NOT late") if self.drops_late else records)


def is_bad(row: Record) -> bool:
    """The same as ``IS_BAD``."""
    return bool(row["id"] % 7 == 3)


def batches() -> Iterator[list[Record]]:
    """Yield the input, batch by batch. It is always the same."""
    again: list[Record] = []
    for minute in range(BATCHES):
        views = [_record(minute, 3 * n, "view", 100 * minute + n) for n in range(A_BATCH)]
        clicks = [_record(minute, 3 * n + 10, "click", 100 * minute + n) for n in range(0, A_BATCH, 2)]
        strays = [_record(minute - 1, 50 + n, "click", 100 * (minute - 1) + n) for n in (1, 5) if minute]
        late = [_record(minute - 5, n, "view", 9000 + minute, late=True) for n in range(3) if minute > 3]
        end = [_record(60, 0, kind, -1) for kind in ("view", "click") if minute == BATCHES - 1]
        yield [*again, *views, *clicks, *strays, *late, *end]
        again = views[::5]


def _record(minute: int, second: int, kind: str, number: int, late: bool = False) -> Record:
    at = datetime(2026, 1, 1, 12) + timedelta(minutes=minute, seconds=second)  # noqa: DTZ001  # sessions are in UTC
    return {"at": f"{at.isoformat()}Z", "kind": kind, "id": number, "user": f"u{number % 5}", "late": late}


def _enriched(events: DataFrame) -> DataFrame:
    return events.selectExpr(
        "CAST(id AS STRING) AS key", "id", "kind", "upper(user) AS user", "CAST(at AS STRING) AS at"
    )


def _aggregated(events: DataFrame) -> DataFrame:
    """Count by user and minute, once the minute is over."""
    from pyspark.sql import functions as F  # noqa: N812  # its customary name

    return (
        events.withWatermark("at", DELAY)
        .groupBy("user", F.window("at", "1 minute").alias("minute"))
        .agg(F.count("*").alias("events"), F.sum("id").alias("ids"))
        .where(f"minute.start < {END}")
        .selectExpr("user AS key", "CAST(minute.start AS STRING) AS minute", "events", "ids")
    )


def _counted(events: DataFrame) -> DataFrame:
    """Count by minute and kind, and emit each update."""
    from pyspark.sql import functions as F  # noqa: N812  # its customary name

    return (
        events.withWatermark("at", DELAY)
        .groupBy("kind", F.window("at", "1 minute").alias("minute"))
        .count()
        .selectExpr("concat(kind, ' ', minute.start) AS key", "count")
    )


def _joined(events: DataFrame) -> DataFrame:
    """Join every view with its click within a minute, or with null once that minute is over."""
    from pyspark.sql import functions as F  # noqa: N812  # its customary name

    views = events.where("kind = 'view'").selectExpr("id", "user", "at AS viewed").withWatermark("viewed", DELAY)
    clicks = events.where("kind = 'click'").selectExpr("id AS of", "at AS clicked").withWatermark("clicked", DELAY)
    in_time = F.expr("id = of AND clicked BETWEEN viewed AND viewed + INTERVAL 1 MINUTE")
    return (
        views.join(clicks, in_time, "left_outer")
        .where(f"viewed < {END}")
        .selectExpr(
            "CAST(id AS STRING) AS key", "CAST(viewed AS STRING) AS viewed", "CAST(clicked AS STRING) AS clicked"
        )
    )


def _deduplicated(events: DataFrame) -> DataFrame:
    """Keep each record once, however often it appears."""
    return _enriched(events.withWatermark("at", DELAY).dropDuplicates(["id", "kind", "at"]))


def _shuffled(events: DataFrame) -> DataFrame:
    """Move the records, without state: with adaptive execution Spark then decides how many partitions there are."""
    return _enriched(events.repartition(6, "user"))


def _totals(events: DataFrame) -> DataFrame:
    """Count by user, and emit each new total."""
    if not events.isStreaming:
        return events.groupBy("user").count().selectExpr("user AS key", "count AS events")
    from tests.campaigns.spark.totals import Totals

    return events.groupBy("user").transformWithState(Totals(), Totals.OUTPUT, "Update", "None")


PLANS: Mapping[str, Plan] = {
    "enriched": Plan(_enriched, source="kafka", drops_late=False, to_files=True),
    "lost": Plan(_enriched, source="kafka", drops_late=False, to_files=True, is_lost=True),
    "bad_records": Plan(_enriched, source="kafka", drops_late=False, to_files=True, has_bad=True),
    "aggregation": Plan(_aggregated, to_files=True),
    "shuffled": Plan(_shuffled, source="kafka", drops_late=False, to_files=True),
    "totals": Plan(_totals, output_mode="update", drops_late=False),
    "join": Plan(_joined),
    "deduplication": Plan(_deduplicated),
    "windowed_counts": Plan(_counted, source="kafka", output_mode="update"),
}
