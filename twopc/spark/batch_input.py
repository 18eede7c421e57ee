"""What the batch that runs now reads: the entry of Spark's offset log, complete, and what its offsets stand for.

Spark's engine is asked, in the driver's JVM (the same in 4.0, 4.1 and 4.2). It has written the entry to the checkpoint,
wherever that is, and keeps the newest in memory. What a query finds there when it starts is read from the checkpoint:
another version of Spark may have written it, with fields that this one would leave out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from twopc.checkpoint.folder import url
from twopc.checkpoint.offsets import Reads, by_source, parse
from twopc.checkpoint.source_files import files_read, read_before, stands_for_files, with_files
from twopc.spark.progress import each, running_query
from twopc.transaction import JsonValue

_UTF_8 = "UTF-8"

_FILE_SOURCE = re.compile(r"FileStreamSource\[(.+)\]")
"""Spark's text of one (the same in 4.0, 4.1 and 4.2)."""


class BatchInput:
    """The input of a query's batches, from its start to its end."""

    def __init__(self, session: SparkSession, query_id: str) -> None:
        jvm: Any = session._jvm  # noqa: SLF001  # the only way to it
        self._query = running_query(session, query_id)
        self._offset_log = self._query.offsetLog()
        self._buffer = jvm.java.io.ByteArrayOutputStream()
        root = self._query.resolvedCheckpointRoot()
        self.checkpoint = url(str(root))
        self._folder = _JvmFolder(session, root)
        self._folders: list[str] = []
        self._before: Mapping[str, JsonValue] | None = None

    @property
    def file_sources(self) -> list[str]:
        """The folder of each file source, as URL or as a pattern of them."""
        named = [_FILE_SOURCE.fullmatch(str(source.toString())) for source in each(self._query.sources())]
        return [found[1] for found in named if found]

    @property
    def is_active(self) -> bool:
        """Whether the query has not ended since. A query that is started again has other objects in the JVM."""
        return bool(self._query.isActive())

    def reads(self, batch_id: int) -> Reads:
        """What a batch reads, as JSON."""
        is_first = self._before is None
        entry = self._entry(self._written(batch_id) if is_first else self._newest(batch_id))
        before = self._before or {}
        if is_first and batch_id and stands_for_files(entry):
            before = by_source(self._entry(self._written(batch_id - 1)))
        self._before = by_source(entry)
        return with_files(entry, files_read(self._folder, batch_id, self._before, before))

    def before(self, batch_id: int) -> Reads | None:
        """What the batch before reads, as the checkpoint has it when the query starts. None for any later batch, as
        this process has planned the one before."""
        return read_before(self._folder, batch_id) if self._before is None else None

    def _entry(self, text: str) -> Reads:
        entry = parse(text)
        if stands_for_files(entry) and isinstance(entry["sources"], list):
            self._folders = self._folders or self._source_folders()
            if self._folders != [str(number) for number in range(len(self._folders))]:
                entry["folders"] = self._folders
        return entry

    def _newest(self, batch_id: int) -> str:
        """As Spark has written it, from memory."""
        self._buffer.reset()
        self._offset_log.serialize(self._offset_log.get(batch_id).get(), self._buffer)
        return str(self._buffer.toString(_UTF_8))

    def _written(self, batch_id: int) -> str:
        return self._folder.text(f"offsets/{batch_id}")

    def _source_folders(self) -> list[str]:
        """The folder of each source: its number among those of the plan, in which one may be twice."""
        sources = list(each(self._query.sources()))
        distinct: list[Any] = []
        for source in sources:
            if not any(source.equals(other) for other in distinct):
                distinct.append(source)
        return [str(next(n for n, other in enumerate(distinct) if source.equals(other))) for source in sources]


class _JvmFolder:
    """The checkpoint by Hadoop's file systems, as Spark reaches it."""

    def __init__(self, session: SparkSession, root: str) -> None:
        jvm: Any = session._jvm  # noqa: SLF001
        self._root = root
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._read = jvm.org.apache.commons.io.IOUtils.toString
        self._digest = jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex
        conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._fs = self._path_of(root).getFileSystem(conf)

    def size(self, path: str) -> int | None:
        # Not by the exception of a file that is not there: PySpark asks the JVM a hundred times what kind it is of.
        where = self._path(path)
        return int(self._fs.getFileStatus(where).getLen()) if self._fs.exists(where) else None

    def text(self, path: str, start: int = 0) -> str:
        stream = self._fs.open(self._path(path))
        try:
            if start:
                stream.seek(start)
            return str(self._read(stream, _UTF_8))
        finally:
            stream.close()

    def sha256(self, path: str) -> str:
        stream = self._fs.open(self._path(path))
        try:
            return str(self._digest(stream))
        finally:
            stream.close()

    def _path(self, path: str) -> Any:
        return self._path_of(f"{self._root}/{path}")
