"""The health checks of ``twopc doctor``, over the control connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import kafka.errors

from twopc.checks import CheckResult, CheckStatus
from twopc.errors import OperatorRequired, Retriable
from twopc.transaction import Committable
from twopc_kafka.answers import EPOCH_BUMPING_END_TXN, UNKNOWN_TOPIC, EndTxnAnswer, ProducerIdentity, to_end
from twopc_kafka.client import requests
from twopc_kafka.client.control import Control
from twopc_kafka.ending import require_markers
from twopc_kafka.handles import identity_of
from twopc_kafka.options import DEFAULTS, EXACTLY_ONCE, KafkaOptions

TRANSACTION_LOG = "__transaction_state"

USUAL_EXPIRATION_MS = 604_800_000
"""Kafka's default of transactional.id.expiration.ms, seven days."""

LARGEST_SKEW_S = 5.0
"""The largest clock skew that gets no warning: longer than any usable network delays a response. The protocol does not
rely on clocks."""


def of_sink(
    options: Callable[[], KafkaOptions],
    control: Control,
    require_grants: Callable[[], None],
    of_target: Iterator[CheckResult],
    trial: Callable[[], Iterator[CheckResult]] | None,
) -> Iterator[CheckResult]:
    """Check a sink and its cluster.

    Args:
        options: returns the sink's options, which ``require_grants`` may have changed.
        control: the connection to the cluster.
        require_grants: raises if the brokers do not grant what the options ask for.
        of_target: the checks of the topic or the group that the sink writes to.
        trial: begins and rolls back a transaction; None if the sink's delivery uses no transactions.
    """
    is_usable = True
    for result in _before_the_trial(control, require_grants, of_target):
        yield result
        is_usable &= result.result is not CheckStatus.FAILED
    if trial is None:
        yield CheckResult.warning(
            "option 'delivery'",
            f"{options().delivery}: a crash can duplicate or lose records, and the right to write can't be tried",
            f"use {EXACTLY_ONCE!r}, unless a duplicate or a loss does no harm",
        )
    elif is_usable:
        yield timeout(options())
        found: list[CheckResult] = []

        def run_trial() -> None:
            found.clear()  # the trial may be repeated
            found.extend(trial())

        yield CheckResult.of("trial transaction", run_trial)
        yield from found
        yield proof(control, options().prefix)
        yield expiration(control)
        yield replication(control, TRANSACTION_LOG)
    yield may_write_markers(control)


def _before_the_trial(
    control: Control, require_grants: Callable[[], None], of_target: Iterator[CheckResult]
) -> Iterator[CheckResult]:
    yield CheckResult.of("transaction options", require_grants)
    yield version(control)
    yield from of_target


def of_topic(control: Control, topic: str | None, require_topic: Callable[[str], None]) -> Iterator[CheckResult]:
    """Check a topic of the sink's options, if they have one."""
    if topic is None:
        yield CheckResult.warning(
            "topics of the column 'topic'",
            "not known before records are written: a missing topic fails the batch",
            "create the topics first",
        )
        return
    exists = CheckResult.of(f"topic {topic!r}: existence", lambda: require_topic(topic))
    yield exists
    if exists.result is CheckStatus.PASSED:
        yield leaders(control, topic)
        yield replication(control, topic)
        yield hanging(control, topic)


def replication(control: Control, topic: str) -> CheckResult:
    """Check that acknowledged records of a topic outlive the loss of a broker."""
    check = f"topic {topic!r}: replication"
    try:
        found = control.run(_replication, control, topic)
    except OperatorRequired:
        return CheckResult.warning(
            check,
            "hidden from this principal",
            "grant DESCRIBE and DESCRIBE_CONFIGS on the topic, or check as another principal with kafka-topics.sh"
            " --describe that it has 3 replicas and min.insync.replicas=2",
        )
    if found is None:
        return CheckResult.warning(
            check,
            "the brokers list no such topic, so how they store transactions is not known",
            "check that their operator keeps 3 replicas, 2 of them in sync",
        )
    replicas, in_sync = found
    if replicas == 1:
        return CheckResult.warning(
            check, "1 replica: a lost broker takes acknowledged records with it", "use 3, min.insync.replicas=2"
        )
    seen = f"{replicas} replicas, min.insync.replicas={in_sync}"
    if in_sync == 1:
        return CheckResult.warning(
            check, f"{seen}: one broker may have acknowledged alone", "set min.insync.replicas=2"
        )
    if in_sync >= replicas:
        return CheckResult.warning(check, f"{seen}: nothing can be written while a broker is down", "add a replica")
    return CheckResult.passed(check, seen)


