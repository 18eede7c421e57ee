"""The place to which a case's sink writes, for each kind of store."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore.session
import pyarrow as pa
import pyarrow.fs
from aiobotocore.client import AioBaseClient
from botocore.loaders import create_loader
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.registry import _registry
from s3fs import S3FileSystem

from tests.campaigns.every_step import steps
from tests.campaigns.every_step.blows import SERVER_AND_WRITER
from tests.campaigns.every_step.processes import let_an_hour_pass, note, noted
from tests.campaigns.stores import contents
from tests.campaigns.stores.calls import in_memory, on_hdfs, on_renaming
from tests.campaigns.stores.foreign import plant, present
from tests.campaigns.stores.go_servers import PROGRAMS, GoServer
from tests.support.hdfs_server import HOME, HdfsServer
from twopc.log.store import LogStore, open_store
from twopc.places import file_system
from twopc.webhdfs import WebHdfs
from twopc_files.sink import FileSink

if TYPE_CHECKING:
    from tests.campaigns.every_step.blows import Strike
    from tests.campaigns.every_step.place import Findings, Server, Sinks

COUNTED = ("lost", "duplicates", "leftovers", "half_batches_seen", "undecided_seen", "foreign_removed")
"""The kinds of findings."""


class Renaming(ArrowFSWrapper):  # type: ignore[misc]  # fsspec has no types
    """An Arrow file system on the local disk, which behaves like fsspec's ``hdfs://``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(pyarrow.fs.LocalFileSystem(), **options)


class Copying(S3FileSystem):  # type: ignore[misc]
    """An object store on which files can only be copied. It runs on a real S3 server, and so outlives killed processes.
    It also keeps the protocol name ``s3``, so that it can hold logs of complete batches."""

    protocol = ("gs", "s3")


UPLOADING = ("s3", *PROGRAMS)
"""Stores in which an uncommitted file is an open upload."""

STRUCK_HDFS = "hdfs-killed"
"""HDFS whose NameNode is killed."""

ON_HDFS = ("hdfs", STRUCK_HDFS)

_registry.update({"hdfs": Renaming, "gs": Copying})


