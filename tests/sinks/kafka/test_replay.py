"""The data-loss scenario of Kafka's transactions, closed: decided, and then rolled back by a time-out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.kafka.writing import written
from tests.support.advice import told
from tests.support.observing import Killed, Moments, killed, observing
from tests.support.phase_one import writes
from twopc import Coordinator
from twopc.errors import ConfigurationError, RoundAborted, TransactionLost
from twopc.events import TransactionReplayed
from twopc.phases import Phase
from twopc_kafka import KafkaSink

TIMEOUT_MS = 2000


@pytest.fixture
def kill() -> Iterator[Moments]:
    with observing(Moments()) as kill:
        yield kill


@pytest.fixture
def run(second_broker: Any, make_topic: Any, make_sink: Any, tmp_path: Path) -> Any:
    """One batch of two partitions, by a driver that has just started; with the topic that it writes to."""
    topic = make_topic(on=second_broker.broker)
    options = {"transaction.timeout.ms": TIMEOUT_MS, "commit.margin.ms": 1}

    def one_batch(stage: Path | None = tmp_path / "stage") -> None:
        sink: KafkaSink = make_sink(topic, log_id=None, **options)
        coordinator = Coordinator(
            {"orders": sink}, f"{tmp_path}/log", owner="query", replay_copies=str(stage) if stage else None
        )
        phase_one = writes(
            {"orders": sink}, *({"value": [f"{partition}-{n}" for n in range(3)]} for partition in range(2))
        )
        coordinator.run(0, phase_one)

    one_batch.topic = topic  # type: ignore[attr-defined]
    return one_batch


ALL = [f"{partition}-{n}" for partition in range(2) for n in range(3)]


@pytest.mark.long
def test_what_timed_out_while_the_driver_was_down_is_written_again_from_its_copy(
    run: Any, kill: Moments, wait: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kill.at[Phase.COMMITTING] = killed
    with pytest.raises(Killed):
        run()
    wait.until("the broker has rolled back", run.topic.has_no_open_transaction)
    run()
    run.topic.becomes(ALL)
    assert "written again from their replay copy" in caplog.text
    assert "by other means" not in caplog.text, "who follows that doubles the records"


@pytest.mark.long
def test_killed_amid_its_replay_and_timed_out_again_it_is_written_again(
    run: Any, kill: Moments, wait: Any, tmp_path: Path
) -> None:
    for moment in (Phase.COMMITTING, TransactionReplayed):
        kill.at[moment] = killed
        with pytest.raises(Killed):
            run()
        wait.until("the broker has rolled back", run.topic.has_no_open_transaction)
    run()
    run.topic.becomes(ALL)
    assert run.topic.has_no_open_transaction()
    assert list((tmp_path / "stage").iterdir()) == []


@pytest.mark.long
def test_without_a_copy_the_query_stops_and_stays_stopped(run: Any, kill: Moments, wait: Any) -> None:
    kill.at[Phase.COMMITTING] = killed
    with pytest.raises(Killed):
        run(stage=None)
    wait.until("the broker has rolled back", run.topic.has_no_open_transaction)
    for _ in range(2):
        with pytest.raises(TransactionLost, match=r"3 records.*transaction\.timeout\.ms"):
            run(stage=None)
    assert run.topic.visible() == []


# Before it hurts. -------------------------------------------------------------------------------------------------


@pytest.mark.advice("the transactions of this batch may be … s old")
def test_a_batch_with_too_little_time_left_is_decided_with_the_timeout_it_needs(topic: Any, make_sink: Any) -> None:
    clock = {"transaction.timeout.ms": 60_000, "commit.margin.ms": 20_000}
    sink = make_sink(topic, **clock)
    vote = written(sink, "a")
    with pytest.raises(RoundAborted, match=r"19000 ms are left.*'commit\.margin\.ms' = 20000\.") as aborted:
        sink.seal([vote], age_s=41)
    sink.seal([vote], age_s=39)
    needed_s = told(aborted.value, r"to (\d+) s or more")[1]
    patient = make_sink(topic, **clock | {"transaction.timeout.ms": int(needed_s) * 1000})
    patient.seal([written(patient, "b")], age_s=41)


@pytest.mark.parametrize(
    ("age_s", "margin_ms", "says"),
    [(41, 20_000, r"487804 take half .*to 82 s or more"), (50, 40_000, r"200000 take half .*to 115 s or more")],
)
def test_a_batch_that_took_too_long_is_told_which_one_would_not_and_which_timeout_it_needs(
    age_s: int, margin_ms: int, says: str
) -> None:
    clock = {"transaction.timeout.ms": 60_000, "commit.margin.ms": margin_ms}
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1", "topic": "target", **clock})
    assert sink.seals_within_s == (60_000 - margin_ms) / 1000
    with pytest.raises(RoundAborted, match=says):
        sink._refuse_too_old(age_s, records=1_000_000)


def test_a_sink_without_transactions_or_without_their_timeout_has_all_the_time() -> None:
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1", "topic": "target", "delivery": "at-least-once"})
    assert sink.seals_within_s is None


@pytest.mark.advice("more than half of 'transaction.timeout.ms'")
def test_more_than_half_of_the_time_is_warned_of(topic: Any, make_sink: Any, caplog: pytest.LogCaptureFixture) -> None:
    sink = make_sink(topic, **{"transaction.timeout.ms": 60_000})
    vote = written(sink, "a")
    for age_s, is_warned_of in ((29, False), (31, True)):
        sink.seal([vote], age_s=age_s)
        assert ("more than half of 'transaction.timeout.ms'" in caplog.text) is is_warned_of


def test_the_longest_time_out_that_the_broker_grants_is_asked_for(sink: Any) -> None:
    sink.open()
    largest_ms = sink._control.largest_timeout_ms()
    assert sink._options.transaction_timeout_ms == largest_ms == 900_000


@pytest.mark.parametrize(
    ("margin", "must_be"),
    [
        ("-1", "a whole number from 0"),
        ("60000", r"below 'transaction\.timeout\.ms' \(60000\)"),
        ("soon", "a whole number"),
    ],
)
def test_a_margin_that_leaves_no_time_is_refused(margin: str, must_be: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'commit\.margin\.ms'.*{must_be}"):
        KafkaSink({"bootstrap.servers": "x:1", "transaction.timeout.ms": 60_000, "commit.margin.ms": margin})