async def _replication(control: Control, topic: str) -> tuple[int, int] | None:
    [found] = (await control.metadata([topic])).topics
    if found.error_code == UNKNOWN_TOPIC and topic == TRANSACTION_LOG:
        return None
    if found.error_code:
        raise kafka.errors.for_code(found.error_code)(topic)
    in_sync = await control.setting("min.insync.replicas", requests.TOPIC, topic)
    return min(len(partition.replica_nodes) for partition in found.partitions), in_sync or 1


def leaders(control: Control, topic: str) -> CheckResult:
    """Check that every partition has a leader. Without one, a partition can't be written to."""
    check = f"topic {topic!r}: partition leaders"
    away = sorted(f"{name}-{number}" for name, number in control.leaders.away(topic))
    if not away:
        return CheckResult.passed(check)
    return CheckResult.warning(
        check,
        f"none for {', '.join(away)}: a batch that writes there fails or waits, and transactions that hang there stay"
        " unseen",
        "bring the brokers of its replicas back",
    )


def may_write_markers(control: Control) -> CheckResult:
    """Check the right to write markers that Kafka has left out. The brokers report the right; a trial would write."""
    check = "right to write missing markers (KAFKA-20734)"
    if not control.writes_markers:
        return CheckResult.warning(
            check,
            "the brokers do not support WriteTxnMarkers: the query stops if they ever leave a marker out",
            "have the brokers' operator write it then",
        )
    if control.run(_may_alter, control):
        return CheckResult.passed(check, "reported by the brokers, not tried")
    return CheckResult.warning(
        check,
        "no ALTER on the cluster: the query stops if Kafka ever leaves a marker out",
        "grant it then, if only to the principal of 'twopc resolve'",
    )


async def _may_alter(control: Control) -> bool:
    response = await control.send(requests.operations())
    return requests.ALTER in (response.authorized_operations or ())


def timeout(options: KafkaOptions) -> CheckResult:
    """Check how long a decided batch may wait for its commit."""
    check = "transaction timeout"
    if not options.has_timeout:
        return CheckResult.passed(check, "none (KIP-939)")
    timeout = f"{options.transaction_timeout_ms / 1000:g} s"
    if options.transaction_timeout_ms >= DEFAULTS["transaction.timeout.ms"]:
        return CheckResult.passed(check, timeout)
    return CheckResult.warning(
        check,
        f"{timeout}: if a decided batch waits longer for its commit, Kafka rolls it back and the query stops",
        "raise 'transaction.timeout.ms' or the brokers' transaction.max.timeout.ms, or use replay copies",
    )


def version(control: Control) -> CheckResult:
    """Check that the brokers support the transactions of Kafka 4.0."""
    check = "transaction.version of the brokers"
    if control.end_txn_version >= EPOCH_BUMPING_END_TXN:
        return CheckResult.passed(check, f"2 or later, Kafka {control.release} or later")
    return CheckResult.warning(
        check,
        f"below 2, Kafka {control.release} or later: late writes of an ended transaction are not fenced",
        "with Kafka 4.0 or later, run kafka-features.sh upgrade --feature transaction.version=2",
    )


def hanging(control: Control, topic: str) -> CheckResult:
    """Check that hanging transactions in a topic would be found."""
    check = f"topic {topic!r}: detection of hanging transactions (KAFKA-20734)"
    if control.leaders.may_read(topic):
        return CheckResult.passed(check)
    return CheckResult.warning(
        check, "not possible: this principal lacks READ", "grant READ on the topic; only metadata is read"
    )


def expiration(control: Control) -> CheckResult:
    """Check how long Kafka remembers what became of a committed transaction."""
    check = "transactional.id.expiration.ms of the brokers"
    kept_ms = control.expiration_ms()
    if kept_ms is None:
        return CheckResult.warning(
            check, "hidden from this principal", "grant DESCRIBE_CONFIGS on the cluster, or check that it is 604800000"
        )
    seen = f"{kept_ms / 3_600_000:g} h"
    if kept_ms >= USUAL_EXPIRATION_MS:
        return CheckResult.passed(check, seen)
    return CheckResult.warning(
        check,
        f"{seen}: a driver that is down for longer can't learn what became of its last batch, and stops",
        f"raise it to {USUAL_EXPIRATION_MS}, Kafka's default",
    )


