"""The MySQL sink keeps the contract of every sink, on a real MariaDB server."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.typed_records import typed
from twopc.testing import KeyedSinkContract, SinkContract
from twopc_mysql import MysqlSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sinks.mysql.conftest import Place


COLUMNS = {
    "value": "VARCHAR(255)",
    "whole": "BIGINT",
    "fraction": "DOUBLE",
    "flag": "BOOLEAN",
    "at": "DATETIME(6)",
    "day": "DATE",
    "amount": "DECIMAL(12,2)",
    "raw": "VARBINARY(20)",
}


class TestAppend(SinkContract):
    upsert_by = ""

    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = place
        place.create(", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))

    def make_sink(self) -> MysqlSink:
        return self.place.unbound(upsert_by=self.upsert_by)

    def visible(self) -> list[str]:
        return self.place.values()

    def leftovers(self) -> list[str]:
        return self.place.prepared()

    @contextmanager
    def silent_sink(self) -> Iterator[MysqlSink]:
        sink = MysqlSink({"url": "mysql://root@127.0.0.1:1/none", "table": "orders"})
        sink.prefix = self.place.prefix
        yield sink

    def sample(self) -> pa.RecordBatch:
        return typed().drop_columns(["tags"])  # there is no type for a list

    def with_bad_records(self) -> pa.RecordBatch:
        return pa.record_batch({"value": ["a", "b", "c" * 256, "d", "e" * 300, "f" * 1000, "g"]})

    def visible_records(self) -> list[dict[str, Any]]:
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in self.place.ask("SELECT * FROM {}")]
        for row in rows:
            row["at"] = row["at"] and row["at"].replace(tzinfo=timezone.utc)
            row["flag"] = None if row["flag"] is None else bool(row["flag"])
        return rows


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
        place.create("id VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, value TEXT")

    def make_sink(self) -> MysqlSink:
        return self.place.unbound(upsert_by="id")

    def rows(self) -> list[tuple[str, str | None]]:
        return [(key, value) for key, value in self.place.ask("SELECT id, value FROM {}")]
