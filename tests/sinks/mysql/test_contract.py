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


class TestAppend(AppendContract):
    columns = COLUMNS

    def sample(self) -> pa.RecordBatch:
        return typed().drop_columns(["tags"])  # there is no type for a list

    def visible_records(self) -> list[dict[str, Any]]:
        rows = super().visible_records()
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
