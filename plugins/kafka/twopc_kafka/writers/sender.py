"""Sends the record batches of one transaction: in order per partition, in bounded memory, each batch at most once.

Each partition has one batch in flight at a time, so a repeated batch can't overtake another one or be overtaken.
Batches for several partitions share a request to their broker, and several requests to a broker overlap.

All sending happens in the cluster's thread, independently of the task, which meanwhile encodes the next batches or
waits for its input. The task hands over encoded batches in one step. It waits only while too many bytes are in memory,
and at the end. Any error in the thread fails the transaction and wakes the task.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from kafka.future import Future

from twopc.errors import RoundAborted
from twopc_kafka.answers import (
    DUPLICATE_SEQUENCE_NUMBER,
    NO_LEADER,
    NOT_LEADER,
    OPERATION_NOT_ATTEMPTED,
    Meaning,
    WriteAnswer,
    failure,
    meaning,
    records_refused,
)
from twopc_kafka.client import requests
from twopc_kafka.client.cluster import CHECK_INTERVAL_S, Cluster, Lookups, OpenTransaction
from twopc_kafka.client.retry import NotSent, Unanswered, pause_s
from twopc_kafka.markers import UNKNOWN_END, Written
from twopc_kafka.writers.encoding.batches import RecordBatch
from twopc_kafka.writers.settings import Settings

REQUESTS_PER_BROKER = 4
"""How many requests may be in flight per broker, so that it always has one to process. Batches that have to wait share
the next request."""

REQUEST_BYTES = 2 * 1024 * 1024
"""The size of a request beyond which no batch is added: by default, two batches of the largest size. With four
partitions, one request is then in flight while the broker processes another. Throughput was 10 to 20 % lower when the
batches of all four shared a request."""


@dataclass(eq=False)
class Lane:
    """A partition with its queue of batches. The first batch may be in flight. ``records`` counts acknowledged records,
    and ``end_offset`` follows the last of them."""

    topic: str
    number: int
    waiting: deque[RecordBatch] = field(default_factory=deque)
    is_ready: bool = True
    is_added: bool = False
    failing_since: float | None = None
    repeats: int = 0
    records: int = 0
    end_offset: int = UNKNOWN_END


class Sending:
    """The sending half of one transaction. Its coroutines run in the cluster's thread, and only they use the lanes.

    Args:
        asked: topic → a call of ``Cluster.leaders`` that is already under way.
    """

    def __init__(
        self, cluster: Cluster, transaction: OpenTransaction, settings: Settings, asked: Mapping[str, Future]
    ) -> None:
        self._cluster = cluster
        self._asked = dict(asked)
        self._lookups = Lookups(cluster, settings.topic_timeout_ms, settings.timeout_ms)
        self._transaction = transaction
        self._settings = settings
        self.topic_ids: dict[str, str] = {}  # as looked up before the first write to the topic
        self._leaders: dict[str, Sequence[int]] = {}
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._under_way: dict[int, int] = defaultdict(int)
        self._stopped = False
        # Shared between the task's thread and the cluster's.
        self._changed = threading.Condition()
        self._held_bytes = 0
        self._awaited_bytes = -1  # the waiting task goes on when at most these are held; -1: no task waits
        self._failure: Exception | None = None
        self.acknowledged = 0

    # Called by the task. ---------------------------------------------------------------------------------------

    def partitions(self, topic: str) -> int:
        """Return how many partitions ``topic`` has, 0 if it does not exist. Raises like ``Lookups.find``."""
        found = self._lookups.find(topic, self._asked.pop(topic, None))
        if found.id:
            self.topic_ids.setdefault(topic, found.id)
        if found.leaders:
            self._leaders[topic] = found.leaders
        return len(found.leaders)

    def put(self, topic: str, batches: Sequence[RecordBatch]) -> None:
        """Hand over batches for sending. Wait while more bytes are held than the settings allow.

        Raises:
            RoundAborted: one of these batches, or an earlier one, was not delivered.
        """
        with self._changed:
            self._held_bytes += sum(len(batch.data) for batch in batches)
        self._spawn(self._accept, topic, batches)
        self._wait_until_held(self._settings.buffer_bytes)

    def drain(self) -> None:
        """Wait until all in-sync replicas have acknowledged every batch.

        Raises:
            RoundAborted: a batch was not delivered.
        """
        self._wait_until_held(0)

    @property
    def written(self) -> Written:
        """How much was written to each partition. Read it after ``drain``, when nothing is in flight."""
        return {place: (lane.records, lane.end_offset) for place, lane in self._lanes.items()}

    def halt(self) -> None:
        """Stop sending."""
        self._stopped = True

    def stop(self, timeout_s: float) -> None:
        """Stop sending, and wait for the responses to requests in flight. A request that arrived after the rollback
        could begin a new transaction.

        Raises:
            RoundAborted: a request is still in flight after ``timeout_s``.
        """
        self.halt()
        self._cluster.run(self._until_arrived, timeout_s)

    def _wait_until_held(self, at_most_bytes: int) -> None:
        with self._changed:
            self._awaited_bytes = at_most_bytes
            while self._failure is None and self._held_bytes > at_most_bytes:
                if not self._changed.wait(CHECK_INTERVAL_S):
                    self._cluster.check()
            self._awaited_bytes = -1
            if self._failure is not None:
                raise self._failure

    # In the cluster's thread. ----------------------------------------------------------------------------------

    def _spawn(self, step: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        self._cluster.spawn(self._guard, step, *args)

    async def _guard(self, step: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Run a coroutine that no caller awaits. Any exception fails the transaction."""
        try:
            await step(*args)
        except Exception as error:  # noqa: BLE001  # the task must learn of any error
            self._fail(error)
        except BaseException:
            self._fail(RoundAborted(f"the sending of transaction {self._transaction.transactional_id} was canceled"))
            raise

    async def _accept(self, topic: str, batches: Sequence[RecordBatch]) -> None:
        for batch in batches:
            lane = self._lanes.setdefault((topic, batch.partition), Lane(topic, batch.partition))
            lane.waiting.append(batch)
        self._dispatch()

    async def _until_arrived(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while any(self._under_way.values()):
            if time.monotonic() > deadline:
                raise RoundAborted(f"requests are still in flight after {timeout_s:.0f} s; nothing is rolled back yet")
            await self._cluster.sleep(0.01)

    def _dispatch(self) -> None:
        ready: dict[int, list[Lane]] = defaultdict(list)
        if self._failure is None and not self._stopped:
            for lane in self._lanes.values():
                if lane.is_ready and lane.waiting:
                    ready[self._leaders[lane.topic][lane.number]].append(lane)
        for node, lanes in ready.items():
            if node < 0:
                self._repeat_later(lanes, meaning(NO_LEADER))
                continue
            while lanes and self._under_way[node] < REQUESTS_PER_BROKER:
                taken = list(_up_to(REQUEST_BYTES, lanes))
                del lanes[: len(taken)]
                self._under_way[node] += 1
                for lane in taken:
                    lane.is_ready = False
                self._spawn(self._deliver, node, taken)

    async def _deliver(self, node: int, lanes: list[Lane]) -> None:
        try:
            await self._cluster.reach(node)
            if self._transaction.implicit or await self._add(lanes):
                response = await self._cluster.send(node, self._produce(lanes))
                self._settle(lanes, response)
        except NotSent as error:
            self._repeat_later(lanes, Meaning(str(error), WriteAnswer.REPEAT, meaning(NOT_LEADER).advice))
        except Unanswered as error:
            self._fail(RoundAborted(f"{self._what(lanes)} got no answer and may have been written: {error}. The"
                                    " transaction is rolled back, and the batch can be run again."))  # fmt: skip
        finally:
            self._under_way[node] -= 1
        self._dispatch()

    def _produce(self, lanes: Iterable[Lane]) -> Any:
        batches = {topic: {lane.number: lane.waiting[0].data for lane in some} for topic, some in _by_topic(lanes)}
        return requests.produce(self._transaction.transactional_id, batches, self._transaction.implicit)

    def _settle(self, lanes: list[Lane], response: Any) -> None:
        answers = {
            (topic.name, partition.index): partition
            for topic in response.responses
            for partition in topic.partition_responses
        }
        again: dict[int, list[Lane]] = defaultdict(list)
        for lane in lanes:
            answer = answers[lane.topic, lane.number]
            code = answer.error_code
            if code == DUPLICATE_SEQUENCE_NUMBER and lane.repeats:
                code = 0  # an earlier attempt had arrived
            match meaning(code).answer:
                case WriteAnswer.DONE:
                    self._delivered(lane, answer.base_offset)
                case WriteAnswer.REPEAT:
                    again[code].append(lane)
                case WriteAnswer.REFUSED:
                    refused = _refused(answer, lane.waiting[0])
                    raise records_refused(code, self._cluster.servers, lane.topic, lane.number, refused)
                case _:
                    told = f" ({answer.error_message})" if answer.error_message else ""
                    raise failure(meaning(code), f"{self._what([lane])} was refused{told}")
        for code, some in again.items():
            self._repeat_later(some, meaning(code))

    def _delivered(self, lane: Lane, base_offset: int) -> None:
        batch = lane.waiting.popleft()
        lane.records += batch.count
        lane.end_offset = base_offset + batch.count if base_offset >= 0 else UNKNOWN_END  # a duplicate may have none
        with self._changed:
            self._held_bytes -= len(batch.data)
            self.acknowledged += batch.count
            if self._held_bytes <= self._awaited_bytes:
                self._changed.notify_all()
        lane.is_ready, lane.failing_since, lane.repeats = True, None, 0

    def _repeat_later(self, lanes: list[Lane], why: Meaning) -> None:
        """Send the same batches again later, to the leaders at that time, unless the timeout has passed."""
        now = time.monotonic()
        for lane in lanes:
            lane.is_ready = False
            lane.repeats += 1
            lane.failing_since = lane.failing_since or now
            if now - lane.failing_since > self._settings.timeout_ms / 1000:
                bound = f"'message.timeout.ms' = {self._settings.timeout_ms}"
                self._fail(failure(why, f"{self._what([lane])} was not accepted within {bound}"))
                return
        self._spawn(self._ready_again, lanes)

    async def _ready_again(self, lanes: list[Lane]) -> None:
        await self._cluster.sleep(pause_s(max(lane.repeats for lane in lanes)))
        for topic, _ in _by_topic(lanes):
            try:
                answer, found = await self._cluster.leaders(topic)
            except NotSent:
                continue  # go on with the leaders known before
            if answer.answer is WriteAnswer.DONE and len(found.leaders) >= len(self._leaders[topic]):
                self._leaders[topic] = found.leaders
        for lane in lanes:
            lane.is_ready = True
        self._dispatch()

    async def _add(self, lanes: list[Lane]) -> bool:
        """Add new partitions to the transaction. Return whether the partitions may be written now."""
        new = [lane for lane in lanes if not lane.is_added]
        if not new:
            return True
        code, node = await self._cluster.coordinator(self._transaction.transactional_id)
        codes = {code} if code else await self._added(node, new)
        refused = codes - {0}
        for each in sorted(refused - {OPERATION_NOT_ATTEMPTED} or refused):  # the cause is another partition's error
            if meaning(each).answer is not WriteAnswer.REPEAT:
                raise failure(meaning(each), f"adding the partitions for {self._what(new)} was refused")
            self._repeat_later(lanes, meaning(each))
            return False
        for lane in new:
            lane.is_added = True
        return True

    async def _added(self, node: int, lanes: list[Lane]) -> set[int]:
        partitions = {topic: [lane.number for lane in of_topic] for topic, of_topic in _by_topic(lanes)}
        transaction = self._transaction
        request = requests.add_partitions(transaction.transactional_id, transaction.producer, partitions)
        return requests.codes_in(await self._cluster.send(node, request))

    def _what(self, lanes: Sequence[Lane]) -> str:
        batches = [lane.waiting[0] for lane in lanes]
        return (
            f"a batch of {sum(batch.count for batch in batches)} records ({sum(len(batch.data) for batch in batches)}"
            f" bytes) to {', '.join(f'partition {lane.number} of topic {lane.topic!r}' for lane in lanes[:3])} at"
            f" {self._cluster.servers}, in transaction {self._transaction.transactional_id},"
        )

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error  # later errors are consequences of the first
            self._changed.notify_all()


def _refused(answer: Any, batch: RecordBatch) -> int | None:
    """Return the position, within the transaction, of the first record that the broker reports as refused (KIP-467)."""
    named = [each.batch_index for each in answer.record_errors or () if 0 <= each.batch_index < batch.count]
    if not named and batch.count > 1:
        return None
    return int(batch.positions[min(named, default=0)])


def _by_topic(lanes: Iterable[Lane]) -> Iterator[tuple[str, list[Lane]]]:
    for topic, of_topic in groupby(sorted(lanes, key=attrgetter("topic")), key=attrgetter("topic")):
        yield topic, list(of_topic)


def _up_to(size: int, lanes: Iterable[Lane]) -> Iterator[Lane]:
    """Yield lanes while their first batches together are at most ``size`` bytes, but at least one lane."""
    taken = 0
    for lane in lanes:
        taken += len(lane.waiting[0].data)
        if taken > size and taken != len(lane.waiting[0].data):
            return
        yield lane
