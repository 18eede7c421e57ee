"""Copy a topic with Quix Streams, exactly once. Prints the seconds from the first record to the last."""

import sys
import time

from quixstreams import Application
from quixstreams.models import TopicConfig

servers, source, target, records = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
application = Application(
    broker_address=servers,
    consumer_group=target,
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    loglevel="ERROR",
)
partitions = TopicConfig(num_partitions=4, replication_factor=1)
times: list[float] = []


def arrived(value: bytes) -> bytes:
    """Note the time of the first record. Called for each record."""
    if not times:
        times.append(time.perf_counter())
    return value


frame = application.dataframe(application.topic(source, value_deserializer="bytes", config=partitions))
frame.apply(arrived).to_topic(application.topic(target, value_serializer="bytes", config=partitions))
application.run(count=records)
print(time.perf_counter() - times[0])  # noqa: T201  # the result
