"""A Delta table on a disk or in S3."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import fsspec
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError

from tests.campaigns.every_step.blows import Strike
from tests.campaigns.every_step.steps import Steps, on_s3
from tests.campaigns.tables.calls import on_delta
from twopc_delta import DeltaSink
from twopc_delta.log_files import LogFiles
from twopc_delta.options import DeltaOptions
from twopc_delta.receipts import RECEIPT
from twopc_delta.storage import NOTES

CONFIGURATION = {"delta.checkpointInterval": "3"}  # so that a few batches have some


@dataclass(frozen=True)
class DeltaLakeTable:
    """One table.

    Attributes:
        path: the folder of the table, a path or a URL.
        storage_options: what fsspec needs.
        upsert_by: the key of the sink's records, which are marked as deleted when they are replaced.
    """

    path: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    upsert_by: str = ""

    @property
    def options(self) -> Mapping[str, Any]:
        key = {"upsert_by": self.upsert_by} if self.upsert_by else {}
        of_s3 = {"storage_options": dict(self.storage_options)} if self.is_on_s3 else {}
        return {"path": self.path, **of_s3, **key}

    @property
    def is_on_s3(self) -> bool:
        return self.path.startswith("s3://")

    @property
    def _of_delta_rs(self) -> dict[str, str]:
        return DeltaOptions.parse(self.options).storage.delta_options()

    def create(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        DeltaTable.create(
            self.path,
            Schema.from_arrow(schema),
            partition_by=list(partition_by),
            configuration={**CONFIGURATION, "delta.enableDeletionVectors": "true" if self.upsert_by else "false"},
            storage_options=self._of_delta_rs,
        )

    def table(self) -> DeltaTable:
        return DeltaTable(self.path, storage_options=self._of_delta_rs)

    def sink(self) -> DeltaSink:
        return DeltaSink(self.options)

    def append(self, records: pa.Table) -> None:
        write_deltalake(self.path, records, mode="append", storage_options=self._of_delta_rs)

    def compact(self) -> None:
        with suppress(CommitFailedError):  # another writer was faster; there will be a next time
            self.table().optimize.compact()

    def expire(self) -> None:
        """Write a checkpoint, and vacuum with the retention of seven days that Delta has by default."""
        table = self.table()
        table.vacuum(dry_run=False)
        table.create_checkpoint()
        table.cleanup_metadata()

    def read(self) -> pa.Table:
        return pa.table(QueryBuilder().register("t", self.table()).execute("SELECT * FROM t").read_all())

    def scan(self) -> str | None:
        return None if self.is_on_s3 else f"delta_scan('{self.path}')"

    def files(self) -> set[str]:
        """Return the names of notes. Files of a rolled back transaction that was pre-committed are left to VACUUM."""
        fs = fsspec.filesystem("s3" if self.is_on_s3 else "file", **self.storage_options)
        fs.invalidate_cache()
        names = {path.rpartition("/")[2] for path in fs.find(f"{self.path}/{NOTES}")}
        return {name for name in names if not name.endswith(RECEIPT)}

    def patch(self, steps: Steps) -> None:
        on_delta(steps)
        if self.is_on_s3:
            on_s3(steps)

    def watch_commits(self, strike: Strike) -> None:
        strike.watch(LogFiles, "put")
