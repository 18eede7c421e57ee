"""How far a query has read from Kafka when the batch that runs now is done.

Spark's engine is asked, in the driver's JVM (the same in 4.0 and 4.2). It holds each source, so that Kafka's are known
by their class, beside the offset at which the batch ends. Spark has written that to the checkpoint, wherever it is, and
takes it from there when it repeats the batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from twopc.errors import ConfigurationError

OFFSETS_SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
"""Of each partition the next offset to read, as a consumer group has it."""

_KAFKA = "org.apache.spark.sql.kafka010."


def end_offsets(session: SparkSession, query_id: str) -> pa.RecordBatch:
    """Where a query's Kafka sources are at the end of the batch that runs. Of a partition that several read, the place
    of the one that is furthest behind.

    Raises:
        ConfigurationError: none of its sources is Kafka.
    """
    query = running_query(session, query_id)
    sources = list(each(query.sources()))
    if not any(_is_kafka(source) for source in sources):
        raise ConfigurationError(
            "'progress' is for queries that read from Kafka, and the sources of this one are"
            f" {', '.join(source.toString() for source in sources)}. Nothing was written. Leave it out."
        )
    found: dict[tuple[str, int], int] = {}
    for pair in each(query.availableOffsets()):
        source, end = pair.productElement(0), pair.productElement(1)
        for topic, partitions in (json.loads(end.json()) if _is_kafka(source) else {}).items():
            for number, offset in partitions.items():
                partition = topic, int(number)
                found[partition] = min(offset, found.get(partition, offset))
    rows = [{"topic": topic, "partition": number, "offset": offset} for (topic, number), offset in found.items()]
    return pa.RecordBatch.from_pylist(rows, OFFSETS_SCHEMA)


def running_query(session: SparkSession, query_id: str) -> Any:
    """The JVM's query. A batch has a session of its own, whose ``streams`` is empty."""
    jvm: Any = session._jvm  # noqa: SLF001  # the only way to it
    shared = session._jsparkSession.sharedState()  # noqa: SLF001  # the same
    return shared.activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))


def _is_kafka(source: Any) -> bool:
    return str(source.getClass().getName()).startswith(_KAFKA)


def each(collection: Any) -> Iterator[Any]:
    """The elements of one of Scala's collections."""
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()
