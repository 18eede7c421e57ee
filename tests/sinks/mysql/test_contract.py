"""The MySQL sink keeps the contracts of every sink, on a real MariaDB server."""

from collections.abc import Iterator
from datetime import timezone
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.mysql.conftest import new_place
from tests.sinks.prepared_contract import AppendContract, KeyedContract, KillContract
from tests.support.mariadb_server import VERSIONS, MariaDbServer
from tests.support.typed_records import typed

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

KEPT: list[tuple[str, pa.DataType]] = [
    ("BOOLEAN", pa.bool_()),
    ("TINYINT", pa.int8()),
    ("TINYINT UNSIGNED", pa.uint8()),
    ("SMALLINT", pa.int16()),
    ("SMALLINT UNSIGNED", pa.uint16()),
    ("MEDIUMINT", pa.int16()),
    ("INT", pa.int32()),
    ("INT UNSIGNED", pa.uint32()),
    ("BIGINT", pa.int64()),
    ("BIGINT UNSIGNED", pa.uint64()),
    ("BIGINT", pa.decimal128(18, 0)),
    ("FLOAT", pa.float32()),
    ("DOUBLE", pa.float32()),
    ("DOUBLE", pa.float64()),
    ("DECIMAL(12,3)", pa.decimal128(12, 3)),
    ("DECIMAL(38,18)", pa.decimal128(38, 18)),
    ("LONGBLOB", pa.binary()),
    ("VARBINARY(1000)", pa.large_binary()),
    ("DATE", pa.date32()),
    ("DATETIME(6)", pa.timestamp("us")),
    ("DATETIME(3)", pa.timestamp("ms")),
    ("DATETIME", pa.timestamp("s")),
    ("DATETIME(6)", pa.timestamp("us", "Europe/Berlin")),
    ("TIMESTAMP(6)", pa.timestamp("us", "Europe/Berlin")),
    ("LONGTEXT", pa.string()),
    ("MEDIUMTEXT", pa.large_string()),
    ("TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", pa.string()),
]
"""Column type and Arrow type."""


class TestAppend(AppendContract):
    columns = COLUMNS
    kept = KEPT
    client = "PyMySQL"

    def sample(self) -> pa.RecordBatch:
        return typed().drop_columns(["tags"])  # there is no type for a list

    def visible_records(self) -> list[dict[str, Any]]:
        rows = super().visible_records()
        for row in rows:
            row["at"] = row["at"] and row["at"].replace(tzinfo=timezone.utc)
            row["flag"] = None if row["flag"] is None else bool(row["flag"])
        return rows

    def asked(self, column: str, type_: pa.DataType) -> str:
        return "CAST({} AS DOUBLE)" if pa.types.is_floating(type_) else "{}"

    def shown(self, type_: pa.DataType, value: Any) -> Any:
        if pa.types.is_timestamp(type_) and type_.tz:
            return value.replace(tzinfo=timezone.utc)
        return bool(value) if pa.types.is_boolean(type_) else value


@pytest.mark.long
class TestUpsert(TestAppend):
    upsert_by = "value"

    @pytest.fixture(autouse=True)
    def _key(self, _place: None) -> None:
        self.place.ask("ALTER TABLE {} ADD PRIMARY KEY (value)")


class TestKeyed(KeyedContract):
    key = "VARCHAR(190) COLLATE utf8mb4_bin"


class TestKilled(KillContract):
    @pytest.fixture(params=VERSIONS)
    def server_of_version(self, request: pytest.FixtureRequest) -> Iterator[MariaDbServer]:
        with MariaDbServer(version=request.param, binlog=True) as server:
            yield server

    @pytest.mark.long
    def test_it_outlives_a_server_with_a_binary_log(self, server_of_version: MariaDbServer) -> None:
        self.outlives(new_place(server_of_version))
