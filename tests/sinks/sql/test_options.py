"""The options of the SQL sink."""

from collections.abc import Mapping
from typing import Any

import pytest

import twopc
from tests.sinks.options_contract import OptionsContract

GOOD = {"url": "postgresql+psycopg://writer:hunter2@db.example/sales", "table": "sales.orders"}

WRONG: list[Mapping[str, Any]] = [
    {"url": None},
    {"url": "hunter2"},
    {"url": "oracle+oracledb://writer:hunter2@db/sales"},
    {"url": "postgresql+psycopg2://writer:hunter2@db/sales"},
    {"url": "sqlite://"},
    {"url": "sqlite:///:memory:"},
    {"url": "sqlite:///file:x?mode=memory&uri=true"},
    {"url": "duckdb:///:memory:x"},
    {"lock_timeout_s": "0.5"},
]


@pytest.mark.parametrize("database", ["postgresql"])
class TestOptions(OptionsContract):
    good = GOOD
    wrong = WRONG


def test_its_text_has_the_table_and_no_password() -> None:
    sink = twopc.create_sink("sql", GOOD)
    assert repr(sink) == "SqlSink(table sales.orders of postgresql database 'sales' at db.example)"
