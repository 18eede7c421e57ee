"""What the writer does about brokers that refuse, throttle, move or fall silent. The broker is real; where it can't be
brought to an answer, the answer is put into its mouth, before or after it has done what it was asked."""

import contextlib
import re
from typing import Any

import kafka.errors
import pyarrow as pa
import pytest
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

from tests.sinks.kafka.writing import sealed, written
from tests.support import kills
from tests.support.broker_properties import needs_kafka
from tests.support.pages import DOCS
from twopc import Committable, Participant, Round
from twopc.errors import ConfigurationError, OperatorRequired, RecordRefused, Refused, RoundAborted
from twopc_kafka.answers import MEANINGS, WriteAnswer, failure, lasting, meaning
from twopc_kafka.client import control, requests
from twopc_kafka.client.cluster import Cluster
from twopc_kafka.client.retry import NotSent, Unanswered
from twopc_kafka.writers import sender as sending
from twopc_kafka.writers.encoding.produce import Produce

RAISED = {
    WriteAnswer.RUN_AGAIN: RoundAborted,
    WriteAnswer.CORRECT: ConfigurationError,
    WriteAnswer.REFUSED: RecordRefused,
    WriteAnswer.DENIED: OperatorRequired,
}

# Of the errors that Kafka's own documents and code give for the three requests (4.3).
PRODUCE = (2, 3, 5, 6, 7, 10, 13, 17, 18, 19, 20, 21, 29, 31, 32, 35, 42, 43)
IDEMPOTENT_PRODUCE = (45, 46, 47, 48, 49, 51, 53, 56, 59, 76, 87, 90, 100, 120)
INIT_PRODUCER_ID = (14, 15, 16, 31, 42, 47, 48, 49, 50, 51, 52, 53, 89, 90, 120)
INIT_PRODUCER_ID_REPEATED = (14, 15, 16, 51)
ADD_PARTITIONS = (3, 14, 15, 16, 29, 42, 47, 48, 49, 51, 53, 55, 90, 120)


def test_every_code_of_the_three_requests_has_a_meaning_and_what_fails_says_what_to_do() -> None:
    assert set(PRODUCE + IDEMPOTENT_PRODUCE + INIT_PRODUCER_ID + ADD_PARTITIONS) <= set(MEANINGS)
    assert all(each.advice for each in MEANINGS.values())


@pytest.mark.parametrize("code", [4, 22, 4242])  # of fetching, of a member's commit, of a Kafka to come
def test_an_answer_in_no_table_stops_with_its_code(code: int) -> None:
    raised = failure(meaning(code), "a batch was refused")
    assert type(raised) is Refused
    assert f"(error code {code})" in raised.message
    refused = lasting(kafka.errors.for_code(code)("orders-1"))
    assert type(refused) is Refused
    assert f"(error code {code})" in refused.message


def test_the_page_on_the_sink_has_each_code_in_its_class() -> None:
    rows = re.findall(r"^\| (.*?) \| (.*?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    in_table = {name: codes for name, _, codes in rows if name in CLASSES}
    for name, answer in CLASSES.items():
        codes = [f"{each.name} ({code})" for code, each in sorted(MEANINGS.items()) if each.answer is answer]
        assert in_table[name] == ", ".join(codes)
    assert {each.answer for code, each in MEANINGS.items() if code} == set(CLASSES.values())


def test_only_a_lost_connection_or_an_answer_known_as_temporary_is_repeated_over_the_control_connection() -> None:
    answers = {code: lasting(kafka.errors.for_code(code)("orders-1")) for code in MEANINGS if code}
    passing = {code for code, refusal in answers.items() if refusal is None}
    assert passing == {code for code in MEANINGS if meaning(code).answer in (WriteAnswer.REPEAT, WriteAnswer.RUN_AGAIN)}
    assert lasting(kafka.errors.KafkaConnectionError("gone")) is None


def test_a_success_is_one_code_alone_and_only_what_had_no_effect_or_is_numbered_is_repeated() -> None:
    assert [code for code, each in MEANINGS.items() if each.answer is WriteAnswer.DONE] == [0]
    assert {3, 5, 6, 9, 14, 15, 16, 19, 51, 74, 75, 78, 89} == set(REPEATED)


PAGE = DOCS / "internals" / "kafka.md"
CLASSES = {
    "temporary": WriteAnswer.REPEAT,
    "the attempt failed": WriteAnswer.RUN_AGAIN,
    "record": WriteAnswer.REFUSED,
    "configuration": WriteAnswer.CORRECT,
    "right": WriteAnswer.DENIED,
}


SAME_NAME = Round(1, 4)  # as that of round (1, 0)

# Answers that are put into the broker's mouth. ------------------------------------------------------------------------


def refusing(request: Any, code: int) -> Any:
    match request:
        case ProduceRequest():
            part = ProduceResponse.TopicProduceResponse
            return ProduceResponse(
                responses=[
                    part(
                        name=topic.name,
                        partition_responses=[
                            part.PartitionProduceResponse(index=each.index, error_code=code, base_offset=-1)
                            for each in topic.partition_data
                        ],
                    )
                    for topic in request.topic_data
                ]
            )
        case AddPartitionsToTxnRequest():
            result = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
            return AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=[
                    result(
                        name=topic.name,
                        results_by_partition=[
                            result.AddPartitionsToTxnPartitionResult(partition_index=each, partition_error_code=code)
                            for each in topic.partitions
                        ],
                    )
                    for topic in request.v3_and_below_topics
                ]
            )
        case _:
            return InitProducerIdResponse(error_code=code)


