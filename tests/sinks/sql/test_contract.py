"""The SQL sink keeps the contract of every sink, on real databases."""

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests.sinks.prepared_contract import schema_of
from tests.sinks.sql.conftest import Place, databases_but_long
from tests.support.typed_records import typed
from twopc.testing import KeyedSinkContract, SinkContract
from twopc.testing.contract import EXAMPLES
from twopc_sql import SqlSink
from twopc_sql.records import written_as

COLUMNS = {
    "value": "{key}",
    "whole": "BIGINT",
    "fraction": "{float}",
    "flag": "BOOLEAN",
    "day": "DATE",
    "amount": "NUMERIC(12,2)",
    "raw": "{bytes}",
}


def nested_struct(type_: pa.DataType) -> pa.DataType:
    return pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.list_(type_))]))])


TYPES: dict[str, sa.types.TypeEngine[Any]] = {"flag": sa.Boolean(), "day": sa.Date(), "amount": sa.Numeric(12, 2)}

_NUMBERS = [pa.bool_(), pa.int64(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64()]
_OTHERS = [pa.string(), pa.binary(), pa.date32(), pa.timestamp("us")]
_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]

KEPT: dict[str, list[tuple[str, pa.DataType]]] = {
    "sqlite": [
        *((column, type_) for column in ("BIGINT", "DOUBLE", "BLOB") for type_ in _NUMBERS),
        *((column, type_) for column in ("BIGINT", "BLOB", "TEXT") for type_ in _OTHERS),
        ("VARCHAR(3)", pa.large_string()),
        ("DATE", pa.date32()),
        ("DATETIME", pa.timestamp("s")),
        ("DATETIME", pa.timestamp("ms")),
    ],
    "duckdb": [
        *zip(
            ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
            _INTEGERS,
            strict=True,
        ),
        *((column, pa.int64()) for column in ("HUGEINT", "INTEGER", "DOUBLE", "DECIMAL(5,2)", "UBIGINT")),
        *((column, pa.float64()) for column in ("DOUBLE", "FLOAT", "BIGINT", "DECIMAL(38,18)")),
        *((column, pa.decimal128(38, 18)) for column in ("DECIMAL(38,18)", "DECIMAL(5,2)", "DOUBLE")),
        *((column, pa.timestamp("us")) for column in ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS")),
        ("BOOLEAN", pa.bool_()),
        ("FLOAT", pa.float32()),
        ("DECIMAL(12,3)", pa.decimal128(12, 3)),
        ("VARCHAR", pa.string()),
        ("VARCHAR", pa.large_string()),
        ("BLOB", pa.binary()),
        ("BLOB", pa.binary(16)),
        ("DATE", pa.date32()),
        ("TIME", pa.time64("us")),
        ("INTERVAL", pa.duration("us")),
        ("TIMESTAMPTZ", pa.timestamp("us", "Europe/Berlin")),
        ("INTEGER[]", pa.list_(pa.int32())),
        ("VARCHAR[]", pa.list_(pa.string())),
        ("DOUBLE[]", pa.list_(pa.float64())),
        ("VARCHAR[][][]", pa.list_(pa.list_(pa.list_(pa.string())))),
        ("STRUCT(a INTEGER, b STRUCT(c VARCHAR[]))", nested_struct(pa.string())),
        ("STRUCT(a FLOAT[])", pa.struct([("a", pa.list_(pa.float32()))])),
    ],
}
"""Database → column type and Arrow type."""


@pytest.fixture(params=databases_but_long("sqlite"))
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _shown(type_: pa.DataType, value: Any) -> Any:
    """An equal number of the Arrow type, which another column may show as one of its own."""
    if isinstance(value, bool | int | float | Decimal):
        if pa.types.is_boolean(type_):
            return bool(value)
        if pa.types.is_floating(type_):
            return float(value)
        if pa.types.is_decimal(type_):
            return Decimal(value)
        return int(value) if pa.types.is_integer(type_) and value == int(value) else value
    return value


class TestAppend(SinkContract):
    finds_lost_batches = True
    upsert_by = ""
    kills = 8  # in each of four databases; make prove-plugin kills at every step

    @pytest.fixture(autouse=True)
    def _place(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        place.create(", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))
        if place.url.get_backend_name() == "duckdb":
            monkeypatch.setenv(EXAMPLES, "20")  # a refusal takes a new connection there, and many values are refused

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

    def types_taken(self) -> pa.Schema:
        kept = KEPT.get(self.place.database)
        if kept is None:  # PostgreSQL and MariaDB have backends of their own
            return self.sample().schema
        self.place.create(
            ", ".join(["value {key}", *(f"c{number} {column}" for number, (column, _) in enumerate(kept))])
        )
        return schema_of(kept)

    def readers(self) -> dict[str, Any]:
        return {"SQLAlchemy": self._drawn_records}

    def _drawn_records(self) -> list[dict[str, Any]]:
        if self.place.database not in KEPT:
            return self.visible_records()
        schema = schema_of(KEPT[self.place.database])
        rows = self.place.select([written_as(field) for field in schema])
        return [{field.name: _shown(field.type, row[field.name]) for field in schema} for row in rows]


@pytest.mark.long
class TestUpsert(TestAppend):
    upsert_by = "value"

    @pytest.fixture(autouse=True)
    def _key(self, _place: None) -> None:
        self._make_key()

    def _make_key(self) -> None:
        self.place.ask("CREATE UNIQUE INDEX of_values ON {} (value)")

    def types_taken(self) -> pa.Schema:
        schema = super().types_taken()
        if self.place.database in KEPT:
            self._make_key()
        return schema


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
