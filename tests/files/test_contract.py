"""The file sink keeps the contract of every sink, on real files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from twopc.testing import SinkContract
from twopc_files.sink import FileSink

if TYPE_CHECKING:
    from pathlib import Path


class TestParquet(SinkContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "orders"

    def make_sink(self) -> FileSink:
        return FileSink({"path": self.folder.as_uri()})

    def visible(self) -> list[str]:
        files = sorted(self.folder.rglob("*.parquet"))
        return [value for file in files for value in pq.read_table(file)["value"].to_pylist()]


class TestJson(SinkContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "orders"

    def make_sink(self) -> FileSink:
        return FileSink({"path": str(self.folder), "format": "json"})

    def visible(self) -> list[str]:
        files = sorted(self.folder.rglob("*.json"))
        return [json.loads(line)["value"] for file in files for line in file.read_text().splitlines()]
