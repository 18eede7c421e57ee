"""The events that a receiver of OpenLineage gets over HTTP, and batches that do not depend on it."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import attr
import psycopg
import pyarrow as pa
import pytest
from openlineage.client import OpenLineageClient

import twopc
from tests.support.lineage_receiver import LineageReceiver
from tests.support.observing import Killed, killed
from tests.support.pages import DOCS
from tests.support.phase_one import writes
from tests.support.postgres_server import PostgresServer
from tests.support.s3_server import free_port
from tests.support.waiting import until
from twopc import BatchCommitted, BatchPart, Coordinator, Dataset, TwoPhaseCommitSink
from twopc.errors import ConfigurationError
from twopc.observers import _outbox, openlineage
from twopc.observers.openlineage import PRODUCER, OpenLineageObserver, _Completed, _TwopcBatchRunFacet
from twopc.testing import MemorySink, MemoryTarget

OF_SPARK = {"sources": [{"orders": {"0": 100, "1": 70}}, {"logOffset": 3}], "metadata": {"conf": {}}, "version": "v1"}

Observer = Callable[..., OpenLineageObserver]


@pytest.fixture
def receiver() -> Iterator[LineageReceiver]:
    with LineageReceiver() as running:
        yield running


@pytest.fixture
def observer(observe: Any, receiver: LineageReceiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Observer]:
    """Register an observer whose client finds the receiver by its own configuration, and tries each event once."""
    made: list[OpenLineageObserver] = []
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')

    def register(url: str = receiver.url, **given: Any) -> OpenLineageObserver:
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", url)
        made.append(OpenLineageObserver("shop", **given))
        observe(made[-1])
        return made[-1]

    yield register
    for each in made:
        each.close(timeout_s=0)


class Query:
    def __init__(self, folder: Path, sinks: Callable[[], Mapping[str, TwoPhaseCommitSink[Any]]]) -> None:
        self._folder, self._make = folder, sinks
        self.sinks: Mapping[str, Any] = {}

    def start(self) -> Coordinator:
        self.sinks = self._make()
        return Coordinator(self.sinks, self._folder / "log", owner="orders")

    def run(self, coordinator: Coordinator, batch_id: int, **given: Any) -> None:
        coordinator.run(batch_id, writes(self.sinks, {"id": [1, 2, 3], "day": ["a", "b", "c"]}), **given)

    def report(self, lineage: OpenLineageObserver, **given: Any) -> None:
        """Run a batch, and close the observer."""
        self.run(self.start(), 0, **given)
        lineage.close()


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """A query over one sink in memory, which does not name what it writes to."""
    target = MemoryTarget()
    return Query(tmp_path, lambda: {"archive": MemorySink(target)})


def facets(receiver: LineageReceiver) -> list[dict[str, Any]]:
    """What the runs that have ended say of their batches."""
    return [event["run"]["facets"]["twopc_batch"] for event in receiver.of_type("COMPLETE")]


# What is in an event. ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer(max_prepared_transactions=10) as server:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA sales; CREATE TABLE sales.orders (id bigint, day text)")
        yield server


def test_an_event_has_all_that_is_known_of_a_batch_of_two_sinks(
    postgres_server: PostgresServer, tmp_path: Path, observer: Observer, receiver: LineageReceiver
) -> None:
    def sinks() -> dict[str, TwoPhaseCommitSink[Any]]:
        table = {"conninfo": postgres_server.conninfo, "table": "sales.orders"}
        return {
            "lake": twopc.create_sink("files", {"path": str(tmp_path / "orders")}),
            "shop": twopc.create_sink("postgres", table),
        }

    both = Query(tmp_path, sinks)
    lineage = observer(source_brokers="b1.example:9093,b2.example:9093")
    with both.start() as coordinator:
        both.run(coordinator, 0, reads=OF_SPARK)
    lineage.close()
    start, event = receiver.events
    print(json.dumps(event, indent=2))  # noqa: T201  # shown by pytest -s: an example
    assert [start["eventType"], event["eventType"]] == ["START", "COMPLETE"]
    assert start["eventTime"] <= event["eventTime"]
    assert event["producer"] == PRODUCER
    assert event["job"]["namespace"] == "shop"
    assert event["job"]["name"] == "orders"
    assert [(each["namespace"], each["name"]) for each in event["inputs"]] == [("kafka://b1.example:9093", "orders")]
    facet = event["run"]["facets"]["twopc_batch"]
    assert facet["reads"] == {"0": {"orders": {"0": 100, "1": 70}}, "1": {"logOffset": 3}}
    assert facet["records"] == {"lake": 3, "shop": 3}
    lake, shop = event["outputs"]
    assert (lake["namespace"], lake["name"]) == ("file", str(tmp_path / "orders"))
    assert (shop["namespace"], shop["name"]) == ("postgres://localhost:5432", "postgres.sales.orders")
    for output in lake, shop:
        assert output["outputFacets"]["outputStatistics"]["rowCount"] == 3
        fields = output["facets"]["schema"]["fields"]
        assert [(field["name"], field["type"]) for field in fields] == [("id", "int64"), ("day", "string")]
    of_twopc = [facet, *lake["facets"].values(), *lake["outputFacets"].values()]
    assert {each["_producer"] for each in of_twopc} == {PRODUCER}
    assert event["run"]["facets"]["processing_engine"]["name"] == "twopc"
    assert event["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert start["run"]["runId"] == event["run"]["runId"]
    assert (start["job"], start["inputs"]) == (event["job"], event["inputs"])
    assert [each["facets"] for each in start["outputs"]] == [each["facets"] for each in event["outputs"]]
    assert not [each for each in start["outputs"] if each.get("outputFacets")]  # else what sums counts them twice
    assert "twopc_batch" not in start["run"]["facets"]
    assert postgres_server.password not in json.dumps(receiver.events)


def test_the_facet_of_a_batch_keeps_to_its_published_schema(
    query: Query, observer: Observer, receiver: LineageReceiver
) -> None:
    schema = json.loads((DOCS / "openlineage" / "TwopcBatchRunFacet.json").read_text(encoding="utf-8"))
    fields = {each.name for each in attr.fields(_TwopcBatchRunFacet)}
    assert (schema["$id"], schema["properties"].keys()) == (_TwopcBatchRunFacet._get_schema(), fields)
    jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
    lineage = observer()
    coordinator = query.start()
    query.run(coordinator, 0, reads=[1, {"a": "b"}])
    query.run(coordinator, 1)
    lineage.close()
    with_reads, without = facets(receiver)
    assert with_reads["reads"] == [1, {"a": "b"}]
    assert "reads" not in without
    for facet in with_reads, without:
        jsonschema.Draft202012Validator(schema).validate(facet)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema).validate({**facet, "batchId": "0"})


def test_a_sink_that_names_no_dataset_is_one_of_its_query(
    query: Query, observer: Observer, receiver: LineageReceiver
) -> None:
    lineage = observer(job_name="archiving")
    query.report(lineage)
    [output] = receiver.events[0]["outputs"]
    assert (output["namespace"], output["name"]) == ("twopc", "orders.archive")
    assert receiver.events[0]["job"]["name"] == "archiving"


def test_kafka_sources_are_inputs_only_if_their_brokers_are_known(
    query: Query, observer: Observer, receiver: LineageReceiver
) -> None:
    lineage = observer()
    query.report(lineage, reads=OF_SPARK)
    assert receiver.events[0]["inputs"] == []


def test_offsets_of_a_loop_without_spark_name_their_topics_too(
    query: Query, observer: Observer, receiver: LineageReceiver
) -> None:
    lineage = observer(source_brokers="b1.example")
    query.report(lineage, reads={"orders": {"0": 7}, "returns": {"0": 0}})
    found = [(each["namespace"], each["name"]) for each in receiver.events[0]["inputs"]]
    assert found == [("kafka://b1.example:9092", "orders"), ("kafka://b1.example:9092", "returns")]


def outputs_of(*parts: BatchPart) -> list[dict[str, Any]]:
    """The outputs of the event for a batch with these parts, by namespace and name."""
    lineage = OpenLineageObserver("shop", client=OpenLineageClient(config={"transport": {"type": "noop"}}))
    now = datetime.now(timezone.utc)
    completed = _Completed(now, now, BatchCommitted(0, parts, None, False, "log", "orders"), "null")
    _, event = lineage._run_events(completed)
    return [attr.asdict(output) for output in event.outputs or ()]


def test_how_records_are_spread_over_several_datasets_is_not_known() -> None:
    topics = (Dataset("kafka://b1:9092", "orders"), Dataset("kafka://b1:9092", "returns"))
    outputs = outputs_of(BatchPart("kafka", 5, topics, None))
    assert [output["name"] for output in outputs] == ["orders", "returns"]
    assert [output["outputFacets"] for output in outputs] == [{}, {}]
    assert [output["facets"] for output in outputs] == [{}, {}]


def test_sinks_that_write_to_one_dataset_are_one_output() -> None:
    topic = (Dataset("kafka://b1:9092", "orders"),)
    text, number = pa.schema([("value", pa.string())]), pa.schema([("value", pa.int64())])
    [output] = outputs_of(BatchPart("a", 5, topic, text), BatchPart("b", 2, topic, text))
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 7
    assert [field["name"] for field in output["facets"]["schema"]["fields"]] == ["value"]
    [output] = outputs_of(BatchPart("a", 5, topic, text), BatchPart("b", 2, topic, number))
    assert output["facets"] == {}


def test_the_fields_of_a_structure_are_named() -> None:
    place = pa.struct([("city", pa.string()), ("at", pa.struct([("x", pa.float64())]))])
    schema = pa.schema([("place", place), ("tags", pa.list_(pa.string()))])
    [output] = outputs_of(BatchPart("a", 1, None, schema))
    place_field, tags = output["facets"]["schema"]["fields"]
    assert (place_field["type"], tags["type"]) == ("struct", "list<item: string>")
    city, at = place_field["fields"]
    assert (city["name"], city["type"], at["fields"][0]["type"]) == ("city", "string", "double")


# Which batches are reported, and under which id. ------------------------------------------------------------------


def test_a_batch_has_the_same_run_id_whoever_reports_it(
    query: Query, observer: Observer, receiver: LineageReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = observer()
    first = query.start()
    monkeypatch.setattr(query.sinks["archive"], "commit", lambda _: killed())  # after the decision
    with pytest.raises(Killed):
        query.run(first, 0)
    query.start().recover()
    query.run(last := query.start(), 0)  # as Spark repeats it
    query.run(last, 1)
    lineage.close()
    assert [(facet["batchId"], facet["recovered"]) for facet in facets(receiver)] == [(0, True), (0, True), (1, False)]
    again, once_more, other = (event["run"]["runId"] for event in receiver.of_type("COMPLETE"))
    assert again == once_more != other


def test_another_log_of_a_query_of_the_same_name_has_other_run_ids(
    query: Query, tmp_path: Path, observer: Observer, receiver: LineageReceiver
) -> None:
    lineage = observer()
    query.run(query.start(), 0)
    (tmp_path / "log").rename(tmp_path / "old")
    query.report(lineage)
    assert len({event["run"]["runId"] for event in receiver.of_type("COMPLETE")}) == 2


@pytest.mark.parametrize("namespace", ["airflow", "airflow/prod"])
def test_a_run_has_the_parent_that_the_environment_names(
    namespace: str, query: Query, observer: Observer, receiver: LineageReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = str(uuid4())
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"{namespace}/orders.start/{parent}")
    lineage = observer()
    query.report(lineage)
    for event in receiver.events:
        facet = event["run"]["facets"]["parent"]
        assert facet["run"]["runId"] == parent
        assert (facet["job"]["namespace"], facet["job"]["name"]) == (namespace, "orders.start")


@pytest.mark.variants
@pytest.mark.parametrize("given", ["orders", "airflow/orders/1", "orders/46b81057-f16b-41fc-ae31-60ce316b720c", "//"])
def test_a_parent_that_can_not_be_read_is_logged_and_left_out(
    given: str,
    query: Query,
    observer: Observer,
    receiver: LineageReceiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", given)
    lineage = observer()
    query.report(lineage)
    assert not [event for event in receiver.events if "parent" in event["run"]["facets"]]
    assert f"OPENLINEAGE_PARENT_ID is '{given}', not namespace/job/run" in caplog.text


def test_a_run_lasts_from_the_first_phase_of_its_batch_to_its_end(
    query: Query, observer: Observer, receiver: LineageReceiver
) -> None:
    lineage = observer()
    coordinator = query.start()
    query.run(coordinator, 0)
    before = datetime.now(timezone.utc)
    query.run(coordinator, 1)
    after = datetime.now(timezone.utc)
    lineage.close()
    start, end = (datetime.fromisoformat(event["eventTime"]) for event in receiver.events[2:])
    assert before - timedelta(milliseconds=1) <= start <= end <= after


def test_a_run_of_an_earlier_incarnation_has_no_length(
    query: Query, observer: Observer, receiver: LineageReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = observer()
    first = query.start()
    monkeypatch.setattr(query.sinks["archive"], "commit", lambda _: killed())
    with pytest.raises(Killed):
        query.run(first, 0)
    query.start().recover()
    lineage.close()
    start, end = receiver.events
    assert start["eventTime"] == end["eventTime"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OPENLINEAGE__TRANSPORT__TYPE", "pigeon"),
        ("OPENLINEAGE_URL", "writer:hunter2@r.example"),
        ("OPENLINEAGE_URL", "r.example/api?code=hunter2"),
    ],
)
def test_a_client_that_can_not_be_made_is_a_wrong_configuration_and_no_secret_is_told(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {variable: value})  # the client adds variables of its own
    with pytest.raises(ConfigurationError, match="Correct the variables OPENLINEAGE_") as raised:
        OpenLineageObserver("shop")
    assert "hunter2" not in str(raised.value)


# The receiver. ----------------------------------------------------------------------------------------------------


def test_a_receiver_that_is_slow_keeps_no_batch_waiting(
    query: Query, observer: Observer, receiver: LineageReceiver
) -> None:
    receiver.delay_s = 2.0
    lineage = observer()
    coordinator = query.start()
    began_s = time.monotonic()
    for batch_id in range(5):
        query.run(coordinator, batch_id)
    assert time.monotonic() - began_s < receiver.delay_s
    lineage.close(timeout_s=0.1)
    assert lineage.dropped >= 4


def test_events_wait_for_a_receiver_that_the_client_asks_again_and_come_in_order(
    query: Query, observer: Observer, receiver: LineageReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 1000, "backoff_factor": 0}')
    receiver.status = 500
    lineage = observer()
    coordinator = query.start()
    for batch_id in range(3):
        query.run(coordinator, batch_id)
    until(lambda: receiver.asked > 2)
    receiver.status = 200
    lineage.close()
    assert [facet["batchId"] for facet in facets(receiver)] == [0, 1, 2]
    assert lineage.dropped == 0


def test_nobody_at_the_address_fails_no_batch_and_is_logged_once_without_credentials(
    query: Query, observer: Observer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__AUTH", '{"type": "api_key", "apiKey": "hunter3"}')
    lineage = observer(f"http://writer:hunter2@127.0.0.1:{free_port()}")
    coordinator = query.start()
    for batch_id in range(3):
        query.run(coordinator, batch_id)
    until(lambda: "an event can't be sent" in caplog.text)
    lineage.close()
    assert caplog.text.count("an event can't be sent") == 1
    assert lineage.dropped == 3
    assert not [secret for secret in ("hunter2", "hunter3") if secret in caplog.text]


def test_requests_that_the_client_repeats_by_itself_are_not_logged_each(
    query: Query, observer: Observer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 3, "backoff_factor": 0}')
    lineage = observer(f"http://127.0.0.1:{free_port()}")
    query.report(lineage)
    assert [record.name for record in caplog.records if record.levelname == "WARNING"] == [_outbox.__name__]


def test_an_event_that_is_refused_is_dropped_and_the_next_one_is_sent(
    query: Query, observer: Observer, receiver: LineageReceiver
) -> None:
    receiver.status = 422
    lineage = observer()
    coordinator = query.start()
    query.run(coordinator, 0)
    until(lambda: lineage.dropped == 1)
    receiver.status = 200
    query.run(coordinator, 1)
    lineage.close()
    assert [facet["batchId"] for facet in facets(receiver)] == [1]


def test_what_waits_is_bounded_in_bytes_whatever_a_batch_reads(
    observer: Observer, receiver: LineageReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openlineage, "CAPACITY", 2**21)
    receiver.delay_s = 0.5
    lineage = observer()
    reads: Any = {"orders": {str(partition): 10**9 for partition in range(10_000)}}
    for batch_id in range(20):
        lineage.twopc_event(BatchCommitted(batch_id, (), reads, False, "log", "orders"), datetime.now(timezone.utc))
    waiting = [*lineage._outbox._waiting]
    assert lineage.dropped > 0
    assert all(item.batch.reads is None for item, _ in waiting)  # it takes six times as much as its text
    assert sum(len(item.reads) for item, _ in waiting) < 2**21


def test_the_key_of_the_client_s_configuration_reaches_the_receiver(
    query: Query, observer: Observer, receiver: LineageReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__AUTH", '{"type": "api_key", "apiKey": "hunter3"}')
    lineage = observer()
    query.report(lineage)
    assert receiver.tokens == ["Bearer hunter3"] * 2
    assert "hunter3" not in json.dumps(receiver.events)


@pytest.mark.long
def test_the_close_of_an_observer_ends_in_time(query: Query, observer: Observer, receiver: LineageReceiver) -> None:
    receiver.delay_s = 5.0
    lineage = observer()
    query.run(query.start(), 0)
    began_s = time.monotonic()
    lineage.close(timeout_s=0.2)
    lineage.close(timeout_s=0.2)
    assert time.monotonic() - began_s < 2
