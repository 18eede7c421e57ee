"""Spark's engine: in the driver's process, or behind Spark Connect.

Classic Spark calls the function for ``foreachBatch`` in the driver's process, where the JVM can be asked about the
query (the same on 4.0, 4.1 and 4.2). Spark Connect runs the function in a separate Python process, one per start of a
query, that is a client of the server. A client has no JVM. It reads the query's id and the input of a batch from the
checkpoint folder, and can't see the plan.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from twopc.checkpoint.folder import CheckpointFolder, url
from twopc.checkpoint.offsets import Reads, by_source, parse, records_between
from twopc.checkpoint.source_files import files_read, read_before, stands_for_files, with_files
from twopc.errors import ConfigurationError, LogMismatch
from twopc.spark import java
from twopc.transaction import JsonValue

OFFSETS_SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
"""The next offset to read from each partition, as a consumer group stores it."""

Engine: TypeAlias = "ClassicEngine | ConnectEngine"
Input: TypeAlias = "BatchInput | ConnectEngine"

_QUERY_ID = "sql.streaming.queryId"
_DESCRIPTION = "spark.job.description"


def is_connected(batch: DataFrame) -> bool:
    """Whether a batch comes through Spark Connect."""
    return not isinstance(batch, ClassicDataFrame)


class ClassicEngine:
    """The engine in the driver's process."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._context = session.sparkContext

    @property
    def query_id(self) -> str:
        """Spark's id of the query. Raises ConfigurationError: no query is calling."""
        query_id = self._context.getLocalProperty(_QUERY_ID)
        if query_id is None:
            raise ConfigurationError("only a streaming query can call this: use df.writeStream.foreachBatch(...)")
        return query_id

    def is_stopped(self) -> bool:
        """Whether this process has stopped the session."""
        return java.is_stopped(self._context)

    def look(self, batch: DataFrame) -> BatchInput:
        """Return the query's input. Called once per start of the query. Raises ConfigurationError: the query can't be
        written exactly once, or ``batch`` does not come from it."""
        _require_made_of_batch(batch)
        return BatchInput(self._session, self.query_id)

    @contextlib.contextmanager
    def describe(self, description: str) -> Iterator[None]:
        """Show ``description`` in Spark's UI for the jobs inside."""
        before = self._context.getLocalProperty(_DESCRIPTION)
        self._context.setLocalProperty(_DESCRIPTION, description)
        try:
            yield
        finally:
            set_property(self._context, _DESCRIPTION, before)


def set_property(context: SparkContext, name: str, value: str | None) -> None:
    """Set or clear a local property after a job. Errors are ignored: the session or the JVM may have ended, and the
    job's own error must not be hidden."""
    with contextlib.suppress(Exception):
        context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None clears it


