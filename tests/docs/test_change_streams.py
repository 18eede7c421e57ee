"""The how-to page "Apply a change stream": its code runs, and the tests of its cases are there."""

import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.pages import DOCS, ROOT, blocks

PAGE = DOCS / "change-streams.md"


def record(op: str, offset: int, lsn: int, row: dict[str, Any]) -> dict[str, Any]:
    source = {"connector": "postgresql", "lsn": lsn, "sequence": f'[null,"{lsn}"]'}
    before, after = (row, None) if op == "d" else (None, row)
    value = json.dumps({"op": op, "before": before, "after": after, "source": source})
    key = json.dumps({"id": row["id"]})
    return {"key": key, "value": value, "topic": "customers", "partition": 0, "offset": offset}


@pytest.mark.long
def test_the_code_of_the_page_applies_a_change_stream(spark: SparkSession, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "customers.db")) as database:
        database.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, email TEXT)")
    batches = [
        [
            record("r", 0, 1, {"id": 1, "name": "a", "email": "x@y"}),
            record("c", 1, 2, {"id": 2, "name": "b", "email": "x@y"}),
        ],
        [record("u", 2, 3, {"id": 1, "name": "c", "email": "x@y"}), record("d", 3, 4, {"id": 2})],
    ]
    (tmp_path / "records").mkdir()
    for number, batch in enumerate(batches):
        lines = "".join(json.dumps(each) + "\n" for each in batch)
        file = tmp_path / "records" / f"{number}.json"
        file.write_text(lines)
        os.utime(file, (number, number))  # Spark takes the oldest first
    schema = "key STRING, value STRING, topic STRING, partition INT, offset LONG"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(tmp_path / "records"))
    stream = stream.selectExpr(
        "CAST(key AS BINARY) AS key", "CAST(value AS BINARY) AS value", "topic", "partition", "offset"
    )

    namespace: dict[str, Any] = {}
    for text in blocks(PAGE, "python"):
        exec(text.replace("/data", str(tmp_path)), namespace)  # noqa: S102  # the page's
    query = namespace["start"](stream)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    with closing(sqlite3.connect(tmp_path / "customers.db")) as database:
        assert database.execute("SELECT id, name, email FROM customers").fetchall() == [(1, "c", "x@y")]
    changes = [
        line for file in (tmp_path / "customer-changes").glob("part-*") for line in file.read_text().splitlines()
    ]
    assert sorted(json.loads(line)["op"] for line in changes) == ["c", "d", "r", "u"]


def test_each_test_that_the_page_on_concepts_names_is_there() -> None:
    page = DOCS / "internals" / "concepts.md"
    named = {*re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
    sources = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("twopc/testing/*.py")]
    there = {name for file in sources for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))}
    assert named
    assert named <= there
