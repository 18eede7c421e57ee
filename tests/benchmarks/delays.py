"""A process beside the contestants: it produces records at a steady rate, and measures when a reader sees each.

The reader is a committed one. The arguments are the bootstrap servers, the two topics, and how many seconds pass before
the measurement and during it.
"""

import json
import sys
import threading
import time

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

RECORDS_A_SECOND = 1_000
RECORD_BYTES = 100
PARTITIONS = 4


def produce(servers: str, topic: str, stopped: threading.Event) -> None:
    """Produce records that begin with the time at which they were produced, by the monotonic clock."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})
    began_s, produced = time.monotonic(), 0
    while not stopped.wait(0.005):
        due = int((time.monotonic() - began_s) * RECORDS_A_SECOND)
        for _ in range(due - produced):
            producer.produce(topic, str(time.monotonic_ns()).encode().ljust(RECORD_BYTES, b"x"))
        produced = due
        producer.poll(0)
    producer.flush()


def delays_ms(servers: str, topic: str, begin_s: float, end_s: float) -> list[float]:
    """Return the delays of the records that were produced between two times, when all of them were seen."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "delays",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[float] = []
    expected = (end_s - begin_s) * RECORDS_A_SECOND * 0.95  # the producer's thread may be late, so less than all
    deadline_s = end_s + 60
    newest_s = 0.0
    while newest_s < end_s:
        messages = consumer.consume(5_000, timeout=0.02)
        now_s = time.monotonic()
        if now_s > deadline_s:
            raise SystemExit(f"{topic} has no record of the last second, a minute after it was produced")
        for message in messages:
            if not message.error():
                produced_s = int((message.value() or b"").rstrip(b"x")) / 1e9
                newest_s = max(newest_s, produced_s)
                if begin_s <= produced_s < end_s:
                    found.append((now_s - produced_s) * 1000)
    if len(found) < expected:
        raise SystemExit(f"{topic} has {len(found)} records of the measured time, and at least {expected:.0f} were due")
    return found


def main() -> None:
    """Print the delays as JSON: median, 99th percentile and longest, in milliseconds."""
    servers, source, target, before_s, during_s = sys.argv[1:]
    stopped = threading.Event()
    producing = threading.Thread(target=produce, args=(servers, source, stopped))
    producing.start()
    begin_s = time.monotonic() + float(before_s)
    try:
        found = delays_ms(servers, target, begin_s, begin_s + float(during_s))
    finally:
        stopped.set()
        producing.join()
    print(json.dumps([round(float(each), 1) for each in np.percentile(found, (50, 99, 100))]))  # noqa: T201


if __name__ == "__main__":
    main()
