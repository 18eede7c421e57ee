"""The options of the PostgreSQL sink."""

from collections.abc import Mapping
from typing import Any

from tests.sinks.options_contract import OptionsContract

GOOD = {"conninfo": "postgresql://writer:hunter2@db.example/sales", "table": "orders"}


WRONG: list[Mapping[str, Any]] = [
    {"conninfo": None},
    {"conninfo": "host=db hunter2"},
    {"conninfo": "postgresql://writer:hun@ter2@db.example/sales"},
    {"conninfo": "postgresql://writer:hunter2/x@db.example/sales"},
    {"lock_timeout_s": "soon"},
]


class TestOptions(OptionsContract):
    good = GOOD
    wrong = WRONG
