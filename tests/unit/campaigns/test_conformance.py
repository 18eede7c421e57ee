"""Conformance of the Kafka model: the same calls to the model and to a broker get the same answers.

Both sides use the sink's own interfaces: ``Control`` to describe and end, ``Writer`` to begin and write.
"""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pytest

from tests.campaigns.simulation.kafka_model import Broker
from tests.campaigns.simulation.world import Fault, Planned, World
from tests.sinks.kafka.hanging import write_unnoticed
from tests.support.waiting import until
from twopc.errors import Retriable, RoundAborted
from twopc_kafka import KafkaSink
from twopc_kafka.answers import EndTxnAnswer, OpenInPartition, ProducerIdentity, to_end
from twopc_kafka.client.control import Control
from twopc_kafka.options import ARROW, WRITERS
from twopc_kafka.writers.arrow import ArrowWriter
from twopc_kafka.writers.librdkafka import Writer
from twopc_kafka_broker import KafkaBroker

TOPIC, PARTITIONS, UNNOTICED = "conformance", 5, 4

PATIENCE_S = 30.0
TIMEOUT_MS = 3_000
"""The shortest that librdkafka allows."""


class Side(Protocol):
    """A cluster, real or modeled, as one transactional id sees it."""

    def init(self) -> None:
        """Let another producer take the id. It becomes the newest."""

    def produce(self, producer: int) -> str:
        """Write a record with the producer of that index. Return ``ok`` or ``refused``."""

    def end(self, producer: int, commit: bool, version: int) -> str:
        """End that producer's transaction from outside."""

    def state(self) -> tuple[str, int, bool] | None:
        """Return the state, the epochs since the first producer's, and whether the producer id is unchanged."""

    def time_out(self) -> None:
        """Wait until the open transaction has timed out."""

    def is_listed(self) -> bool:
        """Return whether the id is listed with an ongoing transaction."""

    def leave_out(self) -> None:
        """Make one partition miss its marker when the first producer's transaction ends."""

    def hangs(self) -> bool:
        """Return whether a partition has an open transaction for which no marker will arrive."""

    def mark(self, commit: bool) -> str:
        """Write the first producer's missing marker."""


class Modelled:
    def __init__(self) -> None:
        self._broker = Broker(World(Planned({})))
        self._identities: list[ProducerIdentity] = []

    def init(self) -> None:
        while not isinstance(answer := self._broker.init("id", TIMEOUT_MS), ProducerIdentity):
            assert answer == "CONCURRENT_TRANSACTIONS"
        self._identities.append(answer)

    def produce(self, producer: int) -> str:
        answer = self._broker.produce("id", self._identities[producer], ["row"])
        return "ok" if answer == "NO_ERROR" else "refused"

    def end(self, producer: int, commit: bool, version: int) -> str:
        identity = self._identities[producer]
        return self._broker.end("id", identity.producer_id, identity.producer_epoch, commit, version)

    def state(self) -> tuple[str, int, bool] | None:
        found = self._broker.describe(["id"]).get("id")
        return None if found is None else _relative(found.state, found, self._identities[0])

    def time_out(self) -> None:
        self._broker.time_out()

    def is_listed(self) -> bool:
        return self._broker.list_ongoing("id") == ["id"]

    def leave_out(self) -> None:
        self._broker.world.special = Fault.MARKER_LEFT_OUT

    def hangs(self) -> bool:
        return any(open_.producer_id == self._identities[0].producer_id for open_ in self._broker.open_transactions())

    def mark(self, commit: bool) -> str:
        identity = self._identities[0]
        return self._broker.mark(identity.producer_id, identity.producer_epoch, commit)


