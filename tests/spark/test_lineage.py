"""The lineage of a query from Kafka to Kafka and files, as a receiver of OpenLineage gets it."""

import pytest

import twopc
from tests.spark.conftest import Pipeline, Topic, rows
from tests.support.lineage_receiver import LineageReceiver
from tests.support.observing import observing
from tests.support.spark_session import write_all
from twopc.observers.openlineage import OpenLineageObserver
from twopc.spark import Output, foreach_batch
from twopc_kafka_broker import KafkaBroker


@pytest.mark.long
def test_a_query_reports_the_topics_that_it_reads_and_those_that_its_records_name(
    pipeline: Pipeline, topic: Topic, kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [f"{topic.name}-{each}" for each in "ab"]
    for target in targets:
        kafka_broker.create_topic(target, partitions=1)
    pipeline.add_batch(rows(*range(10)))
    pipeline.run(pipeline.writer(Output(topic.sink(), ["CAST(id AS STRING) AS value"])))

    routed = {name: value for name, value in topic.options.items() if name != "topic"}
    where = f"concat('{topic.name}-', if(CAST(value AS STRING) < '5', 'a', 'b')) AS topic"
    copy = pipeline.beside("copy")
    writer = foreach_batch(
        {
            "archive": Output(copy.files(), ["CAST(value AS STRING) AS id"]),
            "copies": Output(twopc.create_sink("kafka", routed), [where, "value"]),
        },
        log=str(copy.log),
    )
    with LineageReceiver() as receiver:
        monkeypatch.setenv("OPENLINEAGE_URL", receiver.url)
        lineage = OpenLineageObserver("shop", source_brokers=topic.servers)
        with observing(lineage):
            write_all(topic.stream(pipeline.spark, 100).writeStream.foreachBatch(writer), copy.checkpoint)
        lineage.close()
    start, event = receiver.events
    assert (start["eventType"], event["eventType"]) == ("START", "COMPLETE")
    assert (event["job"]["namespace"], event["job"]["name"]) == ("shop", copy.entries("decide")[0]["owner"])
    assert [(each["namespace"], each["name"]) for each in event["inputs"]] == [(f"kafka://{topic.servers}", topic.name)]
    archive, *copies = event["outputs"]
    assert (archive["namespace"], archive["name"]) == ("file", str(copy.folder / "archive"))
    assert archive["outputFacets"]["outputStatistics"]["rowCount"] == 10
    assert [(field["name"], field["type"]) for field in archive["facets"]["schema"]["fields"]] == [("id", "string")]
    assert [(each["namespace"], each["name"]) for each in copies] == [
        (f"kafka://{topic.servers}", target) for target in targets
    ]
    facet = event["run"]["facets"]["twopc_batch"]
    assert facet["records"] == {"archive": 10, "copies": 10}
    read = facet["reads"]["0"][topic.name]
    assert read.keys() == {"0", "1"}
    assert sum(read.values()) >= 10  # with the markers of the transactions
