"""kfake as the cluster: its authors have read Kafka's protocol for themselves. Where it answers otherwise than Kafka is
listed in ``docs/internals/kafka.md``."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.campaigns.killed_loop import each_commit, steps
from tests.sinks.kafka.conftest import MakeSink, Topic
from tests.sinks.kafka.test_settling import CASES, Prepared
from tests.support.kfake_server import Kfake
from tests.support.loop import Job
from tests.support.pages import DOCS
from twopc import Committable, doctor
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError
from twopc_kafka import KafkaSink
from twopc_kafka.options import WRITERS

pytestmark = pytest.mark.long

PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, END_TXN = 0, 10, 22, 26
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS = 61, 65
LOADING, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS = 14, 16, 51

BATCHES, KILLS = 200, 20

PAGE = (DOCS / "internals" / "kafka.md").read_text(encoding="utf-8")
WARNING = CheckStatus.WARNING

FAULTS: tuple[Callable[[Kfake], None], ...] = (
    lambda kfake: None,
    lambda kfake: kfake.lose(END_TXN, 2),
    lambda kfake: kfake.fail(END_TXN, 3, LOADING),
    lambda kfake: kfake.move(),
    lambda kfake: kfake.fail(DESCRIBE_TRANSACTIONS, 2, NOT_COORDINATOR),
    lambda kfake: kfake.delay(END_TXN, 3, 700),
    lambda kfake: kfake.fail(INIT_PRODUCER_ID, 2, CONCURRENT_TRANSACTIONS),
    lambda kfake: kfake.lose(FIND_COORDINATOR, 2),
)
"""What happens while a driver runs: answers that are lost and late, coordinators that load and move."""


@pytest.fixture
def kfake(tmp_path: Path) -> Iterator[Kfake]:
    with Kfake(tmp_path) as started:
        yield started


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("writer", WRITERS)
def test_200_batches_with_20_kills_and_faults_between_them_have_each_record_exactly_once(
    writer: str, kfake: Kfake, tmp_path: Path
) -> None:
    options = {"bootstrap.servers": kfake.servers, "topic": kfake.topic, "writer": writer}
    job = Job(str(tmp_path), {"orders": ("kafka", options)}, batches=BATCHES, runs_again=True)
    moments = steps(job.partitions, *each_commit(2))
    for number in range(KILLS):
        FAULTS[number % len(FAULTS)](kfake)
        kill_in = number * BATCHES // KILLS + 5
        replace(job, kill_in=kill_in, kill_at=moments[number % len(moments)]).run()
    job.run()
    topic = Topic(kfake.servers, kfake.topic)
    topic.becomes(job.all_values())
    assert topic.has_no_open_transaction()
    assert all(kfake.happened().values()), kfake.happened()


def test_a_cluster_without_a_request_that_a_crash_needs_is_refused_and_doctor_names_it(
    tmp_path: Path, make_sink: MakeSink
) -> None:
    with Kfake(tmp_path, without=f"{DESCRIBE_PRODUCERS}") as kfake:
        sink = make_sink(Topic(kfake.servers, kfake.topic))
        with pytest.raises(ConfigurationError, match="do not support DescribeProducers"):
            sink.open()
        assert "do not support DescribeProducers" in str(doctor(sink).failed[0])


# Its answers. ---------------------------------------------------------------------------------------------------------


class OfKfake(Prepared):
    """Kfake knows no state but Ongoing and Empty."""

    def wait_for(self, state: str, committable: Committable) -> None:
        super().wait_for("Empty", committable)


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading of the page on the sink."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]


def test_the_page_has_each_answer_to_the_end_of_a_transaction_that_differs_from_kafkas(kfake: Kfake, wait: Any) -> None:
    def make_sink(timeout_ms: int) -> KafkaSink:
        common = {"bootstrap.servers": kfake.servers, "transaction.timeout.ms": timeout_ms, "topic": kfake.topic}
        sink = KafkaSink(common)
        sink.bind("orders", "log")
        return sink

    of = OfKfake(make_sink, pa.record_batch({"value": ["a"]}), wait)
    answers = {}
    for state, commit, version, of_kafka in (cast("tuple[str, bool, int, str]", case.values) for case in CASES):
        answer = of.end(of.transactions[state, commit, version], commit=commit)
        if answer != of_kafka:
            answers[f"{'commit' if commit else 'abort'}, version {version}", state] = (of_kafka, answer)
    assert {
        (asked, state): (kafka, given) for asked, state, kafka, given in rows("Answers of kfake to EndTxn")
    } == answers


def test_the_page_has_each_warning_that_doctor_has_of_it(kfake: Kfake, make_sink: MakeSink) -> None:
    found = make_sink(Topic(kfake.servers, kfake.topic)).check()
    warned = [each.check for each in found if each.result is WARNING]
    assert [check for check, *_ in rows("What doctor finds of kfake")] == warned
