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


KEPT: list[tuple[str, pa.DataType]] = [
    ("boolean", pa.bool_()),
    ("smallint", pa.int8()),
    ("smallint", pa.uint8()),
    ("smallint", pa.int16()),
    ("{0}.whole", pa.int32()),
    ("integer", pa.uint16()),
    ("bigint", pa.int64()),
    ("bigint", pa.uint32()),
    ("numeric", pa.uint64()),
    ("numeric(20)", pa.uint64()),
    ("bigint", pa.decimal128(18, 0)),
    ("real", pa.float32()),
    ("double precision", pa.float32()),
    ("double precision", pa.float64()),
    ("numeric(12,3)", pa.decimal128(12, 3)),
    ("{0}.price", pa.decimal128(5, 2)),
    ("numeric", pa.decimal128(38, 18)),
    ("bytea", pa.binary()),
    ("bytea", pa.large_binary()),
    ("date", pa.date32()),
    ("timestamp", pa.timestamp("us")),
    ("timestamp(3)", pa.timestamp("ms")),
    ("timestamp(0)", pa.timestamp("s")),
    ("timestamptz", pa.timestamp("us", "Europe/Berlin")),
    ("timestamptz(3)", pa.timestamp("ms", "America/New_York")),
    ("text", pa.string()),
    ("{0}.words", pa.large_string()),
    ("varchar", pa.string()),
    ("varchar(10000)", pa.string()),
    ('text COLLATE "C"', pa.string()),
    ("bigint[]", pa.list_(pa.int64())),
    ("text[]", pa.list_(pa.string())),
    ("bytea[]", pa.list_(pa.binary())),
    ("float8[]", pa.list_(pa.float64())),
    ("numeric(12,3)[]", pa.list_(pa.decimal128(12, 3))),
    ("timestamptz[]", pa.list_(pa.timestamp("us", "UTC"))),
    ("{0}.price[]", pa.list_(pa.decimal128(5, 2))),
]
"""Column type and Arrow type. Those in braces are domains over domains, and of the schema."""

DOMAINS = """
    CREATE DOMAIN {0}.inner_price AS numeric(5,2); CREATE DOMAIN {0}.price AS {0}.inner_price;
    CREATE DOMAIN {0}.inner_whole AS int; CREATE DOMAIN {0}.whole AS {0}.inner_whole;
    CREATE DOMAIN {0}.inner_words AS text; CREATE DOMAIN {0}.words AS {0}.inner_words
"""


class TestAppend(AppendContract):
    columns = COLUMNS
    kept = KEPT
    client = "psycopg"

    def sample(self) -> pa.RecordBatch:
        return typed()

    def types_taken(self) -> pa.Schema:
        self.place.ask(DOMAINS.format(self.place.schema))
        return super().types_taken()

    def declared(self, column: str) -> str:
        return column.format(self.place.schema)

    def asked(self, column: str, type_: pa.DataType) -> str:
        """The text of a float4 is short, and psycopg knows no arrays of a domain."""
        return {"real": "{}::float8", "{0}.price[]": "{}::numeric[]"}.get(column, "{}")


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
