"""What the tests of the file sink share: sinks on one folder or store, and a writer that has pre-committed."""

import json
import math
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import fsspec
import pyarrow as pa
import pyarrow.fs
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.registry import _registry

from tests.support.azurite_server import AzuriteServer
from tests.support.gcs_server import BUILD_AT_MOST_S, GcsServer
from tests.support.hdfs_server import HOME, TEST_AT_MOST_S, USER, HdfsServer
from tests.support.http_proxy import HttpProxy
from tests.support.s3_server import S3Server
from twopc import Committable, Participant, Round
from twopc.stores.places import file_system
from twopc_files.sink import FileSink
from twopc_files.stores.store import Store

ON_AZURE = pytest.param("azure", marks=pytest.mark.long)
ON_GCS = pytest.param("gcs", marks=[pytest.mark.long, pytest.mark.timeout(BUILD_AT_MOST_S)])
ON_HDFS = pytest.param("hdfs", marks=[pytest.mark.long, pytest.mark.timeout(TEST_AT_MOST_S)])


def voted(sink: FileSink, records: pa.RecordBatch, batch_id: int = 0, partition: int = 0) -> Committable:
    """What a participant that is gone has pre-committed, read back from a log."""
    with Participant({"orders": sink}, Round(1, batch_id), partition=partition) as participant:
        participant.write("orders", records)
        vote = participant.pre_commit()
    return Committable.from_json(json.loads(json.dumps(vote["orders"].to_json())))


MakeSink: TypeAlias = "Callable[..., FileSink]"
PreCommit: TypeAlias = "Callable[..., Committable]"


_INSTALLED_FIRST = {"azurite", "gcs_server", "hdfs_server"}
"""Fixtures of emulators that come by npm, Go or Maven."""


_OF_A_VARIANT = {
    "test_a_record_is_refused_or_read_back_as_it_was_written",
    "test_what_is_written_and_pre_committed_is_not_visible",
}
"""What the contract tries of other formats and stores than Parquet on a disk, outside of the long run."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the long run the tests of these emulators, as what the stores have in common is tried on S3, and the
    rest of the contract for formats and stores that differ in a part of it."""
    for item in items:
        is_variant = "sinks/files/test_contract" in item.nodeid and "::TestParquet::" not in item.nodeid
        if _INSTALLED_FIRST & {*getattr(item, "fixturenames", ())} or (
            is_variant and getattr(item, "originalname", "") not in _OF_A_VARIANT
        ):
            item.add_marker("long")


@pytest.fixture
def proxy(one_proxy: HttpProxy) -> HttpProxy:
    """A module's proxy, which disturbs nothing yet."""
    one_proxy.heal()
    one_proxy.requests.clear()
    return one_proxy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "orders"


@pytest.fixture
def make_sink(folder: Path) -> MakeSink:
    """A new sink on ``folder``, bound as a coordinator binds it: a process of its own, as far as it knows."""

    def make(log_id: str = "log", **options: str) -> FileSink:
        sink = FileSink({"path": str(folder), **options})
        sink.bind("orders", log_id)
        return sink

    return make


@pytest.fixture
def pre_commit(make_sink: MakeSink) -> PreCommit:
    """Have a participant pre-commit ``batch``; what it returns has been through the log."""

    def run(batch: pa.RecordBatch | None = None, batch_id: int = 0, partition: int = 0, **options: str) -> Committable:
        rows = pa.record_batch({"value": ["a", "b"]}) if batch is None else batch
        return voted(make_sink(**options), rows, batch_id, partition)

    return run


