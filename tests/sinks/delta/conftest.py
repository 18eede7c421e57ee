"""What the tests of the Delta sink share: a table of one test, its sinks, and what a reader sees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake

from tests.support.sink_place import ROUND, SinkPlace, Written, from_log
from twopc import Committable, Round
from twopc_delta import DeltaSink

VALUE = pa.schema({"value": pa.string()})


@dataclass(frozen=True)
class Place(SinkPlace[DeltaSink]):
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

    def rows(self) -> list[dict[str, Any]]:
        """What a reader sees."""
        found = QueryBuilder().register("t", self.table()).execute("SELECT * FROM t").read_all()
        return list(pa.table(found).to_pylist())

    def values(self) -> list[str]:
        return sorted(row["value"] for row in self.rows())

    def unbound(self, **options: Any) -> DeltaSink:
        return DeltaSink({"path": self.path, **options})

    def pre_commit(
        self, records: Written, round: Round = ROUND, partition: int = 0, sink: DeltaSink | None = None
    ) -> Committable:
        """What a participant that is gone has pre-committed, sealed, and read back from a log."""
        vote = self.vote(records, round, partition, sink)
        [sealed] = (sink or self.sink()).seal([vote], 0.0)
        return from_log(sealed)

    def append(self, *values: str) -> None:
        """What a writer that is not ours adds."""
        write_deltalake(self.path, pa.table({"value": pa.array(values, pa.string())}), mode="append")

    def data_files(self) -> list[str]:
        """Every Parquet file of records, in the table or not."""
        files = (path.relative_to(self.folder) for path in self.folder.rglob("*.parquet"))
        return sorted(str(path) for path in files if "_delta_log" not in path.parts)

    def entry(self, version: int) -> bytes:
        """One entry of the table's log."""
        return (self.folder / "_delta_log" / f"{version:020d}.json").read_bytes()

    def added(self) -> list[dict[str, Any]]:
        """What the newest entry of the log adds."""
        actions = [json.loads(line) for line in self.entry(self.table().version()).splitlines()]
        return [action["add"] for action in actions if "add" in action]

    @property
    def receipt(self) -> Path:
        return self.folder / "_twopc" / "twopc.committed.twopc.log.orders.receipt"

    def notes(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("_twopc/*.json"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A table of one column, ``value``."""
    place = Place(str(tmp_path / "orders"))
    place.create()
    return place