class Real:
    def __init__(self, control: Control, options: Any) -> None:
        self._control, self._options = control, options
        self._name = f"conformance-{uuid.uuid4().hex[:8]}"
        self._writers: list[Writer | ArrowWriter] = []
        self._identities: list[ProducerIdentity] = []
        self._writes = 0

    def init(self) -> None:
        def begun() -> Writer | ArrowWriter | None:
            begin = ArrowWriter if self._options.writer == ARROW else Writer
            try:
                return begin(self._options, self._name)
            except RoundAborted:
                return None  # the broker has just started, and is still loading its transaction log

        writer: Writer | ArrowWriter = _eventually(begun)
        self._writers.append(writer)
        identity = writer.finish()
        assert identity is not None
        self._identities.append(identity)

    def close(self) -> None:
        """End every producer, including fenced ones, which confluent-kafka keeps."""
        for writer in self._writers:
            if isinstance(writer, Writer):
                writer._end()

    def produce(self, producer: int) -> str:
        # Use another partition each time. librdkafka writes to a partition that it has already added without adding it
        # again, and the broker refuses that. The model assumes the worse case.
        assert self._writes < UNNOTICED
        partition = pa.array([self._writes], pa.int32())
        self._writes += 1
        try:
            self._writers[producer].write(pa.record_batch({"value": ["row"], "partition": partition}))
            self._writers[producer].finish()
        except RoundAborted:
            return "refused"
        return "ok"

    def end(self, producer: int, commit: bool, version: int) -> str:
        identity = self._identities[producer]

        def ended() -> str | None:
            answer = self._control.end(self._name, identity.producer_id, identity.producer_epoch, commit, version)
            return None if to_end(answer) is EndTxnAnswer.REPEAT else answer

        answer: str = _eventually(ended)
        return answer

    def state(self) -> tuple[str, int, bool] | None:
        def settled() -> tuple[str, int, bool] | str | None:
            found = self._control.describe([self._name]).get(self._name)
            if found is None:
                return "unknown"
            return None if found.state.startswith("Prepare") else _relative(found.state, found, self._identities[0])

        answer = _eventually(settled)
        return None if isinstance(answer, str) else answer

    def time_out(self) -> None:
        def is_over() -> bool | None:
            return True if self._control.describe([self._name])[self._name].state == "CompleteAbort" else None

        _eventually(is_over)

    def is_listed(self) -> bool:
        return self._control.list_ongoing(self._name) == [self._name]

    def leave_out(self) -> None:
        identity = self._identities[0]
        write_unnoticed(self._options, self._name, identity, ["unnoticed"], UNNOTICED)

    def _open(self) -> list[OpenInPartition]:
        found = self._control.leaders.open_transactions({TOPIC: range(PARTITIONS)})
        return [open_ for open_ in found.open if open_.producer_id == self._identities[0].producer_id]

    def hangs(self) -> bool:
        self.state()  # let markers in flight arrive first
        return bool(_eventually(lambda: (self._open(),))[0])

    def mark(self, commit: bool) -> str:
        identity = self._identities[0]
        hanging = OpenInPartition(TOPIC, UNNOTICED, identity.producer_id, identity.producer_epoch, 0, 0)
        answer: str = _eventually(lambda: self._control.leaders.write_marker(hanging, commit))
        return answer


def _relative(state: str, found: Any, first: ProducerIdentity) -> tuple[str, int, bool]:
    return state, found.producer_epoch - first.producer_epoch, found.producer_id == first.producer_id


def _eventually(call: Callable[[], Any]) -> Any:
    """Call until the result is true, and return it. A broker that has just started moves its coordinators."""

    def answered() -> Any:
        try:
            return call()
        except Retriable:
            return None

    return until(answered, PATIENCE_S)


@dataclass(frozen=True)
class Script:
    """A sequence of calls on one transactional id. Each word is a call of ``Side``."""

    words: str

    def __str__(self) -> str:
        return self.words

    def play(self, side: Side) -> list[object]:
        """Return every answer, with the state after each call."""
        answers: list[object] = []
        for word in self.words.split():
            call, _, rest = word.partition(":")
            match call:
                case "init":
                    side.init()
                case "write":
                    answers.append(side.produce(int(rest or 0)))
                case "commit" | "abort":
                    version, _, producer = rest.partition("/")
                    answers.append(side.end(int(producer or 0), call == "commit", int(version)))
                case "time-out":
                    side.time_out()
                case "leave-out":
                    side.leave_out()
                case "mark":
                    answers.append(side.mark(rest == "commit"))
            if "leave-out" in self.words:
                answers.append(side.hangs())
            answers.append(side.state())
            answers.append(side.is_listed())
        return answers