class ConnectEngine:
    """The engine behind Spark Connect, and the query's input from its checkpoint. A client sees neither file sources
    nor the JVM's query, and its process ends with the query."""

    file_sources: tuple[str, ...] = ()
    is_active = True
    query = None

    def __init__(self, session: Any, checkpoint: str | None) -> None:
        if checkpoint is None:
            raise ConfigurationError(
                "through Spark Connect, foreach_batch can't ask Spark for its query's id, which the log needs. Nothing"
                " was written. Give it the query's 'checkpointLocation', as foreach_batch(..., checkpoint=...). The"
                " server's Python must be able to read that folder.",
                option="checkpoint",
            )
        self._session, self._folder = session, CheckpointFolder(checkpoint)
        self.checkpoint = self._folder.url
        self._newest: BatchReads | None = None

    @property
    def query_id(self) -> str:
        return self._folder.query_id()

    def is_stopped(self) -> bool:
        return False  # a client can't find out

    def look(self, batch: DataFrame) -> ConnectEngine:  # noqa: ARG002  # a client sees no plan
        """Return the query's input, like ``ClassicEngine.look``. Raises ConfigurationError: the checkpoint belongs to
        another query."""
        running = {query.id for query in self._session.streams.active}
        if self.query_id not in running:
            raise ConfigurationError(
                f"the checkpoint at {self.checkpoint} belongs to query {self.query_id}, and the session runs"
                f" {', '.join(sorted(running)) or 'none'}. Nothing was written. Give foreach_batch the folder that is"
                " the query's 'checkpointLocation'.",
                option="checkpoint",
            )
        return self

    def describe(self, description: str) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        return contextlib.nullcontext()  # the server describes jobs itself

    def of_batch(self, batch_id: int) -> BatchReads:
        """Return the input of ``batch_id``. Raises LogMismatch: ``batch_id`` is not the newest batch that Spark has
        planned."""
        if self._newest is None or self._newest.batch_id != batch_id:
            newest, reads = self._folder.newest()
            if newest != batch_id:
                raise LogMismatch(
                    f"the query is at batch {batch_id}, and the newest batch in its checkpoint at {self.checkpoint} is"
                    f" {newest}. Nothing was written. Does another driver run this query? Stop that one."
                )
            follows = read_before(self._folder, batch_id) if self._newest is None else None
            self._newest = BatchReads(batch_id, reads, follows)
        return self._newest

    def kafka_offsets(self) -> NoReturn:
        raise ConfigurationError(
            "'offsets' does not work through Spark Connect, where nothing tells which of the query's sources are"
            " Kafka's. Nothing was written. Remove the argument.",
            option="offsets",
        )


# A batch's input. -------------------------------------------------------------------------------------------------

_UTF_8 = "UTF-8"

_FILE_SOURCE = re.compile(r"FileStreamSource\[(.+)\]")
"""Spark's description of a file source (the same in 4.0, 4.1 and 4.2)."""

_TEMPORARY = re.compile(r"/temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/?$")
"""Matches the folder that Spark creates for a query without a checkpoint location."""

_KAFKA_SOURCES = "org.apache.spark.sql.kafka010."

_UNREPEATABLE_SOURCES = re.compile(r"TextSocket|ShareGroup|KafkaShare")
"""Matches class names of sources that can't read a batch's records again."""

_UNSUPPORTED_TRIGGERS = {
    "RealTimeTrigger": "real-time mode passes records on before it has recorded what a batch reads",
    "ContinuousTrigger": "continuous processing has no batches",
}
"""Trigger class → why no batch can be decided with it."""


@dataclass(frozen=True, slots=True)
class BatchReads:
    """The input of one batch. Every call for the batch gets the same input, because a user's function may run a batch
    more than once."""

    batch_id: int
    reads: Reads  # the batch's input, as JSON
    # The previous batch's input, as the checkpoint has it at the query's start. None for later batches, because this
    # process has planned the previous one.
    follows: Reads | None = None
    ends: Mapping[str, JsonValue] = field(default_factory=dict)  # the offset at which each source ends
    # The most records that the batch can have. None if unknown: only offsets of Kafka sources show it, and not in the
    # first batch after the query's start.
    records: int | None = None


