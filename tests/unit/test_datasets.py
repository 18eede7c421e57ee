"""What sinks write to, under the names of OpenLineage, and without credentials."""

from typing import Any

import pytest

import twopc
from twopc import Committable, Dataset
from twopc.datasets import of_folder, of_table, of_topic

SECRET = "hunter2"  # noqa: S105  # planted

SINKS: list[tuple[str, dict[str, Any], Dataset]] = [
    (
        "kafka",
        {
            "bootstrap.servers": "b1.example:9093,b2.example",
            "topic": "orders",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "writer",
            "sasl.password": SECRET,
        },
        Dataset("kafka://b1.example:9093", "orders"),
    ),
    ("files", {"path": "/data/orders/"}, Dataset("file", "/data/orders")),
    ("files", {"path": "file:///data/orders"}, Dataset("file", "/data/orders")),
    (
        "files",
        {"path": "s3a://lake/sales/orders/", "storage_options": {"key": "AKIA", "secret": SECRET}},
        Dataset("s3://lake", "sales/orders"),
    ),
    ("files", {"path": "gcs://lake/orders", "storage_options": {"token": SECRET}}, Dataset("gs://lake", "orders")),
    ("delta", {"path": "/data/orders"}, Dataset("file", "/data/orders")),
    (
        "delta",
        {"path": "s3://lake/orders", "storage_options": {"key": "AKIA", "secret": SECRET}},
        Dataset("s3://lake", "orders"),
    ),
    (
        "postgres",
        {"conninfo": f"postgresql://writer:{SECRET}@db.example,db2.example/shop", "table": "sales.orders"},
        Dataset("postgres://db.example:5432", "shop.sales.orders"),
    ),
    (
        "postgres",
        {"conninfo": f"host=/run/postgresql port=5433 user=shop password={SECRET}", "table": "orders"},
        Dataset("postgres://localhost:5433", "shop.public.orders"),
    ),
    (
        "mysql",
        {"url": f"mysql://writer:{SECRET}@db.example/shop", "table": "orders"},
        Dataset("mysql://db.example:3306", "shop.orders"),
    ),
    (
        "mysql",
        {"url": f"mysql://writer:{SECRET}@[::1]:3307/shop", "table": "sales.orders"},
        Dataset("mysql://[::1]:3307", "sales.orders"),
    ),
    (
        "sql",
        {"url": f"postgresql+psycopg://writer:{SECRET}@db.example/shop", "table": "orders"},
        Dataset("postgres://db.example:5432", "shop.public.orders"),
    ),
    (
        "sql",
        {"url": f"mysql+pymysql://writer:{SECRET}@db.example/shop", "table": "sales.orders"},
        Dataset("mysql://db.example:3306", "sales.orders"),
    ),
    ("sql", {"url": "sqlite:////data/shop.db", "table": "orders"}, Dataset("sqlite:/data/shop.db", "orders")),
    (
        "sql",
        {"url": f"postgresql+psycopg://w:{SECRET}@/shop?host=db.example:5433&host=db2.example", "table": "orders"},
        Dataset("postgres://db.example:5433", "shop.public.orders"),
    ),
    (
        "sql",
        {"url": f"postgresql+psycopg://w:{SECRET}@/shop?host=/run/postgresql&port=5433", "table": "orders"},
        Dataset("postgres://localhost:5433", "shop.public.orders"),
    ),
    (
        "sql",
        {"url": "sqlite:///file:/data/shop.db?uri=true", "table": "orders"},
        Dataset("sqlite:/data/shop.db", "orders"),
    ),
    (
        "files",
        {"path": "az://lake/orders", "storage_options": {"account_name": "shop", "account_key": SECRET}},
        Dataset("abfss://lake@shop.dfs.core.windows.net", "orders"),
    ),
    (
        "files",
        {
            "path": "abfs://lake/orders",
            "storage_options": {"connection_string": f"AccountKey={SECRET};AccountName=shop;EndpointSuffix=x"},
        },
        Dataset("abfss://lake@shop.dfs.core.windows.net", "orders"),
    ),
    (
        "pravega",
        {"controller": "tcp://ctl.example:9090", "stream": "sales/orders", "username": "u", "password": SECRET},
        Dataset("pravega://ctl.example:9090", "sales/orders"),
    ),
]


