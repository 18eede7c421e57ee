"""The PostgreSQL sink keeps the contract of every sink, on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twopc.testing import SinkContract
from twopc.testing.contract import SINK

if TYPE_CHECKING:
    from tests.postgres.conftest import Place
    from twopc_postgres import PostgresSink


class TestAppend(SinkContract):
    upsert_by = ""

    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = place
        sink = place.unbound()
        sink.bind(SINK, "log")
        sink.open()  # makes the table of markers, which a coordinator does before anything is begun

    def make_sink(self) -> PostgresSink:
        return self.place.unbound(upsert_by=self.upsert_by)

    def visible(self) -> list[str]:
        return self.place.values()


class TestUpsert(TestAppend):
    upsert_by = "value"

    @pytest.fixture(autouse=True)
    def _key(self, _place: None) -> None:
        self.place.ask("ALTER TABLE {} ADD PRIMARY KEY (value)")
