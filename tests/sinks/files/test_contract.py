"""The file sink keeps the contract of every sink, on every store."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tests.support.typed_records import TEXT, in_halves, plain, typed
from twopc.testing import SinkContract
from twopc_files.sink import FileSink

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from tests.sinks.files.conftest import Place


class LocalContract(SinkContract):
    """On this machine's disk, by files of one format."""

    options: dict[str, str]
    kills = 20  # the stores have tests that kill them at each step

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "orders"

    def make_sink(self) -> FileSink:
        return FileSink({"path": self.folder.as_uri(), **self.options})

    def visible(self) -> list[str]:
        return [record["value"] for record in self.visible_records()]

    def visible_records(self) -> list[dict[str, Any]]:
        files = sorted(file for file in self.folder.rglob("part-*") if file.is_file())
        return [record for file in files for record in self.records(file)]

    def records(self, file: Path) -> list[dict[str, Any]]:
        raise NotImplementedError


class TestParquet(LocalContract):
    options: dict[str, str] = {}  # noqa: RUF012  # never changed

    def sample(self) -> pa.RecordBatch:
        return typed()

    def records(self, file: Path) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = pq.ParquetFile(file).read().to_pylist()
        return records


class TestJson(LocalContract):
    options = {"format": "json"}  # noqa: RUF012  # never changed

    def sample(self) -> pa.RecordBatch:
        return plain()

    def records(self, file: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


class TestSeveralFilesPerTransaction(TestJson):
    options = {"format": "json", "partition_by": "half"}  # noqa: RUF012  # never changed

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        return in_halves(values)

    def sample(self) -> pa.RecordBatch:
        return in_halves(TEXT)

    def visible_records(self) -> list[dict[str, Any]]:
        """With the column that is in the folders' names alone."""
        values = [record["value"] for record in super().visible_records()]
        records: list[dict[str, Any]] = in_halves(values).to_pylist()
        return records


class RemoteContract(SinkContract):
    """On a store of which ``place`` is a folder."""

    place: Place

    def make_sink(self) -> FileSink:
        storage_options = json.dumps(self.place.storage_options)
        return FileSink({"path": self.place.url, "storage_options": storage_options, "format": "json"})

    def visible(self) -> list[str]:
        return self.place.values()


class TestS3(RemoteContract):
    kills = 16  # an emulator takes its time

    @pytest.fixture(autouse=True)
    def _place(self, s3: Place) -> None:
        # The emulator answers 500 to a part of an upload that is gone, and the client would ask for 10 s.
        once = {"config_kwargs": {"retries": {"max_attempts": 0}}}
        self.place = replace(s3, storage_options={**s3.storage_options, **once})


class TestCopies(RemoteContract):
    picklable = False  # fsspec's memory:// is this process's

    @pytest.fixture(autouse=True)
    def _place(self, memory: Place) -> None:
        self.place = memory


class TestRenames(RemoteContract):
    picklable = False  # hdfs:// means this machine's disk in this process alone

    @pytest.fixture(autouse=True)
    def _place(self, renaming: Place) -> None:
        self.place = renaming
