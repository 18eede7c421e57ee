"""Many commits over one connection, without a wait for each answer. What gets no answer is in doubt."""

from dataclasses import replace
from typing import Any

import kafka.errors
import pytest
from kafka.future import Future
from kafka.protocol.producer.transaction import EndTxnRequest

from twopc import Committable
from twopc.errors import OutcomeUnknown, Retriable, TransactionLost
from twopc_kafka.client import control
from twopc_kafka.client.control import Control
from twopc_kafka.writers.librdkafka import Writer


def pre_committed(number: int, sink: Any, pre_commit: Any) -> list[Committable]:
    return [pre_commit(sink, [f"{each:02}"], partition=each) for each in range(number)]


def ids(committables: list[Committable]) -> list[str]:
    return [committable.transaction_id for committable in committables]


class Unanswered:
    """Counts the commits that are sent, and loses the answer to one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, lost: int) -> None:
        self.sent, send = 0, Control.send

        def sent(control: Control, request: Any, node: int | None = None) -> Any:
            answer = send(control, request, node)
            self.sent += isinstance(request, EndTxnRequest)
            if self.sent != lost or not isinstance(request, EndTxnRequest):
                return answer
            unanswered = Future()
            answer.add_both(lambda _: unanswered.failure(kafka.errors.RequestTimedOutError("lost")))
            return unanswered

        patch.setattr(Control, "send", sent)


@pytest.mark.variants
@pytest.mark.parametrize("version", [4, 5])
def test_all_transactions_are_committed_by_one_call(version: int, topic: Any, make_sink: Any, pre_commit: Any) -> None:
    due = [
        replace(each, handle={**each.handle, "end_txn_version": version})
        for each in pre_committed(40, make_sink(topic), pre_commit)
    ]
    assert sorted(make_sink(topic).commit_many(due)) == sorted(ids(due))
    topic.becomes([f"{each:02}" for each in range(40)])


def test_a_transaction_that_is_rolled_back_is_left_to_its_own_commit(
    topic: Any, make_sink: Any, pre_commit: Any, wait: Any
) -> None:
    due, sink = pre_committed(3, make_sink(topic), pre_commit), make_sink(topic)
    sink.abort(due[1])
    assert sorted(sink.commit_many(due)) == sorted(ids([due[0], due[2]]))
    with pytest.raises(TransactionLost):
        wait.repeated(lambda: sink.commit(due[1]))  # its markers may be on their way
    topic.becomes(["00", "02"])


def test_a_transaction_whose_id_another_client_took_was_refused_at_first(
    topic: Any, make_sink: Any, pre_commit: Any
) -> None:
    due, sink = pre_committed(2, make_sink(topic), pre_commit), make_sink(topic)
    Writer(sink._options, due[1].transaction_id)
    assert list(sink.commit_many(due)) == ids(due[:1])
    with pytest.raises(OutcomeUnknown) as unknown:
        sink.commit(due[1])
    assert unknown.value.was_refused_at_first


def test_nothing_counts_as_asked_for_if_no_coordinator_is_found(
    topic: Any, make_sink: Any, pre_commit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    due, sink = pre_committed(2, make_sink(topic), pre_commit), make_sink(topic)

    async def away(*_: object) -> None:
        raise kafka.errors.CoordinatorNotAvailableError

    with monkeypatch.context() as patch:
        patch.setattr(Control, "coordinators_of", away)
        with pytest.raises(Retriable):
            sink.commit_many(due)
    assert sink._asked_to_commit == set()
    assert sorted(sink.commit_many(due)) == sorted(ids(due))


@pytest.mark.long
def test_what_gets_no_answer_is_in_doubt_and_no_further_commit_is_sent(
    topic: Any, make_sink: Any, pre_commit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    due, sink = pre_committed(40, make_sink(topic), pre_commit), make_sink(topic)
    sending = Unanswered(monkeypatch, lost=2)
    committed = sink.commit_many(due)
    assert due[1].transaction_id not in committed
    assert sending.sent <= control.COMMITS_UNDER_WAY + 1
    assert len(committed) == sending.sent - 1
    assert len(sink._asked_to_commit) == 1  # the others were answered, or not asked
    for each in due:
        sink.commit(each)
    topic.becomes([f"{each:02}" for each in range(40)])


def test_requests_are_sent_for_a_bounded_time(
    topic: Any, make_sink: Any, pre_commit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    due, sink = pre_committed(3, make_sink(topic), pre_commit), make_sink(topic)
    monkeypatch.setattr(control, "COMMITTING_S", -1.0)
    assert list(sink.commit_many(due)) == []
    assert sink._asked_to_commit == set()
    for each in due:
        sink.commit(each)
    topic.becomes(["00", "01", "02"])


def test_nothing_is_committed_if_a_topic_was_deleted(
    topic: Any, make_sink: Any, pre_commit: Any, recreate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    due, sink = pre_committed(2, make_sink(topic), pre_commit), make_sink(topic)
    recreate(topic)
    monkeypatch.setattr("twopc_kafka.sink.METADATA_MAX_AGE_S", 0.0)  # what was looked up before is too old
    assert list(sink.commit_many(due)) == []
    with pytest.raises(TransactionLost):
        sink.commit(due[0])


def test_records_without_a_transaction_need_no_request(topic: Any, make_sink: Any, pre_commit: Any) -> None:
    sink = make_sink(topic, delivery="at-least-once")
    due = [Committable(f"none {each}", {}) for each in range(2)]
    assert list(sink.commit_many(due)) == ids(due)
