"""Records a commit log of today's format with every backend and every kind of entry, for ``test_log_format.py``.

``python -m tests.unit.log_format.record`` starts a Kafka broker and servers of PostgreSQL, MariaDB and Pravega, runs
batches into all sinks, and writes the log's entries into the folder ``format_<FORMAT>``. It is run once per format. The
entries are then frozen, as a released version has written entries like them: the script refuses to replace them.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from tests.sinks.delta.conftest import Place as DeltaPlace
from tests.sinks.iceberg.conftest import VALUE
from tests.sinks.iceberg.conftest import Place as IcebergPlace
from tests.sinks.mysql.conftest import new_place as new_mysql_place
from tests.sinks.postgres.conftest import Place as PostgresPlace
from tests.sinks.pravega.conftest import make_place as make_pravega_place
from tests.sinks.sql.conftest import Place as SqlPlace
from tests.support.commit_log import CommitLog
from tests.support.mariadb_server import MariaDbServer
from tests.support.postgres_server import PostgresServer
from tests.support.pravega_server import PravegaServer
from tests.support.sql_databases import Databases
from twopc import Coordinator, Participant, Round, TwoPhaseCommitSink
from twopc.checkpoint.offsets import Reads, parse
from twopc.log import factored
from twopc.log.entries import Decision
from twopc.log.entry_json import FORMAT
from twopc.log.store import open_store
from twopc.participant import Vote
from twopc.replay import ReplayCopies
from twopc_files import FileSink
from twopc_kafka import KafkaSink
from twopc_kafka.offsets_sink import KafkaProgressSink
from twopc_kafka_broker import KafkaBroker

OWNER = "5a3f0a52-6a0c-4a4e-9d3c-0c7b1f7f4f5e"  # such as Spark gives a query

PARTITIONS, RECORDS = 2, 3

ENTRIES = Path(__file__).parent / f"format_{FORMAT}"

Sinks = Mapping[str, TwoPhaseCommitSink[Any]]


def made_sinks(folder: Path, servers: ExitStack) -> Sinks:
    """Return a sink of each backend, by the backend's name, on servers of its own."""
    broker = servers.enter_context(KafkaBroker())
    broker.create_topic("orders", PARTITIONS)
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    postgres = PostgresPlace(
        servers.enter_context(PostgresServer(max_prepared_transactions=10)), "sales", prefix="twopc"
    )
    postgres.ask("CREATE SCHEMA sales; CREATE TABLE {} (value text)")
    lake = IcebergPlace({"uri": f"sqlite:///{folder}/catalog.db", "warehouse": (folder / "warehouse").as_uri()})
    lake.create(spec=PartitionSpec(PartitionField(VALUE.fields[0].field_id, 1000, IdentityTransform(), "value")))
    delta = DeltaPlace(str(folder / "delta"))
    delta.create()
    sql = SqlPlace(servers.enter_context(Databases()).url("sqlite", folder))
    sql.create("value {text}")
    return {
        "delta": delta.unbound(),
        "files": FileSink({"path": str(folder / "files"), "format": "json", "partition_by": "half"}),
        "iceberg": lake.unbound(),
        "kafka": KafkaSink({**kafka, "topic": "orders"}),
        "kafka-offsets": KafkaProgressSink({**kafka, "group.id": "archiver"}),
        "mysql": new_mysql_place(servers.enter_context(MariaDbServer())).unbound(),
        "postgres": postgres.unbound(),
        "pravega": make_pravega_place(servers.enter_context(PravegaServer())).unbound(),
        "sql": sql.unbound(),
    }


def records(backend: str, batch_id: int, partition: int) -> pa.RecordBatch:
    """Return what a partition of a batch writes to a sink."""
    if backend == "kafka-offsets":
        columns = [["orders"], [partition], [RECORDS * (batch_id + 1)]]
        return pa.record_batch(columns, pa.schema({"topic": "string", "partition": "int32", "offset": "int64"}))
    values = [f"{batch_id}-{partition}-{n}" for n in range(RECORDS)]
    halves = {"half": [n % 2 for n in range(RECORDS)]} if backend == "files" else {}
    return pa.record_batch({"value": values, **halves})


def reads(batch_id: int) -> Reads:
    """Return what a batch reads: Spark's entry in its offset log."""
    end = RECORDS * (batch_id + 1)
    metadata = f'{{"batchWatermarkMs":0,"batchTimestampMs":1795000000{batch_id:03d},"conf":{{}}}}'
    return parse(f'v1\n{metadata}\n{{"orders":{{"0":{end},"1":{end}}}}}')


def written(sinks: Sinks, round: Round) -> Iterator[Vote]:
    """Write a batch, and yield the votes. Records have hashes, as with ``on_loss="recompute"``."""
    for partition in range(PARTITIONS):
        with Participant(sinks, round, partition=partition) as participant:
            for name in sinks:
                batch = records(name, round.batch_id, partition)
                participant.write(name, batch, pa.array([2**40 + n for n in range(batch.num_rows)]))
            yield participant.pre_commit()


def record(sinks: Sinks, folder: Path) -> None:
    """Have coordinators write a log into ``folder/log``."""
    log, copies = folder / "log", folder / "copies"
    with Coordinator(sinks, log, owner=OWNER, replay_copies=copies, rest_interval_s=None) as coordinator:
        coordinator.run(0, partial(written, sinks), reads=reads(0))
        coordinator.rest()
        coordinator.run(1, partial(written, sinks), reads=reads(1), follows=reads(0))
    prefixes = {name: sink.prefix for name, sink in sinks.items()}
    # What a failure makes a coordinator write, without the failure.
    store = open_store(log)
    opened = CommitLog.open(store, OWNER, prefixes)
    for name, sink in sinks.items():
        sink.bind(name, opened.tail.log_id, ReplayCopies(str(copies)) if sink.may_time_out else None)
        sink.open()
    votes = [*written(sinks, Round(opened.incarnation, 2))]
    sealed = {name: sink.seal([vote[name] for vote in votes], 0.0) for name, sink in sinks.items()}
    decision = Decision(Round(opened.incarnation, 2), {name: tuple(each) for name, each in sealed.items()})
    opened.decide(decision, reads(2))
    again = [*written({"kafka": sinks["kafka"]}, Round(opened.incarnation, 2, replay=1))]
    kafka = tuple(sinks["kafka"].seal([vote["kafka"] for vote in again], 0.0))
    opened.amend(replace(decision, committables={**decision.committables, "kafka": kafka}))
    opened.abandon(2, {"postgres": decision.committables["postgres"][:1]}, "ann@ops")
    CommitLog.open(store, OWNER, prefixes)


def main() -> int:
    if [*ENTRIES.glob("*.json")]:
        print(f"{ENTRIES} has entries already, which are frozen", file=sys.stderr)  # noqa: T201
        return 1
    factored.FACTORED_FROM = PARTITIONS  # as the transactions of many tasks are written
    with TemporaryDirectory(prefix="twopc-log-") as temporary, ExitStack() as servers:
        folder = Path(temporary)
        record(made_sinks(folder, servers), folder)
        ENTRIES.mkdir(exist_ok=True)
        for entry in (folder / "log").glob("0*.json"):
            (ENTRIES / entry.name).write_bytes(entry.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
