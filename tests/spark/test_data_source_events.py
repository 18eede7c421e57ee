"""The events of ``format("twopc")`` on a real Spark, as observers of the driver get them."""

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  # its customary name

from tests.spark.conftest import Pipeline, rows
from tests.support.lineage_receiver import LineageReceiver
from tests.support.observing import observing
from tests.support.spark_session import write_all
from twopc.events import BatchCommitted, BatchFailed, BatchFinished, Event
from twopc.observers.json_lines import EventReader
from twopc.observers.openlineage import OpenLineageObserver
from twopc.observers.prometheus import PrometheusObserver
from twopc.spark import forward_events

pytestmark = pytest.mark.usefixtures("data_source")


def run(pipeline: Pipeline, events: Path, divisor: int = 1) -> None:
    """Run the query over all added batches. With a divisor of 0, its tasks fail."""

    @F.udf("long")
    def divided(number: int) -> int:
        return number // divisor

    options = {
        "log": str(pipeline.log),
        "sink": "faulty-files",
        "faults": str(pipeline.folder / "faults"),
        "path": str(pipeline.folder / "archive"),
        "format": "json",
        "events": str(events),
    }
    stream = pipeline.source().select(divided("id").alias("id"), "name").writeStream.format("twopc").options(**options)
    write_all(stream, pipeline.checkpoint)


def of_type(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.long
@pytest.mark.crash
def test_metrics_and_lineage_are_those_of_a_driver_that_runs_the_batches_itself(
    pipeline: Pipeline, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, registry = pipeline.folder / "events.jsonl", CollectorRegistry()
    faults = pipeline.folder / "faults"
    faults.mkdir()

    def counted(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"twopc_{name}", {"owner": owner, **labels})

    with LineageReceiver() as receiver, observing(PrometheusObserver(registry)):
        monkeypatch.setenv("OPENLINEAGE_URL", receiver.url)
        lineage = OpenLineageObserver("shop")
        with observing(lineage), forward_events(spool):
            pipeline.add_batch(rows(1, 2, 3))
            pipeline.add_batch(rows(4))
            run(pipeline, spool)

            pipeline.add_batch(rows(5))
            with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
                run(pipeline, spool, divisor=0)
            (faults / "commit").write_text("die")  # the batch is decided, and its process says no more
            with pytest.raises(StreamingQueryException):
                run(pipeline, spool)
            run(pipeline, spool)
        lineage.close()

    owner = json.loads((pipeline.checkpoint / "metadata").read_text())["id"]
    assert counted("batches_total", already_decided="false") == 2
    assert counted("batches_total", already_decided="true") == 1
    assert counted("records_total", sink="sink") == 4
    assert counted("batch_duration_seconds_count") == 3
    for phase, times in {"recovering": 3, "pre-committing": 2, "deciding": 2, "committing": 2}.items():
        assert counted("phase_duration_seconds_count", phase=phase) == times
    assert counted("failed_batches_total", error="RoundAborted") == 1
    assert counted("recovered_transactions_total", sink="sink") == 1
    assert counted("batch_id") == 2

    finished, committed = of_type(events, BatchFinished), of_type(events, BatchCommitted)
    assert [(batch.batch_id, batch.records) for batch in finished] == [(0, {"sink": 3}), (1, {"sink": 1}), (2, {})]
    assert [(batch.batch_id, batch.recovered) for batch in committed] == [(0, False), (1, False), (2, True)]
    assert [batch.batch_id for batch in of_type(events, BatchFailed)] == [2]
    completed = [event for event in receiver.events if event["eventType"] == "COMPLETE"]
    assert [event["run"]["facets"]["twopc_batch"]["batchId"] for event in completed] == [0, 1, 2]
    [output] = completed[0]["outputs"]
    assert output["name"] == str(pipeline.folder / "archive")
    assert [(field["name"], field["type"]) for field in output["facets"]["schema"]["fields"]] == [
        ("id", "int64"),
        ("name", "string"),
    ]
    # The file has them all for another process, too.
    assert [repr(recorded.event) for recorded in EventReader(spool).read()] == [*map(repr, events)]


@pytest.mark.long
def test_a_file_that_can_not_be_written_fails_no_batch_and_one_among_the_records_is_refused(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(1))
    run(pipeline, pipeline.folder / "not there" / "events.jsonl")
    assert pipeline.archived_ids() == [1]
    pipeline.add_batch(rows(2))
    with pytest.raises(StreamingQueryException, match=r"the events file is at .*, where sink 'sink' writes"):
        run(pipeline, pipeline.folder / "archive" / "events.jsonl")
    assert pipeline.archived_ids() == [1]
    assert sorted(path.name for path in (pipeline.folder / "archive").glob("*.jsonl")) == []
