"""Batches on their way into one transaction: in order for each partition, in bounded memory, each at most once.

Each partition has one batch under way at a time, so that a repeat cannot overtake or be overtaken. Batches of several
partitions share a request per broker, and requests to a broker overlap.

All of this happens in the cluster's thread. The task encodes the next batches meanwhile, or waits for its plan; the
sending does not depend on it. The task hands over what it has encoded in one step. It waits only while too many bytes
are held, and at the end. Any error in the thread fails the transaction and wakes the task.
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
    Answer,
    Meaning,
    failure,
    meaning,
    records_refused,
)
from twopc_kafka.client import requests
from twopc_kafka.client.cluster import CHECK_INTERVAL_S, Cluster, OpenTransaction
from twopc_kafka.client.retry import NotSent, Unanswered, pause_s
from twopc_kafka.writers.encoding.batches import RecordBatch
from twopc_kafka.writers.settings import Settings

REQUESTS_PER_BROKER = 4
"""The broker works on one while the next are on their way; what has to wait then shares the next request."""

REQUEST_BYTES = 2 * 1024 * 1024
"""A request takes no further batch beyond this: two of the largest by default, so that with four partitions one request
is on its way while the broker works on the other. A tenth to a fifth less was sent where all four shared one."""


@dataclass(eq=False)
class Lane:
    """A partition, and what waits for it. The first batch may be under way."""

    topic: str
    number: int
    waiting: deque[RecordBatch] = field(default_factory=deque)
    is_ready: bool = True
    is_added: bool = False
    failing_since: float | None = None
    repeats: int = 0


class Sending:
    """The sending half of one transaction. Its coroutines run in the cluster's thread, and only they use the lanes.

    Args:
        asked: topics whose ``Cluster.leaders`` are under way already.
    """

    def __init__(
        self, cluster: Cluster, transaction: OpenTransaction, settings: Settings, asked: Mapping[str, Future]
    ) -> None:
        self._cluster = cluster
        self._asked = dict(asked)
        self._transaction = transaction
        self._settings = settings
        self.topic_ids: dict[str, str] = {}  # before each was first written to
        self._leaders: dict[str, Sequence[int]] = {}
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._under_way: dict[int, int] = defaultdict(int)
        self._stopped = False
        # Shared by both threads.
        self._changed = threading.Condition()
        self._held_bytes = 0
        self._awaited_bytes = -1  # while the task waits: until no more than this are held
        self._failure: Exception | None = None
        self.acknowledged = 0

    # What the task asks for. -----------------------------------------------------------------------------------

    def partitions(self, topic: str) -> int:
        """Return how many partitions ``topic`` has, 0 if it does not exist. Raises like ``Cluster.find``."""
        limits_ms = self._settings.topic_timeout_ms, self._settings.timeout_ms
        found = self._cluster.run(self._cluster.find, topic, *limits_ms, self._asked.pop(topic, None))
        if found.id:
            self.topic_ids.setdefault(topic, found.id)
        if found.leaders:
            self._leaders[topic] = found.leaders
        return len(found.leaders)

    def put(self, topic: str, batches: Sequence[RecordBatch]) -> None:
        """Hand batches over. Waits while more are held than the sink may hold.

        Raises:
            RoundAborted: a batch, of these or before, was not delivered.
        """
        with self._changed:
            self._held_bytes += sum(len(batch.data) for batch in batches)
        self._spawn(self._accept, topic, batches)
        self._wait_until_held(self._settings.buffer_bytes)

    def drain(self) -> None:
        """Wait until every batch is acknowledged by all replicas in sync.

        Raises:
            RoundAborted: one was not delivered.
        """
        self._wait_until_held(0)

    def halt(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def stop(self, timeout_s: float) -> None:
        """Send nothing more, and let requests under way arrive: one that came after the rollback could begin a
        transaction anew.

        Raises:
            RoundAborted: something still is under way.
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

    # How. ------------------------------------------------------------------------------------------------------

    def _spawn(self, step: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        self._cluster.spawn(self._guarded, step, *args)

    async def _guarded(self, step: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Run a coroutine whose result nobody awaits. Whatever it raises fails the transaction."""
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
                raise RoundAborted(f"requests are still under way after {timeout_s:.0f} s; nothing was rolled back yet")
            await self._cluster.sleep(0.01)

    def _dispatch(self) -> None:
        """Send what can be sent."""
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
            self._repeat_later(lanes, Meaning(str(error), Answer.REPEAT, meaning(NOT_LEADER).advice))
        except Unanswered as error:
            self._fail(RoundAborted(f"{self._what(lanes)} got no answer, and may or may not be there: {error}. The"
                                    " transaction is rolled back and the batch can be run again."))  # fmt: skip
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
                code = 0  # an attempt before had arrived
            match meaning(code).answer:
                case Answer.DONE:
                    self._delivered(lane)
                case Answer.REPEAT:
                    again[code].append(lane)
                case Answer.REFUSED:
                    raise records_refused(meaning(code), self._cluster.servers, lane.topic, lane.number)
                case _:
                    told = f" ({answer.error_message})" if answer.error_message else ""
                    raise failure(meaning(code), f"{self._what([lane])} was refused{told}")
        for code, some in again.items():
            self._repeat_later(some, meaning(code))

    def _delivered(self, lane: Lane) -> None:
        batch = lane.waiting.popleft()
        with self._changed:
            self._held_bytes -= len(batch.data)
            self.acknowledged += batch.count
            if self._held_bytes <= self._awaited_bytes:
                self._changed.notify_all()
        lane.is_ready, lane.failing_since, lane.repeats = True, None, 0

    def _repeat_later(self, lanes: list[Lane], why: Meaning) -> None:
        """Send the same batches again, to the leaders of then, unless that has been going on for too long."""
        now = time.monotonic()
        for lane in lanes:
            lane.is_ready = False
            lane.repeats += 1
            lane.failing_since = lane.failing_since or now
            if now - lane.failing_since > self._settings.timeout_ms / 1000:
                self._fail(failure(why, f"{self._what([lane])} was not taken for {self._settings.timeout_ms} ms"))
                return
        self._spawn(self._ready_again, lanes)

    async def _ready_again(self, lanes: list[Lane]) -> None:
        await self._cluster.sleep(pause_s(max(lane.repeats for lane in lanes)))
        for topic, _ in _by_topic(lanes):
            try:
                answer, found = await self._cluster.leaders(topic)
            except NotSent:
                continue  # the leaders known before are as good as any
            if answer.answer is Answer.DONE and len(found.leaders) >= len(self._leaders[topic]):
                self._leaders[topic] = found.leaders
        for lane in lanes:
            lane.is_ready = True
        self._dispatch()

    async def _add(self, lanes: list[Lane]) -> bool:
        """Add partitions that are new to the transaction. Returns whether they may be written now."""
        new = [lane for lane in lanes if not lane.is_added]
        if not new:
            return True
        code, node = await self._cluster.coordinator(self._transaction.transactional_id)
        codes = {code} if code else await self._added(node, new)
        refused = codes - {0}
        for each in sorted(refused - {OPERATION_NOT_ATTEMPTED} or refused):  # that one has its cause beside it
            if meaning(each).answer is not Answer.REPEAT:
                raise failure(meaning(each), f"{self._what(new)} was not let into the transaction")
            self._repeat_later(lanes, meaning(each))
            return False
        for lane in new:
            lane.is_added = True
        return True

    async def _added(self, node: int, lanes: list[Lane]) -> set[int]:
        partitions = {topic: [lane.number for lane in of_topic] for topic, of_topic in _by_topic(lanes)}
        transaction = self._transaction
        request = requests.add_partitions(transaction.transactional_id, transaction.producer, partitions)
        response = await self._cluster.send(node, request)
        return {
            partition.partition_error_code
            for result in response.results_by_topic_v3_and_below
            for partition in result.results_by_partition
        }

    def _what(self, lanes: Sequence[Lane]) -> str:
        batches = [lane.waiting[0] for lane in lanes]
        return (
            f"a batch of {sum(batch.count for batch in batches)} records ({sum(len(batch.data) for batch in batches)}"
            f" bytes) to {', '.join(f'partition {lane.number} of topic {lane.topic!r}' for lane in lanes[:3])} at"
            f" {self._cluster.servers}, in transaction {self._transaction.transactional_id},"
        )

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error  # what comes later is its consequence
            self._changed.notify_all()


def _by_topic(lanes: Iterable[Lane]) -> Iterator[tuple[str, list[Lane]]]:
    for topic, of_topic in groupby(sorted(lanes, key=attrgetter("topic")), key=attrgetter("topic")):
        yield topic, list(of_topic)


def _up_to(size: int, lanes: Iterable[Lane]) -> Iterator[Lane]:
    """The first of ``lanes`` whose first batches are no larger together; one at least."""
    taken = 0
    for lane in lanes:
        taken += len(lane.waiting[0].data)
        if taken > size and taken != len(lane.waiting[0].data):
            return
        yield lane
