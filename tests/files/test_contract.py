"""The file sink keeps the contract of every sink, on every store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from twopc.testing import SinkContract
from twopc_files.sink import FileSink

if TYPE_CHECKING:
    from pathlib import Path

    from tests.files.conftest import Place


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


class RemoteContract(SinkContract):
    """On a store of which ``place`` is a folder."""

    place: Place

    def make_sink(self) -> FileSink:
        storage_options = json.dumps(self.place.storage_options)
        return FileSink({"path": self.place.url, "storage_options": storage_options, "format": "json"})

    def visible(self) -> list[str]:
        return self.place.values()


class TestS3(RemoteContract):
    @pytest.fixture(autouse=True)
    def _place(self, s3: Place) -> None:
        self.place = s3


class TestCopies(RemoteContract):
    @pytest.fixture(autouse=True)
    def _place(self, memory: Place) -> None:
        self.place = memory


class TestRenames(RemoteContract):
    @pytest.fixture(autouse=True)
    def _place(self, renaming: Place) -> None:
        self.place = renaming
