"""What the broker answers to EndTxn, measured again, and what the sinks make of it.

For transactions with records, and for those with nothing but a consumer group's offsets.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.kafka.writing import written
from twopc import Committable, Participant, Round
from twopc.errors import CorruptLog, OperatorRequired, OutcomeUnknown, Retriable, RoundAborted, TransactionLost
from twopc_kafka import KafkaSink, ending, leases
from twopc_kafka.answers import TransactionState
from twopc_kafka.client.control import Control, name_beside
from twopc_kafka.handles import identity_of, version_of
from twopc_kafka.offsets_sink import KafkaProgressSink
from twopc_kafka.writers.librdkafka import Writer
from twopc_kafka.writers.offsets import COLUMNS
from twopc_kafka_broker import KafkaBroker

UNANSWERED = "-"  # the table has no such row

# facts.md: state → the answers to commit by version 4, commit by 5, abort by 4, abort by 5.
ANSWERS_MEASURED = {
    "ongoing": ("NO_ERROR", "NO_ERROR", "NO_ERROR", "NO_ERROR"),
    "committed by the same version": ("NO_ERROR", "NO_ERROR", "INVALID_TXN_STATE", UNANSWERED),
    "timed out": ("PRODUCER_FENCED", "INVALID_TXN_STATE", "PRODUCER_FENCED", "NO_ERROR"),
    "aborted by the same version": ("INVALID_TXN_STATE", "INVALID_TXN_STATE", "NO_ERROR", "NO_ERROR"),
    "re-initialised": ("PRODUCER_FENCED", "PRODUCER_FENCED", "PRODUCER_FENCED", "PRODUCER_FENCED"),
    "unknown id": ("INVALID_PRODUCER_ID_MAPPING", "INVALID_PRODUCER_ID_MAPPING", UNANSWERED, UNANSWERED),
}
ACTIONS = tuple(product((True, False), (4, 5)))  # (commit?, version), in the order of the columns

CASES = [
    pytest.param(state, commit, version, answer, id=f"{'commit' if commit else 'abort'}-{version}-{state}")
    for state, answers in ANSWERS_MEASURED.items()
    for (commit, version), answer in zip(ACTIONS, answers, strict=True)
    if answer != UNANSWERED
]
BY_COMMIT = {
    "ongoing": None,
    "committed by the same version": None,
    "timed out": TransactionLost,
    "aborted by the same version": TransactionLost,
    "re-initialised": OutcomeUnknown,
    "unknown id": OutcomeUnknown,
}


BACKENDS: dict[str, tuple[type[KafkaSink], dict[str, str], pa.RecordBatch]] = {
    "records": (KafkaSink, {"topic": "settling"}, pa.record_batch({"value": ["a"]})),
    "offsets": (
        KafkaProgressSink,
        {"group.id": "settling"},
        pa.record_batch([["settling"], pa.array([0], pa.int32()), [1]], list(COLUMNS)),
    ),
}
"""What a transaction holds → the sink, its options, and what is written to it."""


class Prepared:
    """One transaction for each case, each in its state. All are made at once: a time-out takes its time."""

    def __init__(self, make_sink: Callable[[int], KafkaSink], batch: pa.RecordBatch, wait: Any) -> None:
        self.sink = make_sink(900_000)
        self.control: Control = self.sink._control
        self._brief = make_sink(1000)
        self._batch = batch
        self._wait = wait
        self._made = 0
        self.transactions = {
            (state, commit, version): self._begun(state, version)
            for state in ANSWERS_MEASURED
            for commit, version in ACTIONS
        }
        for (state, _, _), committable in self.transactions.items():
            if state == "timed out":
                self.wait_for("CompleteAbort", committable)

    def _begun(self, state: str, version: int) -> Committable:
        self._made += 1
        sink = self._brief if state == "timed out" else self.sink
        with Participant({"orders": sink}, Round(1, 0), partition=self._made) as participant:
            participant.write("orders", self._batch)
            vote = participant.pre_commit()["orders"]
        committable = replace(vote, handle={**vote.handle, "end_txn_version": version})
        match state:
            case "committed by the same version":
                assert self.end(committable, commit=True) == "NO_ERROR"
                self.wait_for("CompleteCommit", committable)
            case "aborted by the same version":
                assert self.end(committable, commit=False) == "NO_ERROR"
                self.wait_for("CompleteAbort", committable)
            case "re-initialised":
                Writer(sink._options, committable.transaction_id)
            case "unknown id":
                return replace(committable, transaction_id=leases.lease(sink.transactional_ids.scope, (1, 0)).name)
        return committable

    def end(self, committable: Committable, *, commit: bool) -> str:
        return self.control.end(committable.transaction_id, *identity_of(committable), commit, version_of(committable))

    def state(self, committable: Committable) -> TransactionState:
        return self.control.describe([committable.transaction_id])[committable.transaction_id]

    def wait_for(self, state: str, committable: Committable) -> None:
        self._wait.until(f"{committable.transaction_id} is {state}", lambda: self.state(committable).state == state)


@pytest.fixture(scope="module")
def broker_with_topic(broker_to_kill: Any) -> KafkaBroker:
    broker: KafkaBroker = broker_to_kill.broker
    broker.start()  # a failed test may have left it dead
    broker.create_topic("settling")
    return broker


@pytest.fixture(scope="module", params=list(BACKENDS))
def prepared(request: pytest.FixtureRequest, broker_with_topic: KafkaBroker, wait: Any) -> dict[str, Prepared]:
    """Two of them: one to measure the broker, one for the sink to judge."""
    backend, options, batch = BACKENDS[request.param]

    def make_sink(use: str, timeout_ms: int) -> KafkaSink:
        common = {
            "bootstrap.servers": broker_with_topic.bootstrap_servers,
            "transactional.id.prefix": f"{request.param}-to-{use}",
            "transaction.timeout.ms": timeout_ms,
        }
        sink = backend({**common, **options})
        sink.bind("orders", "log")
        return sink

    return {use: Prepared(partial(make_sink, use), batch, wait) for use in ("measure", "judge")}


@pytest.mark.variants
@pytest.mark.parametrize(("state", "commit", "version", "answer"), CASES)
def test_the_broker_answers_as_the_table_says(
    prepared: dict[str, Prepared], state: str, commit: bool, version: int, answer: str
) -> None:
    of = prepared["measure"]
    assert of.end(of.transactions[state, commit, version], commit=commit) == answer


@pytest.mark.in_turn("prepared")
@pytest.mark.parametrize(("state", "commit", "version", "_answer"), CASES)
def test_the_sink_judges_each_answer(
    prepared: dict[str, Prepared], wait: Any, state: str, commit: bool, version: int, _answer: str
) -> None:
    of = prepared["judge"]
    committable = of.transactions[state, commit, version]
    expected = BY_COMMIT[state] if commit else None  # aborting what is not open any more is a success
    if expected is None:
        wait.repeated(lambda: (of.sink.commit if commit else of.sink.abort)(committable))
    else:
        with pytest.raises(expected, match=committable.transaction_id):
            of.sink.commit(committable)


def test_a_transaction_that_timed_out_after_its_decision_is_lost_and_the_message_says_what_to_do(
    prepared: dict[str, Prepared],
) -> None:
    of = prepared["judge"]
    committable = of.transactions["timed out", True, 5]
    with pytest.raises(TransactionLost) as lost:
        of._brief.commit(committable)
    told = (committable.transaction_id, "(1 records)", "'transaction.timeout.ms' (1000 ms)", of.sink.if_lost)
    assert all(part in str(lost.value) for part in told)


@pytest.mark.variants
@pytest.mark.parametrize("version", [4, 5])
def test_an_abort_by_an_old_epoch_leaves_the_newer_transaction_of_that_name_alone(
    version: int, topic: Any, make_sink: Any, pre_commit: Any, wait: Any
) -> None:
    old = pre_commit(make_sink(topic), ["old"], Round(1, 0))
    taking_over = Writer(make_sink(topic)._options, old.transaction_id)
    taking_over.write(pa.record_batch({"value": ["new"]}))
    identity = taking_over.finish()
    assert identity is not None
    [new] = make_sink(topic).seal([Committable(old.transaction_id, asdict(identity), 1)], age_s=0)
    make_sink(topic).abort(replace(old, handle={**old.handle, "end_txn_version": version}))
    [still_open] = make_sink(topic).recover()
    assert still_open.is_same_transaction(new)
    wait.repeated(lambda: make_sink(topic).commit(new))
    topic.becomes(["new"])


@pytest.mark.parametrize(
    ("answers", "patience_s", "expected"),
    [
        (["CONCURRENT_TRANSACTIONS", Retriable("no broker answered"), "NOT_COORDINATOR"], 10.0, None),
        (["CONCURRENT_TRANSACTIONS"], 0.0, Retriable),
        (["AN_ERROR_OF_KAFKA_9"], 0.0, Retriable),  # the broker describes it as ongoing
        (["TRANSACTIONAL_ID_AUTHORIZATION_FAILED"], 10.0, OperatorRequired),
        (["UNSUPPORTED_VERSION"], 10.0, OperatorRequired),
    ],
)
def test_a_task_repeats_its_rollback_until_it_is_certain_and_does_not_wait_for_ever(
    answers: list[str | Retriable],
    patience_s: float,
    expected: type[Exception] | None,
    answer_first: Any,
    sink: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    sink.write(transaction, pa.record_batch({"value": ["a"]}))
    transaction.writer.finish()  # so that the broker has the record, and the transaction
    left = answer_first(answers)
    monkeypatch.setattr(ending, "ABORT_TIMEOUT_S", patience_s)
    if expected is None:
        sink.discard(transaction)
        assert sink.recover() == []
    else:
        with pytest.raises(expected):
            sink.discard(transaction)
    assert not left


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("COORDINATOR_LOAD_IN_PROGRESS", Retriable),
        ("CONCURRENT_TRANSACTIONS", Retriable),
        ("AN_ERROR_OF_KAFKA_9", Retriable),
        ("CLUSTER_AUTHORIZATION_FAILED", OperatorRequired),
    ],
)
def test_a_commit_is_no_success_while_the_transaction_is_open(
    answer: str, expected: type[Exception], topic: Any, make_sink: Any, pre_commit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = pre_commit(make_sink(topic), ["a"])
    monkeypatch.setattr(Control, "end", lambda *_, **__: answer)
    with pytest.raises(expected):
        make_sink(topic).commit(committable)


@pytest.mark.advice("can't be committed any more: it was pre-committed as")
def test_a_transaction_that_is_not_ongoing_any_more_is_vetoed_before_the_decision_and_run_again(
    topic: Any, make_sink: Any, pre_commit: Any, wait: Any
) -> None:
    committable = pre_commit(make_sink(topic), ["a"])
    make_sink(topic).abort(committable)
    with pytest.raises(
        RoundAborted,
        match=r"can't be committed any more: it was pre-committed as.* A longer 'transaction.timeout.ms' helps",
    ):
        make_sink(topic).seal([committable], age_s=0)
    again = pre_commit(make_sink(topic), ["a"], Round(2, 0))
    wait.repeated(lambda: make_sink(topic).commit(again))
    topic.becomes(["a"])


# Who owns what. -------------------------------------------------------------------------------------------------------


def test_only_the_log_and_sink_of_that_very_name_are_listed(topic: Any, prefix: str, make_sink: Any) -> None:
    """A dot in a prefix is a character of a regular expression, and one prefix may begin with another."""
    ours = f"{prefix}.a"
    look_alikes = {f"{prefix}xa": "log", f"{prefix}.ab": "log", f"{prefix}.a.log": "log", ours: "log2"}
    for other, log_id in look_alikes.items():
        written(make_sink(topic, log_id, transactional_id_prefix=other), "a")
    sink = make_sink(topic, transactional_id_prefix=ours)
    owned = written(sink, "a").transaction_id
    assert [found.transaction_id for found in sink.recover()] == [owned]
    assert sink._control.list_ongoing(sink.transactional_ids.scope) == [owned]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_what_a_forged_log_names_of_another_is_refused_and_stays(
    topic: Any, make_sink: Any, pre_commit: Any, end: str
) -> None:
    others = pre_commit(make_sink(topic, "other"), ["a"])
    with pytest.raises(CorruptLog, match=r"which is none of .*Nothing was touched"):
        getattr(make_sink(topic, "log"), end)(others)
    [still_open] = make_sink(topic, "other").recover()
    assert still_open.is_same_transaction(others)
    make_sink(topic, "other").abort(others)


@pytest.mark.parametrize(
    "forged",
    [
        {"producer_id": 2**63},
        {"producer_id": -1},
        {"producer_epoch": 2**15},
        {"producer_epoch": True},
        {"producer_id": "1"},
    ],
    ids=str,
)
def test_a_number_that_kafka_can_not_have_given_is_in_doubt(sink: Any, pre_commit: Any, forged: dict[str, Any]) -> None:
    committable = pre_commit(sink, ["a"])
    with pytest.raises(OutcomeUnknown, match=next(iter(forged))):
        sink.commit(replace(committable, handle={**committable.handle, **forged}))
    sink.abort(committable)


def test_a_coordinator_that_moved_is_found_again(topic: Any, make_sink: Any, pre_commit: Any) -> None:
    """The broker that coordinated an id may be gone for good: the next call asks anew which one does now."""
    committable = pre_commit(make_sink(topic), ["a"])
    sink = make_sink(topic)
    gone = 99
    sink._control._coordinators[committable.transaction_id] = gone
    with pytest.raises(Retriable):
        sink.commit(committable)
    sink.commit(committable)
    topic.becomes(["a"])


def test_brokers_that_came_back_at_other_addresses_are_found_again(topic: Any, wait: Any) -> None:
    control = Control({"bootstrap_servers": [topic.servers]})
    control.list_ongoing("twopc")
    [broker] = control.manager.cluster.brokers()
    port, broker.port = broker.port, 1  # as where it was before
    control.manager._conns.clear()
    with pytest.raises(Retriable):
        control.list_ongoing("twopc")
    wait.repeated(lambda: control.list_ongoing("twopc"))
    assert [broker.port for broker in control.manager.cluster.brokers()] == [port]
    control.close()


def test_an_answer_about_very_many_transactions_is_not_too_long(topic: Any, sink: Any) -> None:
    """A driver that died with 10 000 of them open."""
    scope = sink.transactional_ids.scope
    names = [f"{scope}{number:016x}.0" for number in range(30_000)]
    control = Control({"bootstrap_servers": [topic.servers]})
    assert control.describe(names) == {}
    control.close()


def test_a_broker_that_joined_after_the_connection_was_made_is_asked_too(
    topic: Any, sink: Any, pre_commit: Any, wait: Any
) -> None:
    committable = pre_commit(sink, ["a"])
    control = Control({"bootstrap_servers": [topic.servers]})
    control.list_ongoing("twopc")
    control.manager.cluster._brokers.clear()  # as before it joined
    assert wait.repeated(control.list_ongoing, committable.transaction_id) == [committable.transaction_id]
    control.close()


def test_coordinators_that_another_thread_forgets_meanwhile_are_known_to_this_one(
    topic: Any, make_sink: Any, pre_commit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make_sink(topic)
    names = {pre_commit(make_sink(topic), ["a"], partition=number).transaction_id for number in range(2)}
    control = Control({"bootstrap_servers": [topic.servers]})
    control.describe([min(names)])
    find = control.find

    async def found_while_another_call_fails(*asked: Any) -> Any:
        found = await find(*asked)
        control._coordinators.clear()
        return found

    monkeypatch.setattr(control, "find", found_while_another_call_fails)
    assert control.describe(sorted(names)).keys() == names
    control.close()
    for left in sink.recover():
        sink.abort(left)


@pytest.mark.parametrize("start", ["twopc.a.b.probe", "x", "prefix.of.0123456789.sink-" * 4])
@pytest.mark.parametrize("name", ["twopc.84b703e52d86.orders.7.3.1999.0", "a", "Aa", "polygenelubricants"])
def test_a_name_beside_another_is_in_the_same_partition_of_the_transaction_log(name: str, start: str) -> None:
    beside = name_beside(name, start)
    assert beside.startswith(start)
    assert len(beside) == len(start) + 7
    assert hash_of_java(beside) == hash_of_java(name)


def hash_of_java(text: str) -> int:
    """``String.hashCode``, as its documentation defines it: s[0]*31^(n-1) + ... + s[n-1], in 32 bits with a sign."""
    total: int = sum(ord(character) * 31 ** (len(text) - 1 - place) for place, character in enumerate(text))
    return (total + 2**31) % 2**32 - 2**31


def test_what_a_coordinator_says_is_proven_by_a_write_that_leaves_nothing_open(sink: Any, pre_commit: Any) -> None:
    committable = pre_commit(sink, ["a"])
    name, scope = committable.transaction_id, sink.transactional_ids.scope
    assert sink._control.describe_proven([name, f"{name}0"], scope) == sink._control.describe([name])
    assert [found.transaction_id for found in sink.recover()] == [name]
    written = name_beside(name, f"{scope}probe")
    assert sink._control.describe([written])[written].state == "Empty"
    sink.abort(committable)


def test_threads_that_ask_at_once_share_one_connection(topic: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from twopc_kafka.client.control import control_of

    properties = {"bootstrap_servers": [topic.servers], "client_id": topic.name}  # not connected before
    with ThreadPoolExecutor(8) as pool:
        connections = list(pool.map(lambda _: control_of(properties), range(8)))
    assert all(connection is connections[0] for connection in connections)