def refuses(response: Any) -> bool:
    """Whether a Produce was refused."""
    return isinstance(response, ProduceResponse) and any(
        partition.error_code for topic in response.responses for partition in topic.partition_responses
    )


@pytest.fixture
def broker_answers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the broker answer the first requests of a kind by codes, or by an error; ``having_done`` what was asked."""
    real = Cluster.send

    def prepare(kind: Any, *answers: int | Exception, having_done: bool = False) -> list[Any]:
        left = list(answers)

        async def send(cluster: Cluster, node: int, request: Any, timeout_ms: int | None = None) -> Any:
            if not isinstance(request, kind) or not left:
                return await real(cluster, node, request, timeout_ms)
            if having_done:
                response = await real(cluster, node, request, timeout_ms)
                if refuses(response):
                    return response  # it has not done it: the broker does not lead so new a topic yet
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return refusing(request, answer)

        monkeypatch.setattr(Cluster, "send", send)
        return left

    return prepare


@pytest.fixture
def partitions_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "IMPLICIT_PARTITIONS", 99)


def uncommitted(topic: Any) -> list[bytes]:
    return [record.value for record in topic.records("read_uncommitted")]


@pytest.fixture
def requests_sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int]]:
    """The requests with records, and of how many partitions each has some."""
    real, seen = sending.Sending._produce, list[tuple[Any, int]]()

    def produce(self: Any, lanes: Any) -> Any:
        seen.append((real(self, lanes), len(lanes)))
        return seen[-1][0]

    monkeypatch.setattr(sending.Sending, "_produce", produce)
    return seen


def test_all_replicas_in_sync_must_have_the_records(requests_sent: list[tuple[Any, int]], sink: Any) -> None:
    vote = written(sink, "a")
    assert {(request.acks, request.transactional_id) for request, _ in requests_sent} == {(-1, vote.transaction_id)}


def test_the_partitions_of_a_broker_share_a_request(
    requests_sent: list[tuple[Any, int]], make_topic: Any, make_sink: Any
) -> None:
    batch = pa.record_batch({"value": ["a"] * 100, "key": [str(n) for n in range(100)]})
    written(make_sink(make_topic(partitions=5), writer="arrow"), batch)
    assert requests_sent[0][1] == 5  # a topic so new may not be led yet; then some are repeated


def test_what_is_held_for_the_broker_is_bounded(
    broker_answers: Any, topic: Any, make_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    real = sending.Sending.put

    def put(self: Any, name: str, batches: Any) -> None:
        real(self, name, batches)
        held.append(self._held_bytes)

    monkeypatch.setattr(sending.Sending, "put", put)
    broker_answers(ProduceRequest, *[19] * 3)  # it is slow
    assert written(make_sink(topic, writer="arrow", queue_buffering_max_kbytes=5), *["x" * 1000] * 20).records == 20
    assert 4000 < max(held) <= 5 * 1024


REPEATED = [code for code, each in MEANINGS.items() if each.answer is WriteAnswer.REPEAT]
FAILING = [(code, meaning(code)) for code in (-1, 2, 10, 17, 18, 20, 32, 45, 46, 47, 87, 90, 120, 76, 29, 53)]


@pytest.mark.parametrize("having_done", [False, True], ids=["not done", "done"])
def test_what_is_repeated_is_there_once_and_in_order(
    having_done: bool, broker_answers: Any, topic: Any, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "pause_s", lambda _: 0.001)
    left = broker_answers(ProduceRequest, *REPEATED, having_done=having_done)
    values = [str(n) for n in range(5)]
    assert written(sink, *values).records == 5
    assert left == []
    assert uncommitted(topic) == [value.encode() for value in values]


@pytest.mark.parametrize(("code", "told"), FAILING, ids=lambda value: getattr(value, "name", None))
def test_what_is_not_repeated_fails_the_task_with_its_name_and_advice(
    code: int, told: Any, broker_answers: Any, topic: Any, sink: Any
) -> None:
    broker_answers(ProduceRequest, code)
    with pytest.raises(RAISED[told.answer], match=told.name) as refused:
        written(sink, "a")
    assert f"topic {topic.name!r}" in str(refused.value)
    assert "partition 0" in str(refused.value)
    assert told.advice in str(refused.value) or told.answer is WriteAnswer.DENIED


def test_a_duplicate_is_a_success_only_behind_a_repeat(broker_answers: Any, topic: Any, sink: Any) -> None:
    broker_answers(ProduceRequest, 6, 46, having_done=True)
    assert written(sink, "a", "b").records == 2
    assert uncommitted(topic) == [b"a", b"b"]


@pytest.mark.variants
@pytest.mark.parametrize("having_done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("kind", [InitProducerIdRequest, AddPartitionsToTxnRequest])
def test_a_beginning_and_an_adding_are_repeated(
    kind: Any, having_done: bool, partitions_are_added: None, broker_answers: Any, sink: Any
) -> None:
    left = broker_answers(kind, 51, 14, 15, 16, having_done=having_done)
    vote = written(sink, "a")
    assert left == []
    assert sink.seal([vote], age_s=0)


@pytest.fixture
def earlier(sink: Any, wait: Any) -> Committable:
    """A transaction that is committed and complete, so that SAME_NAME may use its id again."""
    committable: Committable = sealed(sink, "earlier")
    wait.repeated(lambda: sink.commit(committable))
    wait.repeated(lambda: sink.complete(0, [committable]))
    return committable


@pytest.mark.parametrize("code", INIT_PRODUCER_ID_REPEATED)
def test_a_used_id_is_given_up_if_its_beginning_had_an_effect_and_was_answered_otherwise(
    code: int, broker_answers: Any, earlier: Committable, sink: Any
) -> None:
    """Whoever asks again sees that the id was initialized since the commit, and not by whom."""
    left = broker_answers(InitProducerIdRequest, code, having_done=True)
    vote = written(sink, "a", round=SAME_NAME)
    assert left == []
    assert vote.transaction_id != earlier.transaction_id


@needs_kafka(4, 0)
@pytest.mark.parametrize("moved", [False, True], ids=["still there", "moved"])
def test_an_id_that_was_begun_lately_begins_at_the_same_coordinator_unless_that_has_moved(
    moved: bool, broker_answers: Any, earlier: Committable, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = broker_answers(InitProducerIdRequest, *[16] * moved)
    found, find = [], Cluster.coordinator

    async def coordinator(self: Cluster, key: str, *kind: Any) -> Any:
        found.append(key)
        return await find(self, key, *kind)

    monkeypatch.setattr(Cluster, "coordinator", coordinator)
    vote = written(sink, "a", round=SAME_NAME)
    assert left == []
    assert vote.transaction_id == earlier.transaction_id
    assert found == [vote.transaction_id] * moved


@pytest.mark.parametrize("kind", [InitProducerIdRequest, AddPartitionsToTxnRequest])
@pytest.mark.parametrize(("code", "raised"), [(53, OperatorRequired), (90, RoundAborted), (-1, RoundAborted)])
def test_a_beginning_and_an_adding_that_are_refused_fail_the_task(
    kind: Any, code: int, raised: Any, partitions_are_added: None, broker_answers: Any, topic: Any, sink: Any
) -> None:
    broker_answers(kind, code)
    with pytest.raises(raised, match=meaning(code).name):
        written(sink, "a")
    assert uncommitted(topic) == []


def test_of_several_partitions_the_one_that_was_refused_is_told_not_the_ones_that_were_not_tried(
    partitions_are_added: None, broker_answers: Any, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def added(*_: object) -> set[int]:
        return {0, 55, 29}

    monkeypatch.setattr(sending.Sending, "_added", added)
    with pytest.raises(OperatorRequired, match="TOPIC_AUTHORIZATION_FAILED"):
        written(sink, "a")


def test_a_request_that_did_not_leave_is_sent_again(broker_answers: Any, topic: Any, sink: Any) -> None:
    left = broker_answers((InitProducerIdRequest, ProduceRequest), *[NotSent("not connected")] * 3)
    assert sink.seal([written(sink, "a")], age_s=0)
    assert left == []
    assert uncommitted(topic) == [b"a"]


def test_a_lost_beginning_fails_the_task_as_it_could_take_effect_later(broker_answers: Any, sink: Any) -> None:
    broker_answers(InitProducerIdRequest, Unanswered("broker 1: connection lost"), having_done=True)
    with pytest.raises(RoundAborted, match=r"beginning transaction .* got no answer: broker 1"):
        written(sink, "a")


def test_a_lost_answer_to_records_makes_the_vote_no_and_rolls_them_back(
    broker_answers: Any, topic: Any, sink: Any
) -> None:
    broker_answers(ProduceRequest, Unanswered("broker 1: connection lost"), having_done=True)
    with pytest.raises(RoundAborted, match="got no answer and may have been written: broker 1: connection lost"):
        written(sink, "a")
    assert list(sink.recover()) == []
    topic.stays_empty()


def test_what_is_refused_for_message_timeout_makes_the_vote_no(broker_answers: Any, topic: Any, make_sink: Any) -> None:
    broker_answers(ProduceRequest, *[19] * 100)
    with pytest.raises(
        RoundAborted,
        match=r"was not accepted within 'message.timeout.ms' = 500: NOT_ENOUGH_REPLICAS.*min.insync.replicas",
    ):
        written(make_sink(topic, writer="arrow", message_timeout_ms=500), "a")


def test_an_abort_sends_nothing_more_and_waits_for_what_is_under_way(
    topic: Any, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that reaches the broker after the roll-back could begin a transaction of its own there."""
    events: list[str] = []
    send, end = Cluster.send, control.Control.end

    async def slow(cluster: Cluster, node: int, request: Any, timeout_ms: int | None = None) -> Any:
        if not isinstance(request, ProduceRequest):
            return await send(cluster, node, request, timeout_ms)
        events.append("sent")
        response = await send(cluster, node, request, timeout_ms)
        await cluster.sleep(0.1)
        events.append("answered")
        return response

    def ended(*arguments: Any, **options: Any) -> str:
        events.append("ended")
        return end(*arguments, **options)

    monkeypatch.setattr(Cluster, "send", slow)
    monkeypatch.setattr(control.Control, "end", ended)
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    while "sent" not in events:
        sink.write(transaction, pa.record_batch({"value": ["a"]}))
    sink.discard(transaction)
    assert events == ["sent", "answered", "ended"]
    topic.stays_empty()


