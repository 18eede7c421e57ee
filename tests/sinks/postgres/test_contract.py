"""The PostgreSQL sink keeps the contracts of every sink, on a real server."""

import pyarrow as pa
import pytest

from tests.sinks.prepared_contract import AppendContract, KeyedContract, KillContract
from tests.support.typed_records import typed

COLUMNS = {
    "value": "varchar(255)",
    "whole": "bigint",
    "fraction": "float8",
    "flag": "boolean",
    "tags": "text[]",
    "at": "timestamptz",
    "day": "date",
    "amount": "numeric(12,2)",
    "raw": "bytea",
}


class TestAppend(AppendContract):
    columns = COLUMNS

    def sample(self) -> pa.RecordBatch:
        return typed()


@pytest.mark.long
class TestUpsert(TestAppend):
    upsert_by = "value"

    @pytest.fixture(autouse=True)
    def _key(self, _place: None) -> None:
        self.place.ask("ALTER TABLE {} ADD PRIMARY KEY (value)")


class TestKeyed(KeyedContract):
    key = "text"


class TestKilled(KillContract):
    pass
