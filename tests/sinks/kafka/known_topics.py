"""Topics on several brokers, each of which learns of a new topic in its own time."""

from contextlib import closing

import tenacity

from twopc.errors import Retriable
from twopc_kafka.client.control import Control

_PATIENCE_S = 30.0


def wait_until_known(servers: str, topic: str) -> None:
    """Wait until every broker of the cluster at ``servers`` knows ``topic``, which one of them has made."""
    with closing(Control({"bootstrap_servers": servers.split(",")})) as control:
        repeated = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((AssertionError, Retriable)),
            stop=tenacity.stop_after_delay(_PATIENCE_S),
            wait=tenacity.wait_fixed(0.05),
            reraise=True,
        )
        repeated(control.run, _require_known, control, topic)


async def _require_known(control: Control, topic: str) -> None:
    response = await control.metadata()
    for broker in response.brokers:
        [answer] = (await control.metadata_of(broker.node_id, [topic])).topics
        assert not answer.error_code, f"broker {broker.node_id} does not know topic {topic!r}: {answer}"
        assert not any(partition.error_code for partition in answer.partitions), f"{broker.node_id}: {answer}"
