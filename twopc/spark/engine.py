"""Spark's engine as a batch meets it: in the driver's own process, or through Spark Connect.

Spark passes the function for ``foreachBatch`` a frame of the driver's process, where the JVM answers questions; or it
runs the function in a Python process of its own that is a client of the server, one per start of a query. Such a client
has no JVM: the query's id and what a batch reads come from the checkpoint folder, and nothing tells what its plan is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from twopc.checkpoint.folder import CheckpointFolder
from twopc.checkpoint.source_files import read_before
from twopc.errors import ConfigurationError, LogMismatch
from twopc.spark.batch_input import BatchInput, BatchReads, require_made_of_batch
from twopc.spark.tuning import Plan, Plans

_QUERY_ID = "sql.streaming.queryId"
_DESCRIPTION = "spark.job.description"

Input: TypeAlias = "BatchInput | ConnectInput"


class Engine(Protocol):
    """What a writer of batches asks of the engine."""

    @property
    def query_id(self) -> str:
        """Spark's id of the query. Raises ConfigurationError."""

    def look(self, batch: DataFrame) -> tuple[Input, Plans | UnknownPlans]:
        """Return what the query reads and the plans of its batches, once per start of the query.

        Raises:
            ConfigurationError: the query can't be written exactly once, ``batch`` is not of it, or ``checkpoint`` is
                not its checkpoint.
        """

    def described(self, description: str) -> contextlib.AbstractContextManager[None]:
        """Show ``description`` in Spark's UI for the jobs inside."""


def is_connected(batch: DataFrame) -> bool:
    """Whether a batch comes through Spark Connect."""
    return not isinstance(batch, ClassicDataFrame)


class ClassicEngine:
    """The engine in this process."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._context = session.sparkContext

    @property
    def query_id(self) -> str:
        query_id = self._context.getLocalProperty(_QUERY_ID)
        if query_id is None:
            raise ConfigurationError("only a streaming query can call this: use df.writeStream.foreachBatch(...)")
        return query_id

    def look(self, batch: DataFrame) -> tuple[BatchInput, Plans]:
        require_made_of_batch(batch)
        found = BatchInput(self._session, self.query_id)
        return found, Plans(self._session, found.query)

    @contextlib.contextmanager
    def described(self, description: str) -> Iterator[None]:
        before = self._context.getLocalProperty(_DESCRIPTION)
        self._context.setLocalProperty(_DESCRIPTION, description)
        try:
            yield
        finally:
            self._context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None clears it


class ConnectEngine:
    """The engine of a server. ``checkpoint`` is the location of the query's checkpoint."""

    def __init__(self, session: Any, checkpoint: str | None) -> None:
        if checkpoint is None:
            raise ConfigurationError(
                "through Spark Connect, foreach_batch can't ask Spark for its query's id, which the log needs. Nothing"
                " was written. Give it the query's 'checkpointLocation', as foreach_batch(..., checkpoint=...). The"
                " server's Python must be able to read that folder.",
                option="checkpoint",
            )
        self._session, self._folder = session, CheckpointFolder(checkpoint)

    @property
    def query_id(self) -> str:
        return self._folder.query_id()

    def look(self, batch: DataFrame) -> tuple[ConnectInput, UnknownPlans]:  # noqa: ARG002  # a client sees no plan
        running = {query.id for query in self._session.streams.active}
        if self.query_id not in running:
            raise ConfigurationError(
                f"the checkpoint at {self._folder.url} belongs to query {self.query_id}, and the session runs"
                f" {', '.join(sorted(running)) or 'none'}. Nothing was written. Give foreach_batch the folder that is"
                " the query's 'checkpointLocation'.",
                option="checkpoint",
            )
        return ConnectInput(self._folder), UnknownPlans()

    def described(self, description: str) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        return contextlib.nullcontext()  # a server describes each job by the client's request


class ConnectInput:
    """What ``BatchInput`` is where there is a JVM.

    Attributes:
        checkpoint: the URL of the query's checkpoint folder.
        file_sources: nothing is known of them here.
        is_active: whether the query is running: its process ends with it.
    """

    file_sources: tuple[str, ...] = ()
    is_active = True

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self.checkpoint = folder.url
        self._newest: BatchReads | None = None

    def of_batch(self, batch_id: int) -> BatchReads:
        """Return what a batch reads, which is the newest that Spark has planned.

        Raises:
            LogMismatch: Spark has planned another batch in this checkpoint.
        """
        if self._newest is None or self._newest.batch_id != batch_id:
            self._newest = self._look(batch_id)
        return self._newest

    def _look(self, batch_id: int) -> BatchReads:
        newest, reads = self._folder.newest()
        if newest != batch_id:
            raise LogMismatch(
                f"the query is at batch {batch_id}, and the newest batch in its checkpoint at {self.checkpoint} is"
                f" {newest}. Nothing was written. Does another driver run this query? Stop that one."
            )
        return BatchReads(batch_id, reads, read_before(self._folder, batch_id) if self._newest is None else None)

    def kafka_offsets(self) -> NoReturn:
        raise ConfigurationError(
            "'offsets' does not work through Spark Connect, where nothing tells which of the query's sources are"
            " Kafka's. Nothing was written. Remove the argument.",
            option="offsets",
        )


class UnknownPlans:
    """The plans of a query's batches, of which a client sees nothing."""

    def of(self, frame: DataFrame) -> Plan:  # noqa: ARG002
        return Plan()
