"""``format("twopc")``: a sink as a data source of Spark's, for streaming queries and for batch writes.

Where Spark runs what, measured on 4.2.0 with streaming queries and batch writes:

- Before the tasks of *each* micro-batch, and of each batch write, a planner process on the driver makes the data source
  from its options and calls ``streamWriter`` or ``writer``. What that returns is pickled into the tasks. Nothing of it
  runs at ``start()``. The batch's number is not known there.
- ``write`` runs once for each task attempt. ``TaskContext`` has the query's id and the batch's number.
- ``commit`` and ``abort`` run in another process on the driver. In a batch write they are called on the planner's
  writer. In a streaming query they are *not*: a data source that was made from the options at the query's first commit
  is unpickled there, and its ``streamWriter`` called again. So what was learnt before the tasks travels with their
  messages.
- ``commit`` is called once, and after a batch of which every task succeeded. Where it raises, or its process dies,
  ``abort`` is called with the same messages. Where a task failed, its message is None, and all may be. A batch that
  failed is not repeated before the query is started again; then all of this is called anew for the same batch,
  also for one whose ``commit`` returned and which Spark had not noted yet.
- These processes are reused, for other queries of the driver too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.types import StructType

from twopc.errors import ConfigurationError, LogMismatch
from twopc.spark.arrow import arrow_schema, in_batches
from twopc.spark.data_source.options import batch_target, stream_target
from twopc.spark.data_source.round import PhaseOne, Target, TaskVote

logger = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class TwoPhaseCommitDataSource(DataSource):
    """Register it once in a session: ``spark.dataSource.register(TwoPhaseCommitDataSource)``.

    Options: ``sink``, the backend's entry-point name; ``log``, by default in the checkpoint folder; ``replay_copies``;
    ``first_batch_id``; for batch writes ``batch_id``; all others are the sink's own. See ``docs/spark.md``.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._is_before_tasks = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Only on its way to commit or abort is a data source pickled. There a new incarnation would fence the round.
        self.__dict__.update(state)
        self._is_before_tasks = False

    @classmethod
    def name(cls) -> str:
        return "twopc"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        if overwrite:
            raise ConfigurationError("output mode 'complete' would replace what is committed: use 'append'")
        target = stream_target(self.options)
        phase_one = target.open(arrow_schema(schema)) if self._is_before_tasks else None
        return StreamWriter(target, phase_one, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise ConfigurationError("mode 'overwrite' would replace what is committed: use mode('append')")
        target, batch_id = batch_target(self.options)
        if batch_id is None:
            logger.warning("a batch write without 'batch_id' is written again when it is repeated")
        return BatchWriter(target, target.open(arrow_schema(schema), batch_id))


# Spark 4.1 and later hand Arrow batches to those who ask for them by this base class.
_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)


class StreamWriter(_StreamWriter):  # type: ignore[misc]  # a base class by version
    """The micro-batches of a query. ``phase_one`` is None where the writer was made for commit or abort."""

    def __init__(self, target: Target, phase_one: PhaseOne | None, schema: StructType) -> None:
        self._target = target
        self._phase_one = phase_one
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> TaskVote:
        context = TaskContext.get()
        assert context is not None
        assert self._phase_one is not None
        query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query_id != self._target.owner or batch_id is None:
            raise LogMismatch(
                f"this is query {query_id}, and its checkpoint folder is of query {self._target.owner}. Nothing was"
                " written. Was the folder replaced while the query ran? Start the query again."
            )
        batches = in_batches(iterator, self._schema) if _StreamWriter is DataSourceStreamWriter else iterator
        return self._phase_one.write(int(batch_id), batches)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        self._target.finish(batchId, messages)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: ARG002, N803  # the same
        self._target.recover(messages)


class BatchWriter(DataSourceArrowWriter):
    """One batch write."""

    def __init__(self, target: Target, phase_one: PhaseOne) -> None:
        self._target = target
        self._phase_one = phase_one

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskVote:
        return self._phase_one.write(self._phase_one.batch_id, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        self._target.finish(self._phase_one.batch_id, messages)

    def abort(self, messages: Sequence[Any]) -> None:
        self._target.recover(messages, self._phase_one.incarnation)
