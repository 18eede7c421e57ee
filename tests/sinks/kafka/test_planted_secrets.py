"""A secret of each kind is planted, and looked for in all that a query and the command show as they work and fail."""

import base64
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.sinks.kafka.access import STORE_PASSWORD, as_user, by_provider, by_store, by_token, grant
from tests.support.kills import all_of, arguments, bound, kill_all_of
from tests.support.postgres_server import PostgresServer
from tests.support.s3_server import S3Server

DRIVER = Path(__file__).with_name("secrets_driver.py")
TIMEOUT_S = 120

AT_DEBUG = "import logging; logging.basicConfig(level=logging.DEBUG)"


def dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in options.items()}


def in_base64(secret: str) -> set[str]:
    """What of ``secret`` is seen in whatever contains it, is in base64."""
    shifted = (base64.b64encode(b" " * shift + secret.encode()).decode() for shift in range(3))
    return {text[4:-4] for text in shifted}


def run_driver(job: dict[str, Any], folder: Path) -> str:
    """What it and all that it started print, and their command lines."""
    (folder / "python").mkdir()
    (folder / "python" / "sitecustomize.py").write_text(AT_DEBUG)
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "spark-events").mkdir()
    environment = os.environ | {"PYTHONPATH": f"{folder / 'python'}:{DRIVER.parents[3]}"}
    lines = set()
    with (folder / "job.json").open() as given, (folder / "printed").open("wb") as printed:
        driver = subprocess.Popen(
            bound(sys.executable, str(DRIVER)),
            stdin=given,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while driver.poll() is None and time.monotonic() < deadline:
                lines |= {" ".join(arguments(process)) for process in all_of(driver)}
                time.sleep(0.1)
        finally:
            kill_all_of(driver)
    (folder / "job.json").unlink()
    told = (folder / "printed").read_text(encoding="utf-8", errors="replace")
    assert driver.returncode == 0, told[-5000:]
    assert any("pyspark.daemon" in line for line in lines), "the workers were seen"
    return told + "\n".join(lines)


def command(*given: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "twopc.cli", *map(str, given)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def as_toml(sinks: dict[str, Any]) -> Iterator[str]:
    for name, (backend, options) in sinks.items():
        yield f"[{name}]\nbackend = {json.dumps(backend)}\n"
        for option, value in options.items():
            yield f"{json.dumps(option)} = {json.dumps(value)}\n"


@pytest.mark.long
def test_no_secret_is_in_logs_entries_events_errors_process_lists_or_what_the_command_prints(
    second_broker: Any, make_topic: Any, prefix: str, java_home: str, tmp_path: Path
) -> None:
    topic = make_topic(on=second_broker.broker)
    grant(second_broker, "granted", topic.name, prefix)
    of_store, wrong = (f"{name}-hunter2-{uuid.uuid4().hex}" for name in ("store", "wrong"))
    folder = tmp_path / "query"
    folder.mkdir()
    with PostgresServer(max_prepared_transactions=20) as postgres, S3Server(tmp_path / "s3.log") as s3:
        with psycopg.connect(postgres.conninfo) as connection:
            connection.execute("CREATE TABLE totals (id bigint CHECK (id > 0))")
        fsspec.filesystem("s3", **s3.storage_options).mkdir("archive")
        to_kafka = {"topic": topic.name, "transactional.id.prefix": prefix}
        by_client = to_kafka | dotted(by_token(second_broker, tmp_path)) | {"writer": "arrow"}
        librdkafka = {"writer": "librdkafka", "debug": "all"}
        in_store = {
            "path": "s3://archive/orders",
            "storage_options": json.dumps({**s3.storage_options, "secret": of_store}),
        }
        sinks: dict[str, Any] = {
            "orders": ("kafka", by_client),
            "audit": ("kafka", to_kafka | dotted(as_user(second_broker, "granted")) | librdkafka),
            "provided": ("kafka", to_kafka | dotted(by_provider(second_broker, tmp_path)) | librdkafka),
            "stored": ("kafka", to_kafka | dotted(by_store(second_broker, tmp_path)) | librdkafka),
            "totals": ("postgres", {"conninfo": postgres.conninfo, "table": "totals"}),
            "archive": ("files", in_store),
        }
        private_key = (tmp_path / "client.key").read_text().splitlines()[1]
        unknown = ("kafka", by_client | {"sasl.oauthbearer.client.secret": wrong})
        unusable: dict[str, Any] = {
            "orders": unknown,
            "totals": ("postgres", {"conninfo": make_conninfo(postgres.conninfo, password=wrong), "table": "totals"}),
            "archive": ("files", in_store | {"path": "s3://nowhere/orders"}),
        }
        told = run_driver({"folder": str(folder), "sinks": sinks, "wrong": {"orders": unknown}}, folder)
        (tmp_path / "wrong.toml").write_text("".join(as_toml(sinks | unusable)))
        (tmp_path / "right.toml").write_text("".join(as_toml(sinks)))
        told += command("doctor", "--sinks", tmp_path / "wrong.toml", "--log", folder / "log", "--timeout-s", 2)
        told += command("resolve", folder / "log", "--sinks", tmp_path / "right.toml", "--yes")
        secrets = [of_store, wrong, postgres.password, second_broker.passwords["granted"], *second_broker.issuer.tokens]
        secrets += [STORE_PASSWORD, private_key]
    files = [file for file in folder.rglob("*") if file.is_file()]
    told += "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    loggers = ["py4j.client", "kafka.net", "twopc_kafka.writers.librdkafka", "botocore"]
    events = ["event: BatchFinished", "breaks the table's rules", "RecordRefused", "refuses this client"]
    assert [heard for heard in loggers + events if heard not in told] == []
    for secret in secrets:
        assert secret not in told
        assert not [part for part in in_base64(secret) if part in told]
