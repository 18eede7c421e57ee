"""What Kafka's answers mean: every combination, against the table of facts that was measured on a broker."""

import contextlib
from itertools import product
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import KafkaError

from twopc import Committable
from twopc.errors import OperatorRequired, Refused, RoundAborted, TwoPhaseCommitError
from twopc_kafka import ending
from twopc_kafka.answers import MEANINGS, EndTxnAnswer, Outcome, TransactionState, hangs, meaning, outcome, to_end
from twopc_kafka.client.control import Control
from twopc_kafka.options import KafkaOptions
from twopc_kafka.writers.librdkafka import Writer, _Reports

PRODUCER, EPOCH = 7, 40
STATES = (
    *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence"),
    *("Dead", "SomethingOfKafka9"),
)
EPOCHS_SINCE = (-1, 0, 1, 2, 30)
VERSIONS = (0, 4, 5, 6)
CASES = [*product(STATES, EPOCHS_SINCE, VERSIONS)]
"""State, epochs since, and version: every combination."""

REPEATED = [
    *("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS"),
    *("UNKNOWN_SERVER_ERROR", "REQUEST_TIMED_OUT", "NETWORK_EXCEPTION"),
]

ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


def known(version: int) -> dict[tuple[str, int], Outcome]:
    """(state, epochs since) → the outcome. What is not here can't be told."""
    told = {("Ongoing", 0): Outcome.ONGOING}
    told |= {(state, since): Outcome.ENDING for state in ENDING for since in (0, 1)}
    # A commit up to version 4 leaves the epoch alone, a later one raises it by one; unless the cluster's version of
    # transactions was lowered, and it was committed by 4.
    told |= {("CompleteCommit", since): Outcome.COMMITTED for since in ((0,) if version <= 4 else (0, 1))}
    # Rolled back by its own writer: the epoch stays. By a time-out, or an abort of version 5: one more.
    told |= {("CompleteAbort", since): Outcome.ROLLED_BACK for since in (0, 1)}
    return told


@pytest.mark.parametrize("producer", [PRODUCER, PRODUCER + 1])
def test_the_outcome_follows_from_state_epoch_version_and_the_same_producer(producer: int) -> None:
    for state, since, version in CASES:
        expected = known(version).get((state, since), Outcome.UNKNOWN) if producer == PRODUCER else Outcome.UNKNOWN
        found = outcome(TransactionState(state, producer, EPOCH + since), PRODUCER, EPOCH, version)
        assert found is expected, (state, since, version)


@pytest.mark.parametrize("state", STATES)
def test_an_id_is_used_again_only_after_a_commit(state: str) -> None:
    assert TransactionState(state, PRODUCER, EPOCH).may_go_on is (state == "CompleteCommit")


@pytest.mark.parametrize(
    ("producer", "since", "expected"), [(PRODUCER, 1, True), (PRODUCER, 2, False), (PRODUCER, 0, False), (8, 0, True)]
)
def test_a_description_of_the_past_is_noticed_by_the_epoch_of_the_beginning(
    producer: int, since: int, expected: bool
) -> None:
    assert TransactionState("CompleteCommit", PRODUCER, EPOCH).precedes(producer, EPOCH + since) is expected


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_known_of_a_transaction_whose_id_has_expired(version: int) -> None:
    assert outcome(None, PRODUCER, EPOCH, version) is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("means", "errors"),
    [
        (EndTxnAnswer.DONE, ["NO_ERROR"]),
        (EndTxnAnswer.STUCK, ["UNSUPPORTED_VERSION"]),
        (EndTxnAnswer.REPEAT, REPEATED),
        (EndTxnAnswer.DENIED, ["CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"]),
    ],
)
def test_these_answers_alone_end_a_transaction_or_the_query_or_are_asked_for_again(
    means: EndTxnAnswer, errors: list[str]
) -> None:
    assert [each.name for each in MEANINGS.values() if each.to_end is means] == errors


@pytest.mark.parametrize("error", ["AN_ERROR_OF_KAFKA_9", meaning(4242).name])
def test_an_answer_in_no_table_leaves_the_outcome_open(error: str) -> None:
    assert to_end(error) is EndTxnAnswer.DESCRIBE


@pytest.mark.parametrize(
    ("looks_s", "is_told"), [((0, 9, 18, 27, 36, 41), True), ((0, 9, 41, 50), False), ((0, 41), False)]
)
def test_a_transaction_counts_as_stuck_only_if_no_long_silence_came_between(
    looks_s: tuple[float, ...], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = list(reversed(looks_s))
    monkeypatch.setattr(ending, "time", SimpleNamespace(monotonic=clock.pop))
    monkeypatch.setattr(ending, "_looks_stuck", lambda *_: True)
    committable, looked = Committable("a", {"producer_id": PRODUCER, "producer_epoch": EPOCH}), ending.Stuck()
    while clock[1:]:
        looked.refuse(cast("Control", None), committable)
    with pytest.raises(OperatorRequired) if is_told else contextlib.nullcontext():
        looked.refuse(cast("Control", None), committable)


def test_no_two_codes_have_one_name() -> None:
    assert len({each.name for each in MEANINGS.values()}) == len(MEANINGS)


def test_only_what_was_surely_rolled_back_hangs() -> None:
    for state, since, version in CASES:
        rolled_back = state == "CompleteAbort" and since in (0, 1)
        initialised_since = state in ("Empty", "Ongoing") and since == 1
        another_committed_since = state == "CompleteCommit" and since == 1 and version <= 4
        two_epochs_since = since >= 2
        expected = rolled_back or initialised_since or another_committed_since or two_epochs_since
        found = hangs(TransactionState(state, PRODUCER, EPOCH + since), EPOCH, version)
        assert found is expected, (state, since, version)


# librdkafka. ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_fatal", [False, True])
@pytest.mark.parametrize(
    ("code", "may_pass", "kind"),
    [
        *((code, False, OperatorRequired) for code in (29, 53)),
        *((code, False, RoundAborted) for code in (45, 47, 49, 90, KafkaError._FENCED, KafkaError._FATAL)),
        (4242, False, Refused),
        (4242, True, RoundAborted),  # librdkafka knows what this sink does not
    ],
)
def test_what_a_broker_refuses_for_good_stops_the_query_although_it_ends_the_producer(
    code: int, may_pass: bool, kind: type[TwoPhaseCommitError], is_fatal: bool
) -> None:
    writer = object.__new__(Writer)
    writer._transactional, writer._transactional_id = True, "id"
    writer._options = cast("KafkaOptions", SimpleNamespace(bootstrap_servers="broker:9092"))
    writer._has_ended, writer._reports = False, _Reports()
    error = KafkaError(code, "x", is_fatal, may_pass)
    if is_fatal:
        writer._reports.broken = error
    else:
        writer._reports.failures.append((error, "orders", 0))
    with pytest.raises(TwoPhaseCommitError) as raised:
        writer._raise_failures()
    assert type(raised.value) is kind
