"""The service of ``docs/without-spark.md`` as it runs in a cloud, killed at random and amid its commits: it logs in to
Kafka by tokens that end, reads a topic in Avro whose writers have two schemas, and writes into Glue's catalog.

The broker checks the tokens' signatures, the registry is Apicurio, and Glue is moto's behind a proxy that compares
versions.
"""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField

from tests.campaigns.killed_loop import open_transactions
from tests.sinks.iceberg.test_glue import KEYS, Glue
from tests.sinks.kafka.access import allow, by_provider
from tests.sinks.kafka.conftest import SecondBroker, _started
from tests.support.apicurio_server import ApicurioServer
from tests.support.between import nothing, once
from tests.support.contents import difference
from tests.support.kills import Process, start_logged
from tests.support.pages import DOCS, ROOT, write_files
from tests.support.s3_server import S3Server
from twopc_kafka_broker.java import find_java

OF_PAGE = {
    '"bootstrap.servers": os.environ["KAFKA"]': '**json.loads(os.environ["KAFKA"])',
    '"catalog.type": "sql",': '**json.loads(os.environ["CATALOG"]),',
    '"catalog.uri": os.environ["CATALOG"],': "",
    '"catalog.warehouse": os.environ["WAREHOUSE"],': "",
    "json.loads(value)": "decode(value, None)",
    "logging.basicConfig": (
        "from confluent_kafka.schema_registry import SchemaRegistryClient\n"
        "from confluent_kafka.schema_registry.avro import AvroDeserializer\n"
        'decode = AvroDeserializer(SchemaRegistryClient({"url": os.environ["REGISTRY"]}))\n'
        "logging.basicConfig"
    ),
}
"""What a user changes on the page → into what."""

TOPIC, GROUP, TABLE = "orders", "orders-to-lake", "sales.orders"

RECORDS = 50
"""Between two kills."""

TOKEN_LIFE_S = 20

NOT_LONGER_S = 120.0
"""How long a start may take to commit a batch."""


@dataclass
class _Cloud:
    """What the service needs, for as long as it runs."""

    broker: SecondBroker
    glue: Glue
    registry: str
    folder: Path

    def __post_init__(self) -> None:
        self.broker.issuer.life_s = TOKEN_LIFE_S
        self.broker.broker.create_topic(TOPIC, partitions=2)
        for operation, kind, name, pattern in (
            (AclOperation.READ, ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL),
            (AclOperation.READ, ResourceType.GROUP, GROUP, ResourcePatternType.LITERAL),
            (AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "twopc.", ResourcePatternType.PREFIXED),
        ):
            allow(self.broker, "granted", operation, kind, name, pattern)
        warehouse = f"file://{self.folder}/lake"
        self.catalog = {"type": "glue", "glue.endpoint": self.glue.url, "warehouse": warehouse, **KEYS}
        fields = NestedField(1, "id", LongType()), NestedField(2, "amount", DoubleType())
        catalog = load_catalog("lake", **self.catalog)
        catalog.create_namespace("sales")
        catalog.create_table(TABLE, Schema(*fields))
        self.sent = 0
        self._producer = confluent_kafka.Producer({"bootstrap.servers": self.broker.broker.bootstrap_servers})
        client, kinds = SchemaRegistryClient({"url": self.registry}), (("id", "long"), ("amount", "double"))
        self._serializers = [AvroSerializer(client, _record(each)) for each in (kinds, kinds[::-1])]

    @property
    def login(self) -> dict[str, str]:
        return {name.replace("_", "."): value for name, value in by_provider(self.broker, self.folder).items()}

    @property
    def of_lake(self) -> dict[str, str]:
        return {f"catalog.{name}": value for name, value in self.catalog.items()}

    def send(self) -> None:
        """Write records of both schemas into both partitions."""
        for _ in range(RECORDS):
            context = SerializationContext(TOPIC, MessageField.VALUE)
            serializer: Any = self._serializers[self.sent % 3 % 2]  # both in each partition
            value = serializer({"id": self.sent, "amount": 0.5}, context)
            self._producer.produce(TOPIC, value, partition=self.sent % 2)
            self.sent += 1
        assert self._producer.flush(60) == 0

    def start(self) -> Process:
        settings = {"KAFKA": self.login, "CATALOG": self.of_lake}
        os.environ.update({name: json.dumps(each) for name, each in settings.items()})
        os.environ.update(REGISTRY=self.registry, LOG=f"{self.folder}/log", PYTHONPATH=str(ROOT))
        return start_logged(self.folder / "service.log", str(self.folder / "service.py"))

    def ids(self) -> list[int]:
        found: list[int] = load_catalog("lake", **self.catalog).load_table(TABLE).scan().to_arrow()["id"].to_pylist()
        return found

    def open_transactions(self) -> int:
        """How many the two sinks have left."""
        of_lake = {"table": TABLE, "catalog": "lake", **self.of_lake}
        sinks = {"lake": ("iceberg", of_lake), "offsets": ("kafka-offsets", {**self.login, "group.id": GROUP})}
        return open_transactions(self.folder / "log", sinks)


def _record(fields: tuple[tuple[str, str], ...]) -> str:
    parts = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "order", "fields": parts})


@contextlib.contextmanager
def _cloud(folder: Path) -> Iterator[_Cloud]:
    for each in ("broker", "registry"):
        (folder / each).mkdir(parents=True)
    write_files(DOCS / "without-spark.md", folder)
    page = folder / "service.py"
    text = page.read_text(encoding="utf-8")
    for old, new in OF_PAGE.items():
        assert old in text, f"the page has no {old}"
        text = text.replace(old, new)
    page.write_text(text, encoding="utf-8")
    with contextlib.ExitStack() as servers:
        broker = servers.enter_context(_started(folder / "broker"))
        moto = servers.enter_context(S3Server(folder / "moto.log"))
        registry = servers.enter_context(ApicurioServer(folder / "registry", str(find_java().home)))
        yield _Cloud(broker, servers.enter_context(Glue(moto.endpoint_url)), registry.url, folder)


def killed(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill the service so often: by turns at a random moment, and before and after the update of the catalog."""
    chance = random.Random(seed)  # noqa: S311  # a seed must reproduce a run
    with _cloud(folder) as cloud:
        running = cloud.start()
        try:
            for number in range(kills):
                cloud.send()
                _until(lambda: len(cloud.ids()) >= cloud.sent, running)
                if at := number % 3:  # its next update is that of a commit: a start's own is made
                    setattr(cloud.glue, ("before", "after")[at - 1], once(running.kill))
                cloud.send()
                if not at:
                    time.sleep(chance.uniform(0, 0.4))
                    running.kill()
                assert running.wait(NOT_LONGER_S) == -signal.SIGKILL
                cloud.glue.before = cloud.glue.after = nothing
                running = cloud.start()
            cloud.send()  # as the last kill's update may come late, and is no sign of the last start
            _until(lambda: len(cloud.ids()) >= cloud.sent, running)
            running.terminate()
            assert running.wait(NOT_LONGER_S) == 0
        finally:
            running.kill()
            running.wait()
        of_records = difference(range(cloud.sent), cloud.ids())
        found = {"kills": kills, "records": cloud.sent, "tokens": len(cloud.broker.issuer.tokens), **asdict(of_records)}
        return {**found, "leftovers": cloud.open_transactions()}


def _until(is_so: Any, running: Process) -> None:
    deadline = time.monotonic() + NOT_LONGER_S
    while not is_so():
        assert running.poll() is None, "the service has ended: see service.log"
        assert time.monotonic() < deadline, "the service commits nothing: see service.log"
        time.sleep(0.1)
