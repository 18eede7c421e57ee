"""``format("twopc")``: a sink as a Spark data source, for streaming queries and for batch writes.

Which process runs which call, measured on Spark 4.2.0 with streaming queries and batch writes:

- Before the tasks of *each* micro-batch or batch write, a planner process on the driver creates the data source from
  its options and calls ``streamWriter`` or ``writer``. The writer is pickled into the tasks. None of this runs at
  ``start()``. The planner does not know the batch's number.
- ``write`` runs once per task attempt. ``TaskContext`` provides the query's id and the batch's number.
- ``commit`` and ``abort`` run in another process on the driver. In a batch write they are called on the planner's
  writer. In a streaming query they are *not*: Spark unpickles there a data source that it created from the options at
  the query's first commit, and calls its ``streamWriter`` again. So state from before the tasks travels with their
  messages.
- ``commit`` is called once, after a batch in which every task succeeded. If it raises, or its process dies, ``abort``
  is called with the same messages. The message of a failed task is None, and all may be None. A failed batch is not
  repeated until the query is started again. Then all of these calls are made again for the same batch, even if its
  ``commit`` had returned but Spark had not yet recorded that.
- The processes are reused, also by other queries of the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row, datasource
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.types import StructType

from twopc.errors import ConfigurationError, LogMismatch
from twopc.spark.data_source.options import batch_target, stream_target
from twopc.spark.data_source.round import PhaseOne, Rounds, TaskVote
from twopc.spark.records import arrow_schema

logger = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

_ROWS_PER_BATCH = 10_000
"""Rows per record batch: Spark's default (spark.sql.execution.arrow.maxRecordsPerBatch)."""


class TwoPhaseCommitDataSource(DataSource):
    """The data source ``twopc``. Register it once per session: ``spark.dataSource.register(TwoPhaseCommitDataSource)``.

    Options: ``sink``, the backend's entry-point name; ``log``, by default in the checkpoint folder; ``replay_copies``;
    ``first_batch_id``; ``events``; for batch writes ``batch_id``. All others belong to the sink. See
    ``docs/other-ways.md``.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._is_before_tasks = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Spark pickles a data source only for commit or abort. Opening an incarnation there would fence the round.
        self.__dict__.update(state)
        self._is_before_tasks = False

    @classmethod
    def name(cls) -> str:
        return "twopc"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        if overwrite:
            raise ConfigurationError("output mode 'complete' would replace committed records: use 'append'")
        rounds = stream_target(self.options)
        phase_one = rounds.open(arrow_schema(schema)) if self._is_before_tasks else None
        return StreamWriter(rounds, phase_one, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise ConfigurationError("mode 'overwrite' would replace committed records: use mode('append')")
        rounds, batch_id = batch_target(self.options)
        if batch_id is None:
            logger.warning("a batch write without 'batch_id' is written again when it is repeated")
        return BatchWriter(rounds, rounds.open(arrow_schema(schema), batch_id), schema)


# Spark 4.1 and later pass Arrow batches to writers of this class.
_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)


class StreamWriter(_StreamWriter):  # type: ignore[misc]  # the base class depends on the version
    """Writes the micro-batches of a query. ``phase_one`` is None in a writer that only commits or aborts."""

    def __init__(self, rounds: Rounds, phase_one: PhaseOne | None, schema: StructType) -> None:
        self._rounds = rounds
        self._phase_one = phase_one
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> TaskVote:
        context = TaskContext.get()
        assert context is not None
        assert self._phase_one is not None
        query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query_id != self._rounds.owner or batch_id is None:
            raise LogMismatch(
                f"this is query {query_id}, and its checkpoint folder belongs to query {self._rounds.owner}. Nothing"
                " was written. Was the folder replaced while the query ran? Start the query again."
            )
        batches = to_record_batches(iterator, self._schema) if _StreamWriter is DataSourceStreamWriter else iterator
        return self._phase_one.write(int(batch_id), batches)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        self._rounds.finish(batchId, messages, arrow_schema(self._schema))

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # the same
        self._rounds.recover(batchId, messages)


class BatchWriter(DataSourceArrowWriter):
    """The writer of one batch write."""

    def __init__(self, rounds: Rounds, phase_one: PhaseOne, schema: StructType) -> None:
        self._rounds = rounds
        self._phase_one = phase_one
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskVote:
        return self._phase_one.write(self._phase_one.batch_id, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        self._rounds.finish(self._phase_one.batch_id, messages, arrow_schema(self._schema))

    def abort(self, messages: Sequence[Any]) -> None:
        self._rounds.recover(self._phase_one.batch_id, messages, self._phase_one.incarnation)


def to_record_batches(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Convert rows to record batches, holding one record batch at a time."""
    rest = iter(rows)
    while some := list(islice(rest, _ROWS_PER_BATCH)):
        yield from LocalDataToArrowConversion.convert(some, schema, use_large_var_types=False).to_batches()
