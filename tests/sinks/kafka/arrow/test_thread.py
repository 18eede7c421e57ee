"""The thread that drives a process's connections: what tasks share of it, and what becomes of them when it fails."""

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kafka.errors
import pyarrow as pa
import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from tests.sinks.kafka.writing import text, written
from twopc import Participant, Round
from twopc.errors import OperatorRequired, RoundAborted
from twopc_kafka.client import cluster as cluster_module
from twopc_kafka.client.cluster import Cluster
from twopc_kafka.client.kafka_python import Connections, OfProcess
from twopc_kafka.client.retry import NotSent
from twopc_kafka.writers.sender import Sending

LIMIT_S = 20
"""A task that has not ended by then waits forever: every timeout in these tests is shorter."""


def cluster_of(sink: Any) -> Cluster:
    return cluster_module.cluster_of(sink._options.control, 10_000)


def ended(call: Callable[[], Any]) -> Any:
    """The result of a call, or its error; or a failure of the test where it has neither in time."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # noqa: BLE001  # returned
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert outcome, f"the task still waits after {LIMIT_S} s"
    return outcome[0]


@pytest.fixture
def own_topic(make_topic: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A topic whose sinks have connections of their own in this test, which may break them."""
    clusters = OfProcess[Cluster]()
    monkeypatch.setattr(cluster_module, "_clusters", clusters)
    yield make_topic()
    for made in clusters._kept.values():
        made.close()


# What tasks share. ----------------------------------------------------------------------------------------------------


def test_tasks_in_several_threads_share_connections_and_each_keeps_its_order(make_topic: Any, make_sink: Any) -> None:
    topics = [make_topic(partitions=2) for _ in range(4)]
    batches = [[f"{batch:03}-{record:02}" for record in range(20)] for batch in range(50)]

    def task(number: int) -> Any:
        sink = make_sink(topics[number], writer="arrow", queue_buffering_max_kbytes=2, batch_size=300)
        return written(sink, *(text(*values) for values in batches), partition=number)

    with ThreadPoolExecutor(len(topics)) as pool:
        votes = list(pool.map(task, range(len(topics))))
    assert [vote.records for vote in votes] == [1000] * len(topics)
    for topic in topics:
        in_order: dict[int, list[bytes]] = {0: [], 1: []}
        for record in topic.records("read_uncommitted"):
            in_order[record.partition].append(record.value)
        assert all(values == sorted(values) for values in in_order.values())
        assert sorted(in_order[0] + in_order[1]) == sorted(value.encode() for batch in batches for value in batch)
    assert len({id(cluster_of(make_sink(topic, writer="arrow"))) for topic in topics}) == 1


def test_all_that_was_handed_over_at_one_time_leaves_together(
    make_topic: Any, make_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step from the task to the thread for all partitions, not one per partition or request."""
    steps: list[str] = []
    spawn = Cluster.spawn

    def counted(self: Cluster, asked: Any, *args: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            steps.append(asked.__name__)
        spawn(self, asked, *args)

    monkeypatch.setattr(Cluster, "spawn", counted)
    batch = pa.record_batch({"value": ["a"] * 100, "key": [str(n) for n in range(100)]})
    written(make_sink(make_topic(partitions=16), writer="arrow"), batch)
    assert len(steps) == 1


@pytest.mark.long
def test_a_forked_process_makes_connections_of_its_own_and_leaves_its_parents_alone(topic: Any, prefix: str) -> None:
    script = """
        import faulthandler, os, sys
        import pyarrow as pa
        from twopc import Participant, Round
        from twopc_kafka import KafkaSink

        servers, topic, prefix = sys.argv[1:]
        faulthandler.dump_traceback_later(60, exit=True)

        def write(value, partition):
            sink = KafkaSink({"bootstrap.servers": servers, "topic": topic, "transactional.id.prefix": prefix})
            sink.bind("orders", "log")
            with Participant({"orders": sink}, Round(1, 0), partition=partition) as participant:
                participant.write("orders", pa.record_batch({"value": [value]}))
                sink.commit(sink.seal([participant.pre_commit()["orders"]], age_s=0)[0])

        write("parent, before", 0)
        if not (child := os.fork()):
            write("child", 1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        write("parent, after", 2)
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), topic.servers, topic.name, prefix], check=True, timeout=90
    )
    topic.becomes(["parent, before", "child", "parent, after"])


