"""What ``twopc doctor`` asks of a cluster, over the control connection, beyond what a query asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka.errors

from twopc.checks import CheckResult, CheckStatus
from twopc.errors import OperatorRequired
from twopc_kafka.answers import EPOCH_BUMPING_END_TXN, ProducerIdentity
from twopc_kafka.client import requests
from twopc_kafka.client.control import Control
from twopc_kafka.options import DEFAULTS, KafkaOptions

TRANSACTION_LOG = "__transaction_state"

LARGEST_SKEW_S = 5.0
"""More than a network that is worth a query delays an answer. Less is of no consequence: no clock decides anything."""


def of_sink(
    options: Callable[[], KafkaOptions],
    control: Control,
    require_grants: Callable[[], None],
    of_target: Iterator[CheckResult],
    trial: Callable[[], Iterator[CheckResult]] | None,
) -> Iterator[CheckResult]:
    """Check a sink and its cluster.

    Args:
        options: the sink's, as ``require_grants`` may have changed them.
        control: to the cluster.
        require_grants: raises what the brokers don't grant of the options.
        of_target: the checks of what the sink writes to.
        trial: begins and rolls back a transaction; None where the sink's delivery has none.
    """
    is_usable = True
    for result in _before_the_trial(control, require_grants, of_target):
        yield result
        is_usable &= result.result is not CheckStatus.FAILED
    if trial is None:
        advice = "A crash then doubles or loses records, as it says. Whether they may be written can't be tried."
        yield CheckResult.warned(f"'delivery' is {options().delivery!r}", advice)
    elif is_usable:
        yield timeout(options())
        clocks: list[CheckResult] = []
        what = "this principal may begin, write and roll back a transaction, tried without a record"
        yield CheckResult.of(what, lambda: clocks.extend(trial()))
        yield from clocks[-1:]  # the trial may have been repeated
        yield replication(control, TRANSACTION_LOG)
    yield may_write_markers(control)


def _before_the_trial(
    control: Control, require_grants: Callable[[], None], of_target: Iterator[CheckResult]
) -> Iterator[CheckResult]:
    yield CheckResult.of("the brokers grant what the options ask of transactions", require_grants)
    yield version(control)
    yield from of_target


def of_topic(control: Control, topic: str | None, require_topic: Callable[[], None]) -> Iterator[CheckResult]:
    """Check the topic of the sink's options, if they have one."""
    if topic is None:
        advice = "Whether these are there, and may be written, is seen when they are written. Create them before."
        yield CheckResult.warned("records name their topics in the column 'topic'", advice)
        return
    exists = CheckResult.of(f"topic {topic!r} is there", require_topic)
    yield exists
    if exists.result is CheckStatus.PASSED:
        yield leaders(control, topic)
        yield replication(control, topic)
        yield hanging(control, topic)


def replication(control: Control, topic: str) -> CheckResult:
    """Whether what a topic has acknowledged outlives a broker."""
    what = f"topic {topic!r} outlives the loss of a broker"
    try:
        replicas, in_sync = control.run(_replication, control, topic)
    except OperatorRequired:
        return CheckResult.warned(
            what,
            "It can't be seen: grant this principal DESCRIBE and DESCRIBE_CONFIGS on the topic, or see with"
            " kafka-topics.sh --describe as another that it has three replicas and min.insync.replicas=2.",
        )
    seen = f"replicas: {replicas}, min.insync.replicas: {in_sync}"
    if replicas == 1:
        return CheckResult.warned(what, f"No ({seen}). Have three replicas, and min.insync.replicas=2.")
    if in_sync == 1:
        return CheckResult.warned(what, f"Not surely ({seen}): one broker may have acknowledged alone. Set it to 2.")
    if in_sync >= replicas:
        return CheckResult.warned(what, f"Yes ({seen}), but nothing can be written meanwhile. Have a replica more.")
    return CheckResult.passed(f"{what} ({seen})")


async def _replication(control: Control, topic: str) -> tuple[int, int]:
    [found] = (await control.metadata([topic])).topics
    if found.error_code:
        raise kafka.errors.for_code(found.error_code)(topic)
    in_sync = await control.setting("min.insync.replicas", requests.TOPIC, topic)
    return min(len(partition.replica_nodes) for partition in found.partitions), in_sync or 1