@dataclass(frozen=True)
class Place:
    """A folder for one case's files, with its commit log.

    Attributes:
        store: the kind of store.
        work: a local folder, for the query's position and for local stores.
        server: the options to reach the S3 server, or HDFS.
        name: the name of the bucket, or of the folder in memory or on HDFS.
    """

    store: str
    work: Path
    server: Mapping[str, Any]
    name: str

    @property
    def url(self) -> str:
        """The option ``path``."""
        return {
            "local": str(self.work / "data" / "orders"),
            **dict.fromkeys(UPLOADING, f"s3://{self.name}/data/orders"),
            "copy": f"gs://{self.name}/data/orders",
            "rename": f"hdfs://{self.work}/data/orders",
            "memory": f"memory://{self.name}/data/orders",
            **dict.fromkeys(ON_HDFS, f"webhdfs://{HOME}/{self.name}/data/orders"),
        }[self.store]

    @property
    def storage_options(self) -> Mapping[str, Any]:
        return self.server if self.is_on_s3 or self.is_on_hdfs else {}

    @property
    def is_on_hdfs(self) -> bool:
        return self.store in ON_HDFS

    @property
    def is_on_s3(self) -> bool:
        return self.store == "copy" or self.holds_uploads

    @property
    def holds_uploads(self) -> bool:
        return self.store in UPLOADING

    @property
    def batch_logs(self) -> tuple[str, ...]:
        return () if self.store == "rename" else ("spark", "manifest")

    @property
    def survives(self) -> bool:
        """Whether the contents outlive a process."""
        return self.store != "memory"

    @cached_property
    def log(self) -> LogStore:
        """The commit log: in the same store, or on a disk if the store can't keep a log."""
        if self.is_on_s3:
            return open_store(f"s3://{self.name}/log", **self.server)
        if self.is_on_hdfs:
            return open_store(f"webhdfs://{HOME}/{self.name}/log", **self.server)
        return open_store(f"memory://{self.name}/log" if self.store == "memory" else str(self.work / "log"))

    def sink(self) -> FileSink:
        options = {"path": self.url, "format": "json", "partition_by": "kind", "batch_logs": self.batch_logs}
        return FileSink({**options, "storage_options": dict(self.storage_options)})

    def sinks(self) -> Sinks:
        return {"orders": self.sink()}

    def located(self) -> tuple[Any, str]:
        """Return the file system, with an empty cache, and the folder's path in it."""
        fs, folder = file_system(self.url, **self.storage_options)
        fs.invalidate_cache()
        return fs, folder

    def unfinished_entries(self) -> list[str]:
        """Return what writers of the commit log have left beside it."""
        if not self.is_on_hdfs:
            return [str(path) for path in (self.work / "log").glob(".*.aside")]
        found: list[str] = self.located()[0].ls(f"{HOME}/{self.name}/log", detail=False)
        return [path for path in found if path.endswith(".aside")]

    def make(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        if self.is_on_s3:
            self.located()[0].call_s3("create_bucket", Bucket=self.name)
        plant(self)
        note(self.work, "foreign", present(self))

    def patch(self, steps: steps.Steps) -> None:
        CALLS[self.store](steps)

    def watch_commits(self, strike: Strike) -> None:
        """A completion of an upload commits a file; on HDFS a rename, which also appends to a log."""
        if self.is_on_hdfs:
            rename = WebHdfs.mv

            def watched_rename(*arguments: Any, **keywords: Any) -> None:
                with strike.a_commit():
                    rename(*arguments, **keywords)

            WebHdfs.mv = watched_rename  # type: ignore[method-assign]
        request = AioBaseClient._make_api_call

        async def watched(client: Any, operation: str, parameters: Any) -> Any:
            is_commit = operation == "CompleteMultipartUpload"
            with strike.a_commit() if is_commit else contextlib.nullcontext():
                return await request(client, operation, parameters)

        AioBaseClient._make_api_call = watched

    def meanwhile(self) -> None:
        let_an_hour_pass(self.work, is_on_disk=self.store == "local")

    def look(self, findings: Findings, when: str) -> None:
        contents.whole_batches(findings, when, contents.view(self, self._foreign))

    def judge(self, findings: Findings) -> None:
        view = contents.view(self, self._foreign)
        contents.all_there(findings, view)
        contents.nothing_left(findings, self, view, self._foreign)

    @property
    def _foreign(self) -> Mapping[str, str]:
        return noted(self.work, "foreign") or {}


CALLS: Mapping[str, Callable[[steps.Steps], None]] = {
    "local": steps.on_disk,
    "s3": steps.on_s3,
    "copy": steps.on_s3,
    "rename": on_renaming,
    "memory": in_memory,
    "hdfs": on_hdfs,
}
"""Store → the function that turns its calls into steps."""


@dataclass(frozen=True)
class StorePlaces:
    """Creates the places in one store, for all cases.

    Attributes:
        name: the store.
        folder: the folder of all cases.
        server: the options to reach the server that they share.
    """

    name: str
    folder: Path
    server: Mapping[str, Any]
    victims = SERVER_AND_WRITER

    def new(self) -> Place:
        name = f"case-{uuid.uuid4().hex}"
        return Place(self.name, self.folder / name, self.server, name)

    @contextlib.contextmanager
    def with_server(self) -> Iterator[tuple[Place, Server]]:
        place = self.new()
        if self.name == STRUCK_HDFS:
            cluster = _cluster(self.folder)
            cluster.start()
            yield replace(place, server=cluster.storage_options), cluster
            return
        with GoServer(PROGRAMS[self.name], place.work / "server") as server:
            yield replace(place, server=server.storage_options), server


@cache
def _cluster(folder: Path) -> HdfsServer:
    """Return the cluster of this process, which ends with it: to start one takes longer than a case."""
    return HdfsServer(folder / f"cluster-{os.getpid()}")


def warm_up() -> None:
    """Import once what would take each process a second. Starts no thread and sends no request."""
    pa.record_batch({"n": [0]})  # pyarrow's first conversion imports pandas if it is installed
    loader = create_loader()
    botocore.session.create_loader = lambda *_: loader  # the description of S3's API is megabytes of JSON
    botocore.session.Session().create_client("s3", "us-east-1")
