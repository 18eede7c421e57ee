"""Topics that were deleted, and maybe created again, after a transaction wrote to them. The transaction's records there
are lost.

Kafka commits the rest of such a transaction without an error. A topic that is created again gets a new id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from twopc.errors import RoundAborted
from twopc.transaction import Committable
from twopc_kafka.answers import TransactionState
from twopc_kafka.client.leaders import Leaders
from twopc_kafka.handles import topic_ids_of


def ids_to_seal(
    leaders: Leaders, committables: Collection[Committable], described: Iterable[TransactionState], since_s: float
) -> dict[str, str]:
    """Return the ids of the topics that the transactions wrote to.

    Raises:
        RoundAborted: a topic was deleted since a participant began to write to it.
    """
    topics = {topic for state in described for topic in state.partitions}
    then = [of_topic for committable in committables for of_topic in topic_ids_of(committable).items()]
    now = _ids_now(leaders, topics, then, since_s)
    if missing := _deleted(then, now):
        raise RoundAborted(
            f"topic {missing[0]!r} was deleted while the batch was written, and its records with it. Nothing of the"
            " batch is visible."
        )
    return now


def deleted_since(leaders: Leaders, committable: Committable, since_s: float) -> str | None:
    """Return a topic that was deleted since the transaction wrote to it, or None. Uses metadata from ``since_s`` or
    later."""
    then = topic_ids_of(committable)
    return next(iter(_deleted(then.items(), _ids_now(leaders, then, then.items(), since_s))), None)


def _ids_now(
    leaders: Leaders, topics: Collection[str], then: Collection[tuple[str, str]], since_s: float
) -> dict[str, str]:
    """Return the current id of each topic. An id that differs from the one in ``then`` counts only if most brokers
    report it."""
    now = leaders.topic_ids(topics, since_s)
    changed = _deleted(then, now)
    return now | leaders.topic_ids_of_most(changed) if changed else now


def _deleted(then: Iterable[tuple[str, str]], now: Mapping[str, str]) -> list[str]:
    """Return the topics whose ids differ between ``then`` and ``now``, and the topics that do not exist now."""
    changed = [topic for topic, id in then if now.get(topic, id) != id]
    return list(dict.fromkeys([*changed, *(topic for topic, id in now.items() if not id)]))


def look_up_soon(leaders: Leaders, committables: Iterable[Committable], since_s: float) -> None:
    """Start looking up the topics that transactions wrote to. ``leaders`` keeps the answer for the caller."""
    leaders.look_up_soon({topic for committable in committables for topic in topic_ids_of(committable)}, since_s)


def one_per_topic(ended: Iterable[Committable]) -> Iterable[Committable]:
    """Return a committable for each pair of topic and id that the transactions wrote to."""
    return {of_topic: committable for committable in ended for of_topic in topic_ids_of(committable).items()}.values()
