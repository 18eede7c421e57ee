"""The health checks of ``twopc doctor``, over the control connection."""

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
"""The largest clock skew without a warning: longer than a usable network delays a response. The protocol relies on no
clock."""


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
        advice = "A crash can then duplicate or lose records. The right to write can't be tried without a transaction."
        yield CheckResult.warned(f"'delivery' is {options().delivery!r}", advice)
    elif is_usable:
        yield timeout(options())
        clocks: list[CheckResult] = []
        what = "begin, write and roll back a transaction, tried without a record"
        yield CheckResult.of(what, lambda: clocks.extend(trial()))
        yield from clocks[-1:]  # the trial may have been repeated
        yield replication(control, TRANSACTION_LOG)
    yield may_write_markers(control)


def _before_the_trial(
    control: Control, require_grants: Callable[[], None], of_target: Iterator[CheckResult]
) -> Iterator[CheckResult]:
    yield CheckResult.of("transaction options granted by the brokers", require_grants)
    yield version(control)
    yield from of_target


def of_topic(control: Control, topic: str | None, require_topic: Callable[[str], None]) -> Iterator[CheckResult]:
    """Check a topic of the sink's options, if they have one."""
    if topic is None:
        advice = (
            "Whether the topics exist and may be written to shows only when records are written. Create them first."
        )
        yield CheckResult.warned("records name their topics in the column 'topic'", advice)
        return
    exists = CheckResult.of(f"topic {topic!r}: existence", lambda: require_topic(topic))
    yield exists
    if exists.result is CheckStatus.PASSED:
        yield leaders(control, topic)
        yield replication(control, topic)
        yield hanging(control, topic)


def replication(control: Control, topic: str) -> CheckResult:
    """Check that acknowledged records of a topic outlive the loss of a broker."""
    what = f"topic {topic!r}: replication"
    try:
        replicas, in_sync = control.run(_replication, control, topic)
    except OperatorRequired:
        return CheckResult.warned(
            what,
            "It is hidden from this principal: grant DESCRIBE and DESCRIBE_CONFIGS on the topic, or check as another"
            " with kafka-topics.sh --describe that it has three replicas and min.insync.replicas=2.",
        )
    seen = f"replicas: {replicas}, min.insync.replicas: {in_sync}"
    if replicas == 1:
        advice = f"{seen}: a broker that is lost takes acknowledged records with it. Use 3, min.insync.replicas=2."
        return CheckResult.warned(what, advice)
    if in_sync == 1:
        return CheckResult.warned(what, f"{seen}: one broker may have acknowledged alone. Set min.insync.replicas=2.")
    if in_sync >= replicas:
        return CheckResult.warned(what, f"{seen}: nothing can be written while a broker is down. Add a replica.")
    return CheckResult.passed(f"{what} ({seen})")


async def _replication(control: Control, topic: str) -> tuple[int, int]:
    [found] = (await control.metadata([topic])).topics
    if found.error_code:
        raise kafka.errors.for_code(found.error_code)(topic)
    in_sync = await control.setting("min.insync.replicas", requests.TOPIC, topic)
    return min(len(partition.replica_nodes) for partition in found.partitions), in_sync or 1


def leaders(control: Control, topic: str) -> CheckResult:
    """Check that every partition has a leader, without which it can't be written to."""
    what = f"topic {topic!r}: partition leaders"
    away = sorted(f"{name}-{number}" for name, number in control.leaders.away(topic))
    if not away:
        return CheckResult.passed(what)
    return CheckResult.warned(
        what,
        f"{', '.join(away)} without a leader: a batch that writes there fails or waits, and transactions that hang"
        " there stay unseen. Bring the brokers of its replicas back.",
    )


def may_write_markers(control: Control) -> CheckResult:
    """Check the right to write markers that Kafka leaves out. The brokers report it; a trial would change something."""
    what = "right to repair missing markers (KAFKA-20734), as the brokers report it"
    if control.run(_may_alter, control):
        return CheckResult.passed(what)
    return CheckResult.warned(
        what,
        "This principal lacks ALTER on the cluster, so the query stops if Kafka ever leaves one out. Grant it then, if"
        " only to the principal of 'twopc resolve'.",
    )


async def _may_alter(control: Control) -> bool:
    response = await control.send(requests.operations())
    return requests.ALTER in (response.authorized_operations or ())


def timeout(options: KafkaOptions) -> CheckResult:
    """Check how long a decided batch may wait for its commit."""
    if not options.has_timeout:
        return CheckResult.passed("transaction timeout: none, so a decided batch may wait without limit (KIP-939)")
    what = f"transaction timeout: a decided batch may wait {options.transaction_timeout_ms / 1000:g} s for its commit"
    if options.transaction_timeout_ms >= DEFAULTS["transaction.timeout.ms"]:
        return CheckResult.passed(what)
    return CheckResult.warned(
        what,
        "After that Kafka rolls it back, and the query stops. Raise 'transaction.timeout.ms' or the brokers'"
        " transaction.max.timeout.ms, or set 'replay_copies'.",
    )


def version(control: Control) -> CheckResult:
    """Check that the brokers have the transactions of Kafka 4.0."""
    what = f"Kafka {control.release}: transaction.version"
    if control.end_txn_version >= EPOCH_BUMPING_END_TXN:
        return CheckResult.passed(what)
    return CheckResult.warned(
        what,
        "It is below 2, which fences late writes of an ended transaction. With Kafka 4.0 or later: kafka-features.sh"
        " upgrade --feature transaction.version=2.",
    )


def hanging(control: Control, topic: str) -> CheckResult:
    """Check that transactions that hang in a topic would be found."""
    what = f"topic {topic!r}: detection of hanging transactions (KAFKA-20734)"
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
    """Add a consumer group to a transaction that is just begun. Returns the same."""
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
    """Check a broker's clock, which is so many seconds ahead of this machine's."""
    what = f"this machine's clock and that of a broker are {abs(ahead_s):.1f} s apart"
    if abs(ahead_s) <= LARGEST_SKEW_S:
        return CheckResult.passed(what)
    slow = "this machine's is slow" if ahead_s > 0 else "this machine's is fast"
    return CheckResult.warned(
        what,
        f"Seen from the broker, {slow}. Timestamps in records and in the log are off by as much, and brokers refuse"
        " records that are an hour ahead. Synchronize both machines with a time server.",
    )