class BatchInput:
    """The input of a query's batches, for one run of the query. ``query`` is Spark's object in the JVM. Raises
    ConfigurationError: Spark would not repeat a batch with the same records."""

    def __init__(self, session: SparkSession, query_id: str) -> None:
        jvm = java.jvm(session)
        # Each batch has its own session, whose ``streams`` is empty.
        queries = java.of_session(session).sharedState().activeStreamingQueries()
        self.query = queries.get(jvm.java.util.UUID.fromString(query_id))
        _require_repeatable(self.query)
        self._offset_log = self.query.offsetLog()
        self._buffer = jvm.java.io.ByteArrayOutputStream()
        root = self.query.resolvedCheckpointRoot()
        self.checkpoint = url(str(root))
        _require_lasting(self.checkpoint)
        self._folder = _JvmFolder(session, root)
        self._folders: list[str] = []
        self._newest: BatchReads | None = None

    @property
    def file_sources(self) -> list[str]:
        """The folder of each file source, as a URL or a pattern of URLs."""
        named = [_FILE_SOURCE.fullmatch(str(source.toString())) for source in each(self.query.sources())]
        return [found[1] for found in named if found]

    @property
    def is_active(self) -> bool:
        """Whether the query is still running. A restart creates a new query object in the JVM."""
        return bool(self.query.isActive())

    def of_batch(self, batch_id: int) -> BatchReads:
        """Return the input of a batch, which is the newest that Spark has planned."""
        if self._newest is None or self._newest.batch_id != batch_id:
            self._newest = self._look(batch_id, self._newest)
        return self._newest

    def _look(self, batch_id: int, before: BatchReads | None) -> BatchReads:
        if before is not None and before.batch_id == batch_id - 1:
            entry, began, follows = self._entry(self._entry_in_memory(batch_id)), before.ends, None
        else:
            entry, began, follows = self._entry(self._written(batch_id)), {}, read_before(self._folder, batch_id)
            if batch_id and stands_for_files(entry):
                began = by_source(self._entry(self._written(batch_id - 1)))
            before = None
        ends = by_source(entry)
        records = None if before is None or not self._is_of_kafka else _records_between(began, ends)
        reads = with_files(entry, files_read(self._folder, batch_id, ends, began))
        return BatchReads(batch_id, reads, follows, ends, records)

    @cached_property
    def _is_of_kafka(self) -> bool:
        """Whether every source is Kafka."""
        return all(_is_kafka(source) for source in each(self.query.sources()))

    def kafka_offsets(self) -> pa.RecordBatch:
        """Return the offsets of the query's Kafka sources at the end of the current batch. If several sources read a
        partition, the smallest offset counts.

        Spark keeps each source's end offset in memory. Spark has also written the offset to the checkpoint, and reads
        the offset from there when it repeats the batch. Raises ConfigurationError: the query has no Kafka source.
        """
        sources = list(each(self.query.sources()))
        if not any(_is_kafka(source) for source in sources):
            raise ConfigurationError(
                "'offsets' is for queries that read from Kafka, and the sources of this query are"
                f" {', '.join(source.toString() for source in sources)}. Nothing was written. Remove the argument."
            )
        found: dict[tuple[str, int], int] = {}
        for pair in each(self.query.availableOffsets()):
            source, end = pair.productElement(0), pair.productElement(1)
            for topic, partitions in (json.loads(end.json()) if _is_kafka(source) else {}).items():
                for number, offset in partitions.items():
                    partition = topic, int(number)
                    found[partition] = min(offset, found.get(partition, offset))
        rows = [{"topic": topic, "partition": number, "offset": offset} for (topic, number), offset in found.items()]
        return pa.RecordBatch.from_pylist(rows, OFFSETS_SCHEMA)

    def _entry(self, text: str) -> Reads:
        entry = parse(text)
        if stands_for_files(entry) and isinstance(entry["sources"], list):
            self._folders = self._folders or self._source_folders()
            if self._folders != [str(number) for number in range(len(self._folders))]:
                entry["folders"] = self._folders
        return entry

    def _entry_in_memory(self, batch_id: int) -> str:
        """Return Spark's offset log entry from memory, in the form that Spark has written."""
        self._buffer.reset()
        self._offset_log.serialize(self._offset_log.get(batch_id).get(), self._buffer)
        return str(self._buffer.toString(_UTF_8))

    def _written(self, batch_id: int) -> str:
        return self._folder.text(f"offsets/{batch_id}")

    def _source_folders(self) -> list[str]:
        """Return the folder of each source. The folder's name is the source's number among the distinct sources,
        because a plan may list a source twice."""
        sources = list(each(self.query.sources()))
        distinct: list[Any] = []
        for source in sources:
            if not any(source.equals(other) for other in distinct):
                distinct.append(source)
        return [str(next(n for n, other in enumerate(distinct) if source.equals(other))) for source in sources]


