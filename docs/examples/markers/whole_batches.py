"""Shows whole batches, each as a file of FOLDER: python whole_batches.py SERVERS FOLDER MARKERS TOPIC..."""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

servers, folder, marker_topic, *topics = sys.argv[1:]
group = {"group.id": f"whole-{marker_topic}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
consumer = Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed", **group})
every = [TopicPartition(t, n) for t in (marker_topic, *topics) for n in consumer.list_topics(t).topics[t].partitions]
consumer.assign(start := consumer.committed(every, 10))  # not subscribe: a part of the partitions has no whole batch
position = {(each.topic, each.partition): each.offset for each in start}
held, markers = defaultdict(list), {}  # of each batch: its records, with the marker; and what the marker says
while True:
    for message in (each for each in consumer.consume(1000, 0.5) if not each.error()):
        row = message.topic(), message.partition(), message.offset(), message.value().decode()
        position[row[:2]] = row[2] + 1
        batch = dict(message.headers() or ()).get("twopc-batch", b"").decode().replace("/", ".")
        if not Path(folder, batch).exists():  # else a restart has read it again, or its marker was written twice
            held[batch].append(row)
            if row[0] == marker_topic:
                markers[batch] = json.loads(row[3])["partitions"]
    for batch, parts in [*markers.items()]:
        found = Counter(row[:2] for row in held[batch])
        missing = [(position[t, n], end) for t, n, count, end in parts if t in topics and found[t, n] < count]
        if any(reached < end for reached, end in missing):
            break  # more records come
        if not missing:  # else this reader began after the batch's first records
            Path(f"{folder}.new").write_text("\n".join(f"{row[0]}\t{row[3]}" for row in held[batch]))
            Path(f"{folder}.new").replace(Path(folder, batch))
        del held[batch], markers[batch]
    keep = position | {row[:2]: row[2] for row in sorted((row for rows in held.values() for row in rows), reverse=True)}
    consumer.commit(offsets=[TopicPartition(*place, offset) for place, offset in keep.items() if offset >= 0])