def test_a_writer_that_is_dropped_without_an_end_sends_nothing_more(
    topic: Any, make_sink: Any, monkeypatch: pytest.MonkeyPatch, wait: Any
) -> None:
    """As when Spark kills a task: no exception that the participant could roll back for."""
    sent: list[Any] = []

    async def refuse(cluster: Cluster, node: int, request: Any, timeout_ms: int | None = None) -> Any:
        sent.append(request)
        raise NotSent("not now")

    def drop() -> None:
        sink = make_sink(topic, writer="arrow")
        transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
        monkeypatch.setattr(Cluster, "send", refuse)
        sink.write(transaction, text("a"))
        wait.until("it is sent again and again", lambda: len(sent) > 2)

    drop()
    count = len(sent)
    time.sleep(0.5)  # a repeat is due at least every 100 ms by then
    assert len(sent) <= count + 1  # one may have been on its way


# What goes wrong. -----------------------------------------------------------------------------------------------------


def defect(*_: Any) -> Any:
    raise ZeroDivisionError("a defect")


@pytest.mark.parametrize("step", ["_accept", "_produce", "_settle", "_delivered", "_dispatch"])
def test_a_defect_in_any_step_of_sending_fails_the_task(step: str, sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sending, step, defect)
    assert isinstance(ended(lambda: written(sink, text("a"))), ZeroDivisionError)


@pytest.mark.parametrize(
    ("raised", "step"),
    [(OperatorRequired("the login is refused"), "leaders"), (ZeroDivisionError("a defect"), "leaders"),
     (ZeroDivisionError("a defect"), "sleep"), (KeyError("no such topic"), "leaders")],
)  # fmt: skip
def test_an_error_amid_a_repeat_fails_the_task(
    raised: Exception, step: str, topic: Any, make_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a password that has changed while the leader moved."""
    sink = make_sink(topic, writer="arrow", message_timeout_ms=5000)

    async def fail(*_: Any) -> Any:
        raise raised

    async def not_sent(*_: Any) -> Any:
        raise NotSent("connection lost")

    def task() -> Any:
        with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
            participant.write("orders", text("a"))
            transaction: Any = participant._transactions["orders"]
            transaction.writer._sending.drain()
            with monkeypatch.context() as broken:
                broken.setattr(Cluster, "reach", not_sent)
                broken.setattr(Cluster, step, fail)
                participant.write("orders", text("b"))
                return participant.pre_commit()

    assert ended(task) is raised


@pytest.mark.variants
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", [ProduceRequest, InitProducerIdRequest, MetadataRequest])
def test_a_thread_that_dies_fails_the_task_that_waits_for_it_and_the_next_task_has_another(
    kind: Any, own_topic: Any, make_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make_sink(own_topic, writer="arrow")
    written(sink, text("a"), partition=1)
    before = cluster_of(sink)
    real = Connections.answer
    with monkeypatch.context() as broken:

        async def answer(manager: Any, connection: Any, request: Any, timeout_ms: float | None = None) -> Any:
            if isinstance(request, kind):
                broken.setattr(before._net._selector, "select", defect)
            return await real(manager, connection, request, timeout_ms)

        broken.setattr(Connections, "answer", answer)
        error = ended(lambda: written(sink, text("b")))
    assert isinstance(error, RoundAborted)
    assert "the thread that drives the connections" in str(error)
    assert written(sink, text("c"), partition=2).records == 1
    assert cluster_of(sink) is not before
    before._net._exception = None
    before._manager.close()
    before._net.close()


def test_after_a_refused_login_the_next_task_logs_in_anew(own_topic: Any, make_sink: Any) -> None:
    sink = make_sink(own_topic, writer="arrow")
    written(sink, text("a"))
    manager = cluster_of(sink)._manager
    [server] = manager.cluster.brokers()
    manager._auth_failures[server.node_id] = kafka.errors.SaslAuthenticationFailedError("user unknown")  # it keeps it
    with pytest.raises(OperatorRequired, match="user unknown"):
        written(sink, text("b"), partition=1)
    assert written(sink, text("c"), partition=2).records == 1


@pytest.mark.crash
def test_connections_that_were_closed_amid_a_transaction_are_made_anew(
    topic: Any, make_sink: Any, monkeypatch: pytest.MonkeyPatch, wait: Any
) -> None:
    """As brokers do with those that are idle."""
    sink = make_sink(topic, writer="arrow", client_id=topic.name)
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        participant.write("orders", text("a"))
        transaction: Any = participant._transactions["orders"]
        transaction.writer._sending.drain()
        connections = list(cluster_of(sink)._manager._conns.values())  # others may take their places at once
        for connection in connections:
            connection.transport._sock.shutdown(2)
        wait.until("they are closed", lambda: not any(each.connected for each in connections))
        participant.write("orders", text("b"))
        assert participant.pre_commit()["orders"].records == 2