def _records_between(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> int | None:
    """Return how many records lie between the offsets of Kafka sources, or None if unknown."""
    counts = [records_between(before.get(source), offset) for source, offset in after.items()]
    return None if None in counts else sum(count for count in counts if count is not None)


def _require_lasting(checkpoint: str) -> None:
    """Raise ConfigurationError if the query has no checkpoint of its own: Spark then creates a temporary one at each
    start."""
    if _TEMPORARY.search(checkpoint):
        raise ConfigurationError(
            f"the query has no checkpointLocation: its checkpoint is {checkpoint}, which its next start would not find."
            " Everything would be written again. Nothing was written. Start the query with"
            " .option('checkpointLocation', ...): a folder of its own that lasts.",
            option="checkpointLocation",
        )


def _require_repeatable(query: Any) -> None:
    """Raise ConfigurationError if Spark might repeat a batch with other records. Upholds: a repeated batch contains the
    records that were decided.

    Spark refuses most of these cases itself, unless configured not to.
    """
    trigger = _class_of(query.trigger()).rpartition(".")[2]
    if why := _UNSUPPORTED_TRIGGERS.get(trigger.removesuffix("$")):
        raise ConfigurationError(
            f"the query has the trigger {trigger}: {why}, so nothing could be exactly once. Nothing was written. Use"
            " trigger(processingTime=...) or trigger(availableNow=True)."
        )
    if "AsyncProgressTracking" in _class_of(query):
        raise ConfigurationError(
            "the query has asyncProgressTrackingEnabled: Spark would write a batch before it has recorded what the"
            " batch reads, and might plan another one after a crash. Nothing was written. Remove that option."
        )
    for source in each(query.sources()):
        if _UNREPEATABLE_SOURCES.search(_class_of(source)):
            raise ConfigurationError(
                f"the source {source.toString()} can't give a batch's records again after a crash, so a batch that was"
                " not decided would be lost. Nothing was written. Read from a source with offsets, such as Kafka or"
                " files."
            )


_LEAVES_WITH_ROWS = frozenset({"LogicalRDD", "LocalRelation", "ExternalRDD"})
"""Leaves of a plan that may contain rows of the batch: the batch itself, or a frame created from its rows."""


def _require_made_of_batch(frame: DataFrame) -> None:
    """Raise ConfigurationError if no row of a frame can come from the query's batch."""
    leaves = [str(leaf.nodeName()) for leaf in each(java.of_frame(frame).logicalPlan().collectLeaves())]
    if _LEAVES_WITH_ROWS.isdisjoint(leaves):
        raise ConfigurationError(
            "the frame that was to be written is not made of the query's batch: it only reads"
            f" {', '.join(sorted(set(leaves)))}. Nothing was written. Such rows might be others when Spark repeats the"
            " batch. Join or union them with the frame that Spark passes to your function, and write that."
        )


def _class_of(value: Any) -> str:
    return str(value.getClass().getName())


def _is_kafka(source: Any) -> bool:
    return _class_of(source).startswith(_KAFKA_SOURCES)


def each(collection: Any) -> Iterator[Any]:
    """Iterate over a Scala collection."""
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


class _JvmFolder:
    """The checkpoint folder, read through the same Hadoop file systems that Spark uses."""

    def __init__(self, session: SparkSession, root: str) -> None:
        jvm = java.jvm(session)
        self._root = root
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._read = jvm.org.apache.commons.io.IOUtils.toString
        self._digest = jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex
        conf = java.of_session(session).sessionState().newHadoopConf()
        self._fs = self._path_of(root).getFileSystem(conf)

    def size(self, path: str) -> int | None:
        # Not by catching FileNotFoundException: PySpark takes a hundred JVM calls to classify an exception.
        where = self._path(path)
        return int(self._fs.getFileStatus(where).getLen()) if self._fs.exists(where) else None

    def text(self, path: str, start: int = 0) -> str:
        with contextlib.closing(self._fs.open(self._path(path))) as stream:
            if start:
                stream.seek(start)
            return str(self._read(stream, _UTF_8))

    def sha256(self, path: str) -> str:
        with contextlib.closing(self._fs.open(self._path(path))) as stream:
            return str(self._digest(stream))

    def _path(self, path: str) -> Any:
        return self._path_of(f"{self._root}/{path}")
