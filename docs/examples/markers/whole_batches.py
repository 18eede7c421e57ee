"""Writes each whole batch to a file in FOLDER: python whole_batches.py SERVERS FOLDER MARKERS TOPIC..."""

import json
import sys
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition

servers, folder, marker_topic, *topics = sys.argv[1:]
group = {"group.id": f"whole-{marker_topic}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
reads = {"isolation.level": "read_committed", "enable.partition.eof": True}
consumer = Consumer({"bootstrap.servers": servers, **group, **reads})
every = [TopicPartition(t, n) for t in (marker_topic, *topics) for n in consumer.list_topics(t).topics[t].partitions]
consumer.assign(start := consumer.committed(every, 10))  # not subscribe: whole batches need all partitions
position = {(each.topic, each.partition): each.offset for each in start}
held, markers = defaultdict(list), {}  # batch → its records and marker; batch → its marker's rows
while True:
    for message in consumer.consume(1000, 0.5):
        place, error = (message.topic(), message.partition()), message.error()
        if not error or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # the end, past unreadable records
            position[place] = message.offset() + (not error)
        batch = (dict(message.headers() or ()).get("twopc-batch") or b"").decode(errors="replace").replace("/", ".")
        if not error and not Path(folder, batch).exists():  # skip records without header and finished batches
            held[batch].append((*place, message.offset(), (message.value() or b"").decode(errors="replace")))
            if place[0] == marker_topic:
                markers[batch] = json.loads(message.value())["partitions"]
    for batch, parts in [(batch, [row for row in rows if row[0] in topics]) for batch, rows in markers.items()]:
        if any(position[topic, number] < end for topic, number, _, end in parts):
            break  # more records will come
        if sum(row[0] != marker_topic for row in held[batch]) < sum(count for _, _, count, _ in parts):
            print("left out, because the topics no longer have all of its records:", batch, file=sys.stderr)
        elif parts:
            Path(f"{folder}.new").write_text("\n".join(f"{row[0]}\t{row[3]}" for row in held[batch]))
            Path(f"{folder}.new").replace(Path(folder, batch))
        del held[batch], markers[batch]
    keep = position | {row[:2]: row[2] for row in sorted((row for rows in held.values() for row in rows), reverse=True)}
    consumer.commit(offsets=[TopicPartition(*place, offset) for place, offset in keep.items() if offset >= 0])