@dataclass(frozen=True)
class Place:
    """A folder in some store, where one test's files go.

    Attributes:
        url: what the option ``path`` says.
        storage_options: what the option of that name says.
    """

    url: str
    storage_options: dict[str, Any] = field(default_factory=dict)

    def sink(self, log_id: str = "log", **options: Any) -> FileSink:
        """A new sink, bound as a coordinator binds it: a process of its own, as far as it knows."""
        sink = FileSink({"path": self.url, "storage_options": self.storage_options, "format": "json", **options})
        sink.bind("orders", log_id)
        return sink

    @property
    def store(self) -> Store:
        return self.sink()._store

    def pre_commit(self, *values: str, batch_id: int = 0, partition: int = 0, log_id: str = "log") -> Committable:
        return voted(self.sink(log_id), pa.record_batch({"value": list(values or "ab")}), batch_id, partition)

    @property
    def fs(self) -> Any:
        fs = file_system(self.url, **self.storage_options)[0]
        fs.invalidate_cache()
        return fs

    def path(self, below: str) -> str:
        """As ``fs`` names it."""
        folder: str = file_system(self.url, **self.storage_options)[1]
        return f"{folder}/{below}"

    def files(self) -> list[str]:
        """The paths below the folder of all that is there, sorted."""
        fs = self.fs
        start = len(self.path(""))
        return sorted(path[start:] for path in fs.find(self.path("").rstrip("/")))

    def targets(self) -> list[str]:
        """What a reader sees."""
        return [path for path in self.files() if not path.startswith("_twopc/")]

    def values(self) -> list[str]:
        """The ``value`` of every record that a reader sees."""
        text = "".join(self.fs.cat_file(self.path(target)).decode() for target in self.targets())
        return [json.loads(line)["value"] for line in text.split("\n")[:-1]]


@pytest.fixture
def s3(s3_server: S3Server) -> Place:
    """A folder in a bucket of its own."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    fsspec.filesystem("s3", **s3_server.storage_options).mkdir(bucket)
    return Place(f"s3://{bucket}/data/orders", s3_server.storage_options)


@pytest.fixture
def azure(azurite: AzuriteServer) -> Place:
    """A folder in a container of its own."""
    return Place(f"abfs://{azurite.make_container()}/data/orders", azurite.storage_options)


@pytest.fixture
def gcs(gcs_server: GcsServer) -> Place:
    """A folder in a bucket of Google Cloud Storage."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    gcs_server.make_bucket(bucket)
    return Place(f"gs://{bucket}/data/orders", gcs_server.storage_options)


@pytest.fixture(autouse=True)
def _nothing_is_hidden() -> Iterator[None]:
    """What S3 does not show counts as lost at once: these servers publish while they are asked to."""
    with pytest.MonkeyPatch.context() as patched:
        if find_spec("s3fs"):
            patched.setattr("twopc_files.stores.s3.HIDDEN_S", 0.0)
            patched.setattr("twopc_files.stores.s3.ASSEMBLED_BYTES_PER_S", math.inf)
        yield


@pytest.fixture
def memory() -> Iterator[Place]:
    place = Place(f"memory://{uuid.uuid4().hex}")
    yield place
    if place.fs.exists(place.path("")):
        place.fs.rm(place.path(""), recursive=True)


class ArrowFiles(ArrowFSWrapper):  # type: ignore[misc]  # fsspec has no types
    """What ``hdfs://`` is to fsspec, an Arrow file system, with this machine's disk behind it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(pa.fs.LocalFileSystem(), **options)


@pytest.fixture
def renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A store that is reached as HDFS is."""
    monkeypatch.setitem(_registry, "hdfs", ArrowFiles)
    return Place(f"hdfs://{tmp_path}/data/orders")


@pytest.fixture
def local(folder: Path) -> Place:
    return Place(folder.as_uri())


@pytest.fixture
def hdfs(hdfs_server: HdfsServer) -> Place:
    """A folder on a real HDFS."""
    hdfs_server.start()  # what an earlier test has killed
    return Place(hdfs_server.url(f"{HOME}/{uuid.uuid4().hex}/data/orders"), {"user": USER})


@pytest.fixture(params=["local", "s3", ON_AZURE, ON_GCS, "memory", "renaming", ON_HDFS])
def place(request: pytest.FixtureRequest) -> Place:
    """Each store in turn."""
    found: Place = request.getfixturevalue(request.param)
    return found
