"""The PostgreSQL sink keeps the contract of every sink, on a real server."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.typed_records import typed
from twopc.testing import KeyedSinkContract, SinkContract
from twopc_postgres import PostgresSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sinks.postgres.conftest import Place


COLUMNS = {
    "value": "text",
    "whole": "bigint",
    "fraction": "float8",
    "flag": "boolean",
    "tags": "text[]",
    "at": "timestamptz",
    "day": "date",
    "amount": "numeric(12,2)",
    "raw": "bytea",
}


class TestAppend(SinkContract):
    upsert_by = ""

    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = place
        place.create(", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))

    def make_sink(self) -> PostgresSink:
        return self.place.unbound(upsert_by=self.upsert_by)

    def visible(self) -> list[str]:
        return self.place.values()

    def leftovers(self) -> list[str]:
        return self.place.prepared()

    @contextmanager
    def silent_sink(self) -> Iterator[PostgresSink]:
        sink = PostgresSink({"conninfo": "host=127.0.0.1 port=1", "table": self.place.table})
        sink.prefix = self.place.prefix
        yield sink

    def sample(self) -> pa.RecordBatch:
        return typed()

    def with_bad_records(self) -> pa.RecordBatch:
        """No text of PostgreSQL holds a NUL."""
        return pa.record_batch({"value": ["a", "b", "c\0", "d", "\0", "\0\0", "e"]})

    def visible_records(self) -> list[dict[str, Any]]:
        rows = self.place.ask("SELECT * FROM {}")
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


@pytest.mark.long
class TestUpsert(TestAppend):
    upsert_by = "value"

    @pytest.fixture(autouse=True)
    def _key(self, _place: None) -> None:
        self.place.ask("ALTER TABLE {} ADD PRIMARY KEY (value)")


class TestKeyed(KeyedSinkContract):
    kills = 12

    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = place
        place.create("id text PRIMARY KEY, value text")

    def make_sink(self) -> PostgresSink:
        return self.place.unbound(upsert_by="id")

    def rows(self) -> list[tuple[str, str | None]]:
        return [(key, value) for key, value in self.place.ask("SELECT id, value FROM {}")]
