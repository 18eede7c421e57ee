"""The place to which a case's sink writes, for each kind of store."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore.session
import pyarrow as pa
from azure.storage.blob._shared.policies_async import ExponentialRetry
from botocore.loaders import create_loader

from tests.campaigns.every_step.blows import SERVER_AND_WRITER
from tests.campaigns.every_step.processes import let_an_hour_pass, note, noted
from tests.campaigns.stores import contents
from tests.campaigns.stores.foreign import plant, present
from tests.campaigns.stores.kinds import DISK, KINDS, Kind
from twopc.log.store import LogStore, open_store
from twopc.stores.places import file_system
from twopc.stores.remote import durable_folder
from twopc_files.sink import FileSink
from twopc_files.stores.by_protocol import store_at

if TYPE_CHECKING:
    from tests.campaigns.every_step import steps
    from tests.campaigns.every_step.blows import Strike
    from tests.campaigns.every_step.place import Findings, Server, Sinks

COUNTED = ("lost", "duplicates", "leftovers", "half_batches_seen", "undecided_seen", "foreign_removed")
"""The kinds of findings."""

REPEATED_AFTER_S = 0.2
"""How long Azure's client waits before it repeats a request; by itself, 15 seconds and more."""


@dataclass(frozen=True)
class Place:
    """A folder for one case's files, with its commit log.

    Attributes:
        store: the name of the store.
        work: a local folder, for the query's position and for local stores.
        server: the options to reach the store's server, if there is one.
        name: a name that no other case has.
    """

    store: str
    work: Path
    server: Mapping[str, Any]
    name: str
    is_keyed = False

    @property
    def kind(self) -> Kind:
        return KINDS[self.store]

    def _filled(self, url: str) -> str:
        return url.format(work=self.work, name=self.name)

    @property
    def url(self) -> str:
        """The option ``path``."""
        return self._filled(self.kind.data)

    @property
    def storage_options(self) -> Mapping[str, Any]:
        return {} if self.is_on_disk else self.server

    @property
    def is_on_disk(self) -> bool:
        return self.kind.data == DISK

    @property
    def holds_uploads(self) -> bool:
        """Whether an uncommitted file is an open upload."""
        return self.url.startswith("s3://")

    @property
    def stages_blocks(self) -> bool:
        """Whether an uncommitted file is a list of uncommitted blocks."""
        return self.url.startswith("abfs://")

    @property
    def batch_logs(self) -> tuple[str, ...]:
        return ("spark", "manifest") if self.kind.has_batch_logs else ()

    @property
    def survives(self) -> bool:
        """Whether the contents outlive a process."""
        return self.store != "memory"

    @cached_property
    def log(self) -> LogStore:
        return open_store(self._filled(self.kind.log), **self.server)

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
        if not self.url.startswith("webhdfs://"):
            return [str(path) for path in (self.work / "log").glob(".*.aside")]
        fs, folder = file_system(self._filled(self.kind.log), **self.server)
        return [path for path in fs.ls(folder, detail=False) if path.endswith(".aside")]

    def make(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        if self.url.startswith(("s3://", "abfs://", "gs://")):
            self.located()[0].mkdir(self.name)
        plant(self)
        note(self.work, "foreign", present(self))

    def patch(self, steps: steps.Steps) -> None:
        assert self.kind.calls
        self.kind.calls(steps)

    def watch_commits(self, strike: Strike) -> None:
        assert self.kind.watch
        self.kind.watch(strike)

    def meanwhile(self) -> None:
        let_an_hour_pass(self.work, is_on_disk=self.is_on_disk)

    def look(self, findings: Findings, when: str) -> None:
        contents.whole_batches(findings, when, contents.view(self, self._foreign))

    def judge(self, findings: Findings) -> None:
        self._put_one_more_entry()
        view = contents.view(self, self._foreign)
        contents.all_there(findings, view)
        contents.nothing_left(findings, self, view, self._foreign)

    def _put_one_more_entry(self) -> None:
        """Put an entry into each log of complete batches, as the next batch does, and remove it. This removes what a
        process could not remove while the server was down."""
        fs, folder = self.located()
        for name in ("_spark_metadata", "_manifest"):
            log = durable_folder(fs, f"{folder}/{name}")
            if log.names():
                log.put_if_absent(".later", b"")
                log.remove(".later")

    @property
    def _foreign(self) -> Mapping[str, str]:
        return noted(self.work, "foreign") or {}


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
        assert place.kind.server
        folder = place.work / "server"
        folder.mkdir(parents=True)
        with place.kind.server(folder) as server:
            yield replace(place, server=server.storage_options), server


def warm_up() -> None:
    """Import once what would take each process a second. Starts no thread and sends no request."""
    pa.record_batch({"n": [0]})  # pyarrow's first conversion imports pandas if it is installed
    loader = create_loader()
    botocore.session.create_loader = lambda *_: loader  # the description of S3's API is megabytes of JSON
    botocore.session.Session().create_client("s3", "us-east-1")
    store_at("abfs://container/folder", {})
    ExponentialRetry.get_backoff_time = lambda *_: REPEATED_AFTER_S  # type: ignore[method-assign]
