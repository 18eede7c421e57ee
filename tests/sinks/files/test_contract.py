"""The file sink keeps the contract of every sink, on every store."""

import csv
import json
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest

from tests.sinks.files.conftest import Place
from tests.sinks.files.readers import READERS, Reader, kept
from tests.support.gcs_server import BUILD_AT_MOST_S
from tests.support.pyarrow_versions import PYARROW
from tests.support.read_rows import as_drawn
from tests.support.typed_records import TEXT, in_halves, plain, typed, unchecked_text
from twopc.testing import SinkContract
from twopc_files.sink import FileSink

FEW = 4
"""Kills where the steps of a batch are those of another contract."""


class LocalContract(SinkContract):
    """On this machine's disk, by files of one format."""

    options: dict[str, str]
    kills = 20  # the stores have tests that kill them at each step
    kept: pa.Schema | None = None  # columns of which values are drawn; None: texts

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "orders"

    def make_sink(self) -> FileSink:
        return FileSink({"path": self.folder.as_uri(), **self.options})

    def visible(self) -> list[str]:
        return [record["value"] for record in self.visible_records()]

    def leftovers(self) -> list[str]:
        return [file.name for file in self.folder.rglob("*.staged")]

    def visible_records(self) -> list[dict[str, Any]]:
        files = sorted(file for file in self.folder.rglob("part-*") if file.is_file())
        return [record for file in files for record in self.records(file)]

    def records(self, file: Path) -> list[dict[str, Any]]:
        raise NotImplementedError

    def types_taken(self) -> pa.Schema | None:
        return self.kept

    def readers(self) -> dict[str, Any]:
        readers = READERS.get(self.options.get("format", "parquet"), {})
        return {name: partial(self._drawn_records, read) for name, read in readers.items()}

    def _drawn_records(self, read: Reader) -> list[dict[str, Any]]:
        assert self.kept is not None
        files = [str(file) for file in self.folder.rglob("part-*") if file.is_file()]
        return [as_drawn(row, self.kept) for file in files for row in read(file, self.kept).to_pylist()]


class TestParquet(LocalContract):
    options: dict[str, str] = {}  # noqa: RUF012  # never changed
    kept = kept("parquet")

    def sample(self) -> pa.RecordBatch:
        return typed()

    def records(self, file: Path) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = pq.ParquetFile(file).read().to_pylist()
        return records


class TestJson(LocalContract):
    options = {"format": "json"}  # noqa: RUF012  # never changed
    kept = kept("json")

    def sample(self) -> pa.RecordBatch:
        return plain()

    def records(self, file: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


class TestJsonWithMaps(TestJson):
    """With a column that may hold what JSON can't."""

    kills = FEW
    kept = None

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        maps = pa.array([[("k", 1)]] * len(values), pa.map_(pa.string(), pa.int64()))
        return super().record_batch(values).append_column("m", maps)

    def sample(self) -> pa.RecordBatch:
        return self.with_bad_records()

    def visible_records(self) -> list[dict[str, Any]]:
        return [{**record, "m": [*(record["m"] or {}).items()]} for record in super().visible_records()]

    def with_bad_records(self) -> pa.RecordBatch:
        fine, twice = [("k", 1), ("l", 2)], [("k", 1), ("k", 2)]
        return pa.record_batch(
            {
                "value": unchecked_text(b"a", b"b", b"c", b"\xff", b"d", b"e"),
                "m": pa.array([fine, twice, [], fine, fine, twice], pa.map_(pa.string(), pa.int64())),
            }
        )


class TestCsv(LocalContract):
    kills = FEW
    options = {"format": "csv"}  # noqa: RUF012  # never changed
    kept = kept("csv")

    def types_taken(self) -> pa.Schema:
        """With a text for null: an empty one is null to Spark."""
        if PYARROW < 26:
            pytest.skip("pyarrow 26 added CSV's null_value")
        self.options = {**self.options, "null_value": "\\N"}
        return self.kept

    def sample(self) -> pa.RecordBatch:
        return self.record_batch([text for text in TEXT if text])  # Spark's empty text is null

    def records(self, file: Path) -> list[dict[str, Any]]:
        with file.open(encoding="utf-8", newline="") as lines:
            return [*csv.DictReader(lines)]

    def with_bad_records(self) -> pa.RecordBatch:
        return self.record_batch(["a", None, "b", None])  # type: ignore[list-item]  # a null in the only column


class TestText(LocalContract):
    kills = FEW
    options = {"format": "text"}  # noqa: RUF012  # never changed

    def records(self, file: Path) -> list[dict[str, Any]]:
        return [{"value": line} for line in file.read_bytes().decode().split("\n")[:-1]]

    def with_bad_records(self) -> pa.RecordBatch:
        return self.record_batch(["a\nb", "c", None, "d", "e\r"])  # type: ignore[list-item]


class TestOrc(LocalContract):
    kills = FEW
    options = {"format": "orc"}  # noqa: RUF012  # never changed
    kept = kept("orc")

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        return pa.record_batch({"value": pa.array(values), "day": [date(2024, 5, 1)] * len(values)})

    def sample(self) -> pa.RecordBatch:
        return typed()

    def records(self, file: Path) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = paorc.read_table(file).to_pylist()
        return records

    def with_bad_records(self) -> pa.RecordBatch:
        days = [date(2024, 5, 1), date(1582, 10, 14), date(1582, 10, 15), None, date.min]
        return pa.record_batch({"value": ["a", "b", "c", "d", "e"], "day": pa.array(days)})


class TestParquetInFolders(TestParquet):
    """The format takes every record, and the name of a folder does not."""

    kills = FEW
    kept = None
    shows_whole_transactions = False  # one file after the other
    options = {"partition_by": "half"}  # noqa: RUF012  # never changed

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        halves = in_halves(values)
        return halves.set_column(1, "half", halves["half"].cast(pa.string()))

    def sample(self) -> pa.RecordBatch:
        return self.record_batch([*TEXT])  # type: ignore[list-item]  # with a null

    def visible_records(self) -> list[dict[str, Any]]:
        """With the column that is in the folders' names alone."""
        values = [record["value"] for record in super().visible_records()]
        records: list[dict[str, Any]] = self.record_batch(values).to_pylist()
        return records

    def with_bad_records(self) -> pa.RecordBatch:
        halves = pa.array(["1", "\0", "x" * 300, "0", None, "\0"])
        return pa.record_batch({"value": ["a", "b", "c", "d", "e", "f"], "half": halves})


class TestSeveralFilesPerTransaction(TestJson):
    shows_whole_transactions = False
    kept = None
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


class TestAzure(RemoteContract):
    kills = 8

    @pytest.fixture(autouse=True)
    def _place(self, azure: Place) -> None:
        self.place = azure


@pytest.mark.timeout(BUILD_AT_MOST_S)
class TestGcs(RemoteContract):
    kills = 8  # make prove-stores has them all

    @pytest.fixture(autouse=True)
    def _place(self, gcs: Place) -> None:
        self.place = gcs


class TestCopies(RemoteContract):
    picklable = False  # fsspec's memory:// is this process's

    @pytest.fixture(autouse=True)
    def _place(self, memory: Place) -> None:
        self.place = memory


@pytest.mark.long
class TestHdfs(RemoteContract):
    kills = 16  # as for S3

    @pytest.fixture(autouse=True)
    def _place(self, hdfs: Place) -> None:
        self.place = hdfs


class TestRenames(RemoteContract):
    picklable = False  # hdfs:// means this machine's disk in this process alone

    @pytest.fixture(autouse=True)
    def _place(self, renaming: Place) -> None:
        self.place = renaming
