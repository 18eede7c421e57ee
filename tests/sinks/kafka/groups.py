"""Consumer groups that queries report their progress to."""

import contextlib
import uuid
from typing import Any, TypeAlias

import pyarrow as pa
from kafka import KafkaAdminClient
from kafka.errors import RetriableError

from tests.sinks.kafka.offsets_loop import PARTITIONS
from twopc import Committable, Participant, Round
from twopc_kafka.offsets_sink import KafkaProgressSink

Offsets: TypeAlias = "dict[int, int]"
"""By partition of the one topic."""


class Group:
    """A consumer group that a query's progress goes to, and what lag tools see of it."""

    def __init__(self, topic: Any, prefix: str) -> None:
        self.topic, self.name, self._prefix = topic, f"group-{uuid.uuid4().hex[:8]}", prefix

    def sink(self, log_id: str | None = "log", **options: Any) -> KafkaProgressSink:
        given = {name.replace("_", "."): value for name, value in options.items()}
        defaults = {"bootstrap.servers": self.topic.servers, "group.id": self.name}
        sink = KafkaProgressSink({**defaults, "transactional.id.prefix": self._prefix, **given})
        if log_id is not None:
            sink.bind("progress", log_id)
        return sink

    def is_known(self) -> bool:
        """Not at once on a broker that has just started, which has nobody yet to keep groups."""
        try:
            self.offsets()
        except RetriableError:
            return False
        return True

    def offsets(self) -> Offsets:
        """By another client than the one that commits. It waits for no open transaction."""
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=self.topic.servers)) as admin:
            found = admin.list_group_offsets(self.name).get(self.name, {})
        return {place.partition: at.offset for place, at in found.items() if place.topic == self.topic.name}

    def reaches(self, end: int, wait: Any) -> bool:
        """Wait until all partitions are there: a killed driver may have left the markers to the broker."""
        wait.until(f"the group is at {end}", lambda: self.offsets() == dict.fromkeys(range(PARTITIONS), end))
        return True

    def batch(self, offsets: Offsets) -> pa.RecordBatch:
        columns = [[self.topic.name] * len(offsets), list(offsets), list(offsets.values())]
        return pa.record_batch(columns, pa.schema({"topic": "string", "partition": "int32", "offset": "int64"}))

    def pre_commit(self, sink: KafkaProgressSink, offsets: Offsets, round: Round = Round(1, 0)) -> Committable:  # noqa: B008
        with Participant({"progress": sink}, round, partition=0) as participant:
            participant.write("progress", self.batch(offsets))
            [sealed] = sink.seal([participant.pre_commit()["progress"]], age_s=0)
        return sealed
