"""A table of a lake, as its sink, its readers and its other writers use it."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

import twopc
from tests.campaigns.every_step.blows import Strike
from tests.campaigns.every_step.steps import Steps
from tests.support.duckdb_extension import lake_reader


class LakeTable(Protocol):
    """One table. Each process has its own copy, and every method looks at the newest version."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the sink."""

    def create(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        """Create the table, empty."""

    def sink(self) -> twopc.TwoPhaseCommitSink[Any]:
        """Return a new sink."""

    def append(self, records: pa.Table) -> None:
        """Append records, as a writer that knows nothing of twopc."""

    def compact(self) -> None:
        """Rewrite small files as large ones, as a maintenance job does."""

    def expire(self) -> None:
        """Forget old versions, and remove what is certainly unused, as a maintenance job does."""

    def read(self) -> pa.Table:
        """Return all records, as the format's own Python library reads them."""

    def scan(self) -> str | None:
        """Return what DuckDB reads in the table's place, in SQL; None if it can't reach the table."""

    def files(self) -> set[str]:
        """Return the names of the files that transactions of any query have made and the table does not have."""

    def patch(self, steps: Steps) -> None:
        """Turn this process's calls into the table into steps."""

    def watch_commits(self, strike: Strike) -> None:
        """Report this process's requests to commit to ``strike``."""


reader = functools.cache(lake_reader)
"""DuckDB for both formats, one per process: loading takes half a second."""
