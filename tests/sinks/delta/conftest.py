"""What the tests of the Delta sink share: a table of one test, its sinks, and what a reader sees."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import s3fs
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake

from tests.support.azurite_server import ACCOUNT, AzuriteServer
from tests.support.sink_place import ROUND, SinkPlace, Written, from_log
from twopc import Committable, Round
from twopc_delta import DeltaSink
from twopc_delta.options import DeltaOptions
from twopc_delta.storage import Storage

if TYPE_CHECKING:
    from typing_extensions import Self

VALUE = pa.schema({"value": pa.string()})


class TablePlace(SinkPlace[DeltaSink]):
    """A table, wherever it is."""

    def table(self) -> DeltaTable:
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        """What a reader sees."""
        found = QueryBuilder().register("t", self.table()).execute("SELECT * FROM t").read_all()
        return list(pa.table(found).to_pylist())

    def values(self) -> list[str]:
        return sorted(row["value"] for row in self.rows())

    def pre_commit(
        self, records: Written, round: Round = ROUND, partition: int = 0, sink: DeltaSink | None = None
    ) -> Committable:
        """What a participant that is gone has pre-committed, sealed, and read back from a log."""
        vote = self.vote(records, round, partition, sink)
        [sealed] = (sink or self.sink()).seal([vote], 0.0)
        return from_log(sealed)


@dataclass(frozen=True)
class Place(TablePlace):
    """A table on a local disk."""

    path: str

    @property
    def folder(self) -> Path:
        return Path(self.path)

    def create(self, schema: pa.Schema = VALUE, partition_by: Sequence[str] = (), **configuration: str) -> DeltaTable:
        named = {name.replace("__", "."): value for name, value in configuration.items()}
        return DeltaTable.create(
            self.path, Schema.from_arrow(schema), partition_by=list(partition_by), configuration=named or None
        )

    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def unbound(self, **options: Any) -> DeltaSink:
        return DeltaSink({"path": self.path, **options})

    def append(self, *values: str) -> None:
        """What a writer that is not ours adds."""
        write_deltalake(self.path, pa.table({"value": pa.array(values, pa.string())}), mode="append")

    def data_files(self) -> list[str]:
        """Every Parquet file of records, in the table or not."""
        files = (path.relative_to(self.folder) for path in self.folder.rglob("*.parquet"))
        return sorted(str(path) for path in files if "_delta_log" not in path.parts)

    @property
    def log(self) -> Path:
        return self.folder / "_delta_log"

    def entry_path(self, version: int) -> Path:
        return self.log / f"{version:020d}.json"

    def entry(self, version: int) -> bytes:
        """One entry of the table's log."""
        return self.entry_path(version).read_bytes()

    def put(self, **actions: Any) -> Path:
        """Add an entry of another writer. Return its path."""
        path = self.entry_path(self.table().version() + 1)
        path.write_text(json.dumps(actions))
        return path

    def change_metadata(self, **changes: object) -> None:
        """Add an entry of another writer with other metadata of the table."""
        [metadata] = [json.loads(line)["metaData"] for line in self.entry(0).splitlines() if b"metaData" in line]
        self.put(metaData={**metadata, **changes})

    def actions(self, kind: str) -> list[dict[str, Any]]:
        """Those of the newest entry of the log."""
        found = [json.loads(line) for line in self.entry(self.table().version()).splitlines()]
        return [action[kind] for action in found if kind in action]

    def added(self) -> list[dict[str, Any]]:
        """What the newest entry of the log adds."""
        return self.actions("add")

    @property
    def receipt(self) -> Path:
        return self.folder / "_twopc" / "twopc.committed.twopc.log.orders.receipt"

    def notes(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("_twopc/*.json"))