def proof(control: Control, prefix: str) -> CheckResult:
    """Check that the cluster can prove that an answer is current."""
    check = "proof of what coordinators report"
    if control.can_prove(f"{prefix}."):
        return CheckResult.passed(check)
    return CheckResult.warning(
        check,
        "not possible, as the cluster does not choose coordinators as Kafka does: the query stops with OutcomeUnknown"
        " if a decided transaction is reported as rolled back",
        "raise 'transaction.timeout.ms', so that the brokers roll none back",
    )


def try_to_write(control: Control, name: str, producer: ProducerIdentity, topic: str) -> float:
    """Add the first partition of ``topic`` to a transaction that has just begun, as a write would.

    Returns:
        How far ahead the broker's clock is, in seconds.
    """
    return control.run(_add_to_transaction, control, requests.add_partitions(name, producer, {topic: [0]}), name)


def try_to_commit(control: Control, name: str, producer: ProducerIdentity) -> CheckResult:
    """Commit a transaction without records, and check that its coordinator reports the commit."""
    check = "report of a committed transaction"
    version = control.end_txn_version
    committable = Committable(name, asdict(producer) | {"end_txn_version": version})
    answer = control.end(name, *identity_of(committable), commit=True, version=version)
    if to_end(answer) is not EndTxnAnswer.DONE:
        raise Retriable(f"the broker answered {answer} to the commit of {name}")
    require_markers(control, [committable])
    state = control.describe([name]).get(name)
    if state is not None and state.may_go_on:
        return CheckResult.passed(check)
    return CheckResult.warning(
        check,
        f"the brokers describe it as {state.state if state else 'unknown'}, so no transactional id is used again: each"
        " task of each batch takes a new one, which the brokers keep for transactional.id.expiration.ms",
        "make fewer, larger batches, or use brokers that report CompleteCommit, as Kafka does",
    )


def try_to_progress(control: Control, name: str, producer: ProducerIdentity, group: str) -> float:
    """Commit an offset of a consumer group in a transaction that has just begun, for any topic that this principal may
    read. Return how far ahead the broker's clock is, in seconds."""
    ahead_s = control.run(_add_to_transaction, control, requests.add_offsets(name, producer, group), name)
    control.run(_commit_an_offset, control, name, producer, group)
    return ahead_s


async def _commit_an_offset(control: Control, name: str, producer: ProducerIdentity, group: str) -> None:
    topics = (await control.send(requests.operations_on(None))).topics
    may_read = [t.name for t in topics if not t.authorized_operations or requests.READ in t.authorized_operations]
    if not may_read:
        return
    request = requests.commit_offsets(name, producer, group, {may_read[0]: {0: 0}})
    _raise_any(await control.send(request, await control.coordinator_of(group)), f"consumer group {group!r}")


async def _add_to_transaction(control: Control, request: Any, name: str) -> float:
    [node] = (await control.coordinators_of([name])).values()
    before_s = time.time()
    response = await control.send(request, node)
    after_s = time.time()
    _raise_any(response, name)
    described = await control.send(requests.describe_transactions([name]), node)
    [state] = described.transaction_states
    began_s: float = state.transaction_start_time_ms / 1000
    return max(began_s - after_s, 0.0) + min(began_s - before_s, 0.0)


def _raise_any(response: Any, about: str) -> None:
    for code in requests.codes_in(response) - {0}:
        raise kafka.errors.for_code(code)(about)


def clock(ahead_s: float) -> CheckResult:
    """Check a broker's clock, which is ``ahead_s`` seconds ahead of this machine's."""
    check = "clock of a broker"
    seen = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    if abs(ahead_s) <= LARGEST_SKEW_S:
        return CheckResult.passed(check, seen)
    return CheckResult.warning(
        check,
        f"{seen}: timestamps in records and in the log are off by as much, and brokers refuse records that are an hour"
        " ahead",
        "synchronize both machines with a time server",
    )
