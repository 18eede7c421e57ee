"""The SQL sink keeps the contract of every sink, on real databases."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests.sinks.sql.conftest import Place, databases_but_long
from tests.support.typed_records import typed
from twopc.testing import KeyedSinkContract, SinkContract
from twopc_sql import SqlSink

COLUMNS = {
    "value": "{key}",
    "whole": "BIGINT",
    "fraction": "{float}",
    "flag": "BOOLEAN",
    "day": "DATE",
    "amount": "NUMERIC(12,2)",
    "raw": "{bytes}",
}

TYPES: dict[str, sa.types.TypeEngine[Any]] = {"flag": sa.Boolean(), "day": sa.Date(), "amount": sa.Numeric(12, 2)}


@pytest.fixture(params=databases_but_long("sqlite"))
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestAppend(SinkContract):
    finds_lost_batches = True
    upsert_by = ""
    kills = 8  # in each of four databases; make prove-plugin kills at every step

    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = place
        place.create(", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))

    def make_sink(self) -> SqlSink:
        return self.place.unbound(upsert_by=self.upsert_by)

    def visible(self) -> list[str]:
        return self.place.values()

    def leftovers(self) -> list[str]:
        return ["a staged record"] * self.place.staged()

    @contextmanager
    def silent_sink(self) -> Iterator[SqlSink]:
        url = self.place.url
        is_file = url.database is not None and "/" in url.database
        unreadable = "/proc/self/mem"  # as a file of a disk that fails
        away = url.set(database=unreadable) if is_file else url.set(host="127.0.0.1", port=1, query={})
        yield SqlSink({"url": away, "table": self.place.table})

    def sample(self) -> pa.RecordBatch:
        return typed().select(list(COLUMNS))

    def with_bad_records(self) -> pa.RecordBatch:
        """No database holds text that is not UTF-8, or a year of six digits."""
        days = pa.array([1, 2, 10_000_000, 4, 10_000_000, 10_000_000, 7], pa.date32())
        return pa.record_batch({"value": ["a", "b", "c", "d", "e", "f", "g"], "day": days})

    def visible_records(self) -> list[dict[str, Any]]:
        """By SQLAlchemy's types: in SQLite, a date is text."""
        columns = [sa.column(name, TYPES.get(name, sa.types.NullType())) for name in COLUMNS]
        return self.place.select(columns)


@pytest.mark.long
class TestUpsert(TestAppend):
    upsert_by = "value"

    @pytest.fixture(autouse=True)
    def _key(self, _place: None) -> None:
        self.place.ask("CREATE UNIQUE INDEX of_values ON {} (value)")


class TestKeyed(KeyedSinkContract):
    kills = 8

    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = place
        place.create("id {key} PRIMARY KEY, value {text}")

    def make_sink(self) -> SqlSink:
        return self.place.unbound(upsert_by="id")

    def rows(self) -> list[tuple[str, str | None]]:
        return [(key, value) for key, value in self.place.ask("SELECT id, value FROM {}")]