def test_a_record_that_got_lost_on_the_way_makes_the_vote_no(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sending.Sending.put
    monkeypatch.setattr(sending.Sending, "put", lambda self, name, batches: real(self, name, batches[1:]))
    with pytest.raises(RoundAborted, match=r"only 0 of 1 records were acknowledged"):
        written(sink, "a")


@needs_kafka(4, 0)
@pytest.mark.parametrize(("level", "version"), [(2, 12), (99, 11)], ids=["implicit", "added"])
def test_partitions_come_with_the_records_where_the_cluster_can_do_it(
    level: int, version: int, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "IMPLICIT_PARTITIONS", level)
    real, seen = Cluster.send, []

    async def send(cluster: Cluster, node: int, request: Any, timeout_ms: int | None = None) -> Any:
        response = await real(cluster, node, request, timeout_ms)
        seen.append((type(request), request.API_VERSION))
        return response

    monkeypatch.setattr(Cluster, "send", send)
    written(sink, "a")
    assert (Produce, version) in seen
    assert ((AddPartitionsToTxnRequest, 3) in seen) == (version == 11)


# A broker that really falls silent, or throttles. ---------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.crash
def test_a_broker_that_falls_silent_with_records_under_way_makes_the_vote_no(
    second_broker: Any, make_topic: Any, make_sink: Any
) -> None:
    sink = make_sink(make_topic(on=second_broker.broker), writer="arrow", socket_timeout_ms=1000)
    participant: Any = Participant({"orders": sink}, Round(1, 0), partition=0)
    participant.write("orders", pa.record_batch({"value": ["a"]}))
    participant._transactions["orders"].writer._sending.drain()
    kills.stand_still(second_broker.broker.pid)
    try:
        participant.write("orders", pa.record_batch({"value": ["b"]}))
        with pytest.raises(RoundAborted, match="got no answer"):
            participant.pre_commit()
    finally:
        kills.go_on(second_broker.broker.pid)


@pytest.mark.long
def test_a_throttled_client_waits_and_loses_nothing(
    topic: Any, make_sink: Any, kafka_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = f"client-{topic.name}"
    quota(kafka_broker.bootstrap_servers, client, bytes_per_s=20_000)
    sink = make_sink(topic, writer="arrow", client_id=client)
    assert written(sink, *["x" * 10_000] * 23).records == 23
    assert "ProduceResponse throttled by broker" in caplog.text
    assert len(uncommitted(topic)) == 23


def quota(servers: str, client: str, bytes_per_s: float) -> None:
    """Kafka throttles who writes more than this, over a window of ten seconds."""
    entry = AlterClientQuotasRequest.EntryData
    request = AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[entry.EntityData(entity_type="client-id", entity_name=client)],
                ops=[entry.OpData(key="producer_byte_rate", value=bytes_per_s, remove=False)],
            )
        ],
        validate_only=False,
    )
    with contextlib.closing(control.Control({"bootstrap_servers": [servers]})) as asked:
        [answer] = asked.run(asked.manager.send, request).entries
    assert answer.error_code == 0, answer
