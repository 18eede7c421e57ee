"""A cluster of three brokers, which tests restart, kill or silence."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.support import kills
from twopc.errors import Retriable
from twopc_kafka.client.control import Control
from twopc_kafka_broker import KafkaBroker

CONTROLLER, OTHERS = 1, (2, 3)
"""Node ids. While the controller is away, nobody elects a leader."""

_REPLICATED = {
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "offsets.topic.replication.factor": 3,
}
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class ThreeBrokers:
    """The brokers by node id, and a control connection to them."""

    nodes: dict[int, KafkaBroker]
    control: Control

    @property
    def servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.nodes.values())

    def start(self) -> None:
        """Start the brokers that a test has killed, and wait until the cluster has all three."""
        for broker in self.nodes.values():
            broker.start()
        self.wait_for_members(*self.nodes)

    def stand_still(self, *nodes: int) -> None:
        """Have brokers fall silent, with their connections open."""
        kills.stand_still(*(self.nodes[node].pid or 0 for node in nodes))

    def go_on(self, *nodes: int) -> None:
        kills.go_on(*(self.nodes[node].pid or 0 for node in nodes))

    def wait_for_members(self, *nodes: int) -> None:
        """Wait until the cluster consists of these brokers, as the controller's broker reports it.

        A broker that is silent is left out after ``broker.session.timeout.ms``. Until then clients may be referred to
        it, such as an admin client that asks for the controller.
        """
        deadline = time.monotonic() + _PATIENCE_S
        members: set[int] = set()
        while members != set(nodes):
            assert time.monotonic() < deadline, f"the cluster has the brokers {members}, not {nodes}"
            time.sleep(0.05)
            with contextlib.suppress(Retriable):
                members = self.control.run(self._members)

    async def _members(self) -> set[int]:
        return {broker.node_id for broker in (await self.control.metadata_of(CONTROLLER, [])).brokers}


@contextlib.contextmanager
def started() -> Iterator[ThreeBrokers]:
    with contextlib.ExitStack() as ended, ThreadPoolExecutor() as pool:
        first = ended.enter_context(KafkaBroker(properties=_REPLICATED))
        nodes = {CONTROLLER: first}
        for node in OTHERS:
            nodes[node] = KafkaBroker(properties={**_REPLICATED, "node.id": node}, joins=first)
            ended.callback(nodes[node].close)
        list(pool.map(KafkaBroker.start, nodes.values()))
        control = Control({"bootstrap_servers": [first.bootstrap_servers]})
        ended.callback(control.close)
        brokers = ThreeBrokers(nodes, control)
        ended.callback(lambda: brokers.go_on(*nodes))
        yield brokers