@dataclass(frozen=True)
class Bucket(TablePlace):
    """A table in a bucket of its own.

    Attributes:
        storage: the options to reach the server.
    """

    name: str
    storage: Mapping[str, Any]
    below: str = "/orders"

    @classmethod
    def created(cls, storage: Mapping[str, Any], schema: pa.Schema = VALUE, below: str = "/orders") -> Bucket:
        bucket = cls(f"lake-{uuid.uuid4().hex[:8]}", {**storage, "client_kwargs": {"region_name": "us-east-1"}}, below)
        s3fs.S3FileSystem(**storage, use_listings_cache=False).mkdir(bucket.name)
        bucket.create(schema)
        return bucket

    def create(self, schema: pa.Schema = VALUE, partition_by: Sequence[str] = ()) -> None:
        delta = self.reached.delta_options()
        DeltaTable.create(
            self.reached.delta_url, Schema.from_arrow(schema), partition_by=list(partition_by), storage_options=delta
        )

    @property
    def folder(self) -> str:
        """The table's folder, as ``fs`` names it."""
        return f"{self.name}{self.below}"

    @property
    def url(self) -> str:
        return f"s3://{self.folder}"

    @property
    def options(self) -> dict[str, Any]:
        return {"path": self.url, "storage_options": self.storage}

    @property
    def fs(self) -> Any:
        """As another program reaches the bucket."""
        return s3fs.S3FileSystem(**self.storage, use_listings_cache=False)

    @property
    def reached(self) -> Storage:
        """As the sink reaches the table."""
        return DeltaOptions.parse(self.options).storage

    def reached_by(self, **options: Any) -> Self:
        """The same table, reached with other options."""
        return replace(self, storage={**self.storage, **options})

    def through(self, proxy: Any) -> Bucket:
        """The same table, reached through a proxy."""
        return self.reached_by(endpoint_url=proxy.url)

    def unbound(self, **options: Any) -> DeltaSink:
        return DeltaSink({**self.options, **options})

    def table(self) -> DeltaTable:
        return DeltaTable(self.reached.delta_url, storage_options=self.reached.delta_options())

    def append(self, *values: str) -> None:
        """What a writer that is not ours adds."""
        rows, delta = pa.table({"value": pa.array(values, pa.string())}), self.reached.delta_options()
        write_deltalake(self.reached.delta_url, rows, mode="append", storage_options=delta)

    def objects(self) -> list[str]:
        """Every object of the table but its log."""
        return [path for path in self.fs.find(self.folder) if "_delta_log" not in path]


@dataclass(frozen=True)
class Container(Bucket):
    """A table in a container of Azure."""

    @classmethod
    def on(cls, server: AzuriteServer, schema: pa.Schema = VALUE, below: str = "/orders") -> Container:
        container = cls(server.make_container(), server.storage_options, below)
        container.create(schema)
        return container

    @property
    def url(self) -> str:
        return f"abfss://{self.folder}"

    @property
    def fs(self) -> Any:
        from adlfs import AzureBlobFileSystem  # type: ignore[import-untyped]  # other environments lack it

        return AzureBlobFileSystem(**self.storage, use_listings_cache=False, skip_instance_cache=True)

    def through(self, proxy: Any) -> Container:
        [own] = [part for part in self.storage["connection_string"].split(";") if part.startswith("BlobEndpoint")]
        other = f"BlobEndpoint={proxy.url}/{ACCOUNT}"
        return self.reached_by(connection_string=self.storage["connection_string"].replace(own, other))


@dataclass(frozen=True)
class GcsBucket(Bucket):
    """A table in a bucket of Google Cloud Storage."""

    @classmethod
    def on(cls, storage: Mapping[str, Any], schema: pa.Schema = VALUE, below: str = "/orders") -> GcsBucket:
        bucket = cls(f"lake-{uuid.uuid4().hex[:8]}", storage, below)
        bucket.fs.mkdir(bucket.name)
        bucket.create(schema)
        return bucket

    @property
    def url(self) -> str:
        return f"gs://{self.folder}"

    @property
    def fs(self) -> Any:
        from twopc.stores.gcs import gcs_client  # needs gcsfs, which other environments lack

        return gcs_client({**self.storage, "use_listings_cache": False})

    def rows(self) -> list[dict[str, Any]]:
        # QueryBuilder holds the interpreter while it reads, and the server's XML API is a thread of this process.
        return list(self.table().to_pyarrow_table().to_pylist())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A table of one column, ``value``."""
    place = Place(str(tmp_path / "orders"))
    place.create()
    return place