@pytest.mark.parametrize(("backend", "options", "dataset"), SINKS)
def test_a_sink_names_what_it_writes_to_without_its_credentials(
    backend: str, options: dict[str, Any], dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGSERVICE", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    found = twopc.create_sink(backend, options).datasets([])
    assert found is not None
    assert [*found] == [dataset]
    assert SECRET not in repr(found)


def test_a_kafka_sink_without_a_topic_names_those_that_the_batch_was_written_to() -> None:
    sink = twopc.create_sink("kafka", {"bootstrap.servers": "b1.example"})
    written = [
        Committable("one", {"partitions": {"returns": [0], "orders": [0, 1]}}),
        Committable("two", {"partitions": {"orders": [2]}}),
    ]
    assert sink.datasets(written) == [
        Dataset("kafka://b1.example:9092", "orders"),
        Dataset("kafka://b1.example:9092", "returns"),
    ]
    assert sink.datasets([]) == []


def test_the_topics_of_a_kafka_sink_that_writes_no_transactions_are_not_known() -> None:
    sink = twopc.create_sink("kafka", {"bootstrap.servers": "b1.example", "delivery": "at-least-once"})
    assert sink.datasets([Committable("one", {}, 3)]) is None


def test_a_sink_of_offsets_writes_no_dataset() -> None:
    sink = twopc.create_sink("kafka-offsets", {"bootstrap.servers": "b1.example", "group.id": "orders"})
    assert sink.datasets([Committable("one", {}, 3)]) == ()


def test_an_iceberg_table_is_not_known_before_the_catalog_was_asked() -> None:
    sink = twopc.create_sink("iceberg", {"table": "sales.orders", "catalog.uri": f"https://u:{SECRET}@c.example"})
    assert sink.datasets([]) is None


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("postgres", {"conninfo": "service=shop", "table": "orders"}),
        ("mysql", {"url": "mysql:///shop?read_default_file=/etc/my.cnf", "table": "orders"}),
        ("sql", {"url": "postgresql+psycopg:///shop?service=shop", "table": "orders"}),
    ],
)
def test_a_server_that_only_the_client_library_finds_is_not_known(backend: str, options: dict[str, Any]) -> None:
    assert twopc.create_sink(backend, options).datasets([]) is None


@pytest.mark.parametrize(
    ("url", "dataset"),
    [
        ("/data/orders", Dataset("file", "/data/orders")),
        ("/", Dataset("file", "/")),
        ("file:/data/orders", Dataset("file", "/data/orders")),
        ("s3n://lake", Dataset("s3://lake", "/")),
        ("hdfs://name.example:8020/data/orders/", Dataset("hdfs://name.example:8020", "/data/orders")),
        ("hdfs://writer@name.example:8020/data", Dataset("hdfs://name.example:8020", "/data")),
        ("abfs://lake@shop.dfs.core.windows.net/orders", Dataset("abfss://lake@shop.dfs.core.windows.net", "orders")),
        (
            f"abfs://lake@shop.blob.core.windows.net/orders?sv=2024&sig={SECRET}",
            Dataset("abfss://lake@shop.dfs.core.windows.net", "orders"),
        ),
        (f"https://shop.example/orders?sv=2024&sig={SECRET}", Dataset("https://shop.example", "/orders")),
        (f"s3://AKIA:{SECRET}/x@lake/orders", Dataset("s3://lake", "orders")),
        (f"hdfs://writer:{SECRET}@name.example/data", Dataset("hdfs://name.example", "/data")),
    ],
)
def test_a_folder_is_named_by_its_store_and_its_path(url: str, dataset: Dataset) -> None:
    assert of_folder(url) == dataset


def test_the_account_of_a_container_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    assert of_folder("az://lake/orders") == Dataset("abfss://lake", "orders")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    assert of_folder("az://lake/orders") == Dataset("abfss://lake@shop.dfs.core.windows.net", "orders")


def test_a_topic_is_named_by_the_first_server_of_its_cluster() -> None:
    assert of_topic("SSL://b1.example:9093, b2.example", "orders") == Dataset("kafka://b1.example:9093", "orders")
    assert of_topic("[::1]", "orders") == Dataset("kafka://[::1]:9092", "orders")


def test_a_table_is_named_by_its_server_and_the_path_to_it() -> None:
    assert of_table("mysql", "::1", 3306, "shop", "orders") == Dataset("mysql://[::1]:3306", "shop.orders")