def leaders(control: Control, topic: str) -> CheckResult:
    """Whether every partition can be written to."""
    what = f"every partition of topic {topic!r} has a leader"
    away = sorted(f"{name}-{number}" for name, number in control.leaders.away(topic))
    if not away:
        return CheckResult.passed(what)
    return CheckResult.warned(
        what,
        f"{', '.join(away)} has none, so a batch that writes there fails or waits, and what hangs there can't be seen."
        " Bring the brokers of its replicas back.",
    )


def may_write_markers(control: Control) -> CheckResult:
    """Whether this principal may mend what Kafka leaves open. It is asked, as trying it would change something."""
    what = "by what the brokers tell, this principal may write a marker that Kafka leaves out (KAFKA-20734)"
    if control.run(_may_alter, control):
        return CheckResult.passed(what)
    return CheckResult.warned(
        what,
        "Without ALTER on the cluster the query stops if that ever happens. Grant it then, if only to the principal of"
        " 'twopc resolve'.",
    )


async def _may_alter(control: Control) -> bool:
    response = await control.send(requests.operations())
    return requests.ALTER in (response.authorized_operations or ())


def timeout(options: KafkaOptions) -> CheckResult:
    """Whether what is decided can wait for its commit for long enough."""
    if not options.has_timeout:
        return CheckResult.passed("what is decided may wait for its commit without limit (KIP-939)")
    what = f"what is decided may wait {options.transaction_timeout_ms / 1000:g} s for its commit"
    if options.transaction_timeout_ms >= DEFAULTS["transaction.timeout.ms"]:
        return CheckResult.passed(what)
    return CheckResult.warned(
        what,
        "Then Kafka rolls it back, and the query stops. Raise 'transaction.timeout.ms' or the brokers'"
        " transaction.max.timeout.ms, or give the query a 'stage'.",
    )


def version(control: Control) -> CheckResult:
    """Whether the brokers have the transactions of Kafka 4.0."""
    what = f"Kafka {control.release} with transaction.version 2, which fences late writes of an ended transaction"
    if control.end_txn_version >= EPOCH_BUMPING_END_TXN:
        return CheckResult.passed(what)
    advice = "It is less. With Kafka 4.0 or later: kafka-features.sh upgrade --feature transaction.version=2."
    return CheckResult.warned(what, advice)


def hanging(control: Control, topic: str) -> CheckResult:
    """Whether what hangs in a topic would be found."""
    what = f"transactions that hang in topic {topic!r} (KAFKA-20734) can be seen"
    if control.leaders.may_read(topic):
        return CheckResult.passed(what)
    return CheckResult.warned(what, "Grant this principal READ on the topic. Only metadata is read.")


def try_to_write(control: Control, name: str, producer: ProducerIdentity, topic: str) -> float:
    """Add the first partition of ``topic`` to a transaction that is just begun, as a write would.

    Returns:
        How far ahead the broker's clock is, in seconds.
    """
    return control.run(_added, control, requests.add_partitions(name, producer, {topic: [0]}), name)


def try_to_progress(control: Control, name: str, producer: ProducerIdentity, group: str) -> float:
    """Add the offsets of a consumer group, likewise."""
    return control.run(_added, control, requests.add_offsets(name, producer, group), name)


async def _added(control: Control, request: Any, name: str) -> float:
    [node] = (await control.coordinators_of([name])).values()
    before_s = time.time()
    response = await control.send(request, node)
    after_s = time.time()
    for code in _codes(response):
        if code:
            raise kafka.errors.for_code(code)(name)
    described = await control.send(requests.describe_transactions([name]), node)
    [state] = described.transaction_states
    began_s: float = state.transaction_start_time_ms / 1000
    return max(began_s - after_s, 0.0) + min(began_s - before_s, 0.0)


def _codes(response: Any) -> list[int]:
    if hasattr(response, "results_by_topic_v3_and_below"):
        topics = response.results_by_topic_v3_and_below
        return [partition.partition_error_code for topic in topics for partition in topic.results_by_partition]
    return [response.error_code]


def clock(ahead_s: float) -> CheckResult:
    """Whether the broker's clock, so many seconds ahead of this machine's, is right enough."""
    what = f"this machine's clock and that of a broker are {abs(ahead_s):.1f} s apart"
    if abs(ahead_s) <= LARGEST_SKEW_S:
        return CheckResult.passed(what)
    slow = "this machine's is slow" if ahead_s > 0 else "this machine's is fast"
    return CheckResult.warned(
        what,
        f"Seen from the broker, {slow}. Times in records and in the log are off as much, and brokers refuse records"
        " that are an hour ahead. Have both machines ask a time server.",
    )