ENDINGS = [f"{action}:{version}" for action in ("commit", "abort") for version in (4, 5)]
SCRIPTS = [
    *(f"init write {ending}" for ending in ENDINGS),
    *(f"init write commit:{v} {action}:{v}" for v in (4, 5) for action in ("commit", "abort")),
    *(f"init write commit:{v} {action}:{9 - v}" for v in (4, 5) for action in ("commit", "abort")),
    *(f"init write abort:{v} {action}:{v}" for v in (4, 5) for action in ("commit", "abort")),
    *(f"init write abort:{v} {action}:{9 - v}" for v in (4, 5) for action in ("commit", "abort")),
    *(f"init write time-out {ending}" for ending in ENDINGS),
    *(f"init write init {ending}" for ending in ENDINGS),
    *(f"init write init write:1 {ending} commit:5/1" for ending in ENDINGS),
    *(f"init write commit:{v} init write:1 {ending} commit:{v}/1" for v in (4, 5) for ending in ENDINGS),
    *(f"init write time-out init write:1 {ending} commit:5/1" for ending in ENDINGS),
    *(f"init {ending}" for ending in ENDINGS),
    *(f"init write init write:0 {ending}/1" for ending in ENDINGS),
    "init write time-out write",
    "init write commit:4 write commit:4",
    "init write commit:5 write",
    "init write abort:5 write",
    "init init init write:2 commit:5/2",
    *(f"init write leave-out {ending}" for ending in ENDINGS),
    *(f"init write leave-out {end}:{v} mark:{end} mark:{end}" for end in ("commit", "abort") for v in (4, 5)),
    "init write leave-out time-out mark:abort",
    "init write leave-out abort:5 init mark:abort",
    "init write leave-out abort:4 init mark:abort",
]


@pytest.fixture(scope="module", params=WRITERS)
def real(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Real]]:
    properties: dict[str, str | int | bool] = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
        "transaction.partition.verification.enable": False,  # so that the test can make a transaction hang
    }
    with KafkaBroker(properties=properties) as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        options = {"bootstrap.servers": broker.bootstrap_servers, "topic": TOPIC, "writer": request.param}
        sink = KafkaSink(options)
        yield lambda timeout_ms: Real(sink._control, sink._options.with_transaction_timeout(timeout_ms))
        sink._control.close()


@pytest.fixture(scope="module")
def answers(real: Callable[[int], Real]) -> dict[str, list[object]]:
    """Return the broker's answers to each script. The scripts run concurrently, because timeouts take long."""

    def play(words: str) -> list[object]:
        # Only scripts that wait for a timeout may run into one, however slow they are.
        side = real(TIMEOUT_MS if "time-out" in words else 60_000)
        try:
            return Script(words).play(side)
        finally:
            side.close()

    real(60_000).init()  # the broker creates its transaction log at the first request
    with ThreadPoolExecutor(6) as pool:
        return dict(zip(SCRIPTS, pool.map(play, SCRIPTS), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("words", SCRIPTS)
def test_the_model_answers_as_a_broker_does(words: str, answers: dict[str, list[object]]) -> None:
    assert Script(words).play(Modelled()) == answers[words]


@pytest.mark.long
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("commit", [True, False])
def test_an_unknown_id_is_answered_alike(real: Callable[[int], Real], commit: bool, version: int) -> None:
    modelled = Broker(World(Planned({}))).end("nobody", 4711, 0, commit, version)
    assert modelled == real(60_000)._control.end("nobody", 4711, 0, commit, version)
