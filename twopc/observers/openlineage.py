"""Lineage for OpenLineage, through its client (extra ``openlineage``): a run event per batch, with what it has read and
written. docs/monitoring.md describes an event.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

import attr
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    OutputDatasetFacet,
    RunFacet,
    output_statistics_output_dataset,
    schema_dataset,
)

from twopc.checkpoint.offsets import by_source, is_entry, topics_of
from twopc.datasets import Dataset, of_topic
from twopc.events import BatchCommitted, BatchPart, Event
from twopc.hookspecs import hookimpl
from twopc.observers._outbox import THREAD, Outbox
from twopc.transaction import JsonValue

if TYPE_CHECKING:
    import pyarrow as pa

PROJECT = "https://pypi.org/project/twopc-core/"

PRODUCER = f"{PROJECT}{version('twopc-core')}/"

_BATCH_FACET = "twopc_batch"
_BATCH_FACET_SCHEMA = "urn:twopc:openlineage:1-0-0:TwopcBatchRunFacet"
"""The ``$id`` of docs/openlineage/TwopcBatchRunFacet.json."""

_Field = schema_dataset.SchemaDatasetFacetFields
_Statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet

CAPACITY = 1_000
"""How many events wait while the receiver is away: those of hours at a batch per ten seconds, in a few MB."""

CLOSE_TIMEOUT_S = 10.0

_LATER = (408, 429)  # no request in time, too many of them
_SERVER_ERROR = 500


@attr.define
class _TwopcBatchRunFacet(RunFacet):
    """What only twopc knows of a run: the batch."""

    owner: str
    logId: str  # noqa: N815  # facets are spelled so
    batchId: int  # noqa: N815
    recovered: bool
    records: dict[str, int]
    reads: JsonValue

    @staticmethod
    def _get_schema() -> str:
        return _BATCH_FACET_SCHEMA


class OpenLineageObserver:
    """Sends a run event for each batch, when all sinks have completed it.

    Sending has a thread of its own, and its failures are logged once: no batch waits for a receiver or fails by it.
    While the receiver is away, up to ``CAPACITY`` events wait, of which the oldest are dropped.

    Args:
        namespace: that of the jobs. None for the environment variable ``OPENLINEAGE_NAMESPACE``, else ``default``.
        job_name: None for the owner of each batch, which is Spark's query id with ``foreach_batch``. Give a name only
            if the process runs one query.
        source_brokers: ``kafka.bootstrap.servers`` of the query's Kafka sources, whose topics become inputs. None
            leaves the inputs out: Spark's offsets have the topics, but no brokers.
        client: it is closed with the observer. None for one that reads ``OPENLINEAGE_URL``, ``openlineage.yml`` and so
            on by itself.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        job_name: str | None = None,
        source_brokers: str | None = None,
        client: OpenLineageClient | None = None,
    ) -> None:
        self._namespace = namespace or os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
        self._job_name = job_name
        self._source_brokers = source_brokers
        self._client = OpenLineageClient() if client is None else client
        # It warns of each request that it repeats, for as long as the receiver is away.
        logging.getLogger("urllib3.connectionpool").addFilter(_is_of_another_thread)
        self._outbox = Outbox[tuple[datetime, BatchCommitted]](self._send, CAPACITY, _may_pass)
        atexit.register(self.close)

    @property
    def dropped(self) -> int:
        """How many events were not sent and never will be."""
        return self._outbox.dropped

    @hookimpl
    def twopc_event(self, event: Event, at: datetime) -> None:
        if isinstance(event, BatchCommitted):
            self._outbox.put((at, event))

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send the events that wait, for at most ``timeout_s`` seconds. Called when the process ends, too. Later events
        are dropped."""
        atexit.unregister(self.close)
        deadline = time.monotonic() + timeout_s
        self._outbox.close(timeout_s)
        self._client.close(max(0.0, deadline - time.monotonic()))  # some transports have queues of their own

    def _send(self, item: tuple[datetime, BatchCommitted]) -> None:
        self._client.emit(self._run_event(*item))

    def _run_event(self, at: datetime, batch: BatchCommitted) -> RunEvent:
        """Return what is sent for a batch that was completed ``at`` that time."""
        sources = by_source(batch.reads) if isinstance(batch.reads, dict) and is_entry(batch.reads) else {}
        facet = _TwopcBatchRunFacet(
            owner=batch.owner,
            logId=batch.log_id,
            batchId=batch.batch_id,
            recovered=batch.recovered,
            records={part.sink: part.records for part in batch.parts},
            reads=sources or batch.reads,
            producer=PRODUCER,
        )
        return RunEvent(
            eventType=RunState.COMPLETE,
            eventTime=at.isoformat(timespec="milliseconds"),
            run=Run(_run_id(batch), facets={_BATCH_FACET: facet}),
            job=Job(self._namespace, self._job_name or batch.owner),
            inputs=self._inputs([*sources.values()] or [batch.reads]),
            outputs=_outputs(batch),
            producer=PRODUCER,
        )

    def _inputs(self, offsets: Iterable[JsonValue]) -> list[InputDataset]:
        if self._source_brokers is None:
            return []
        topics = sorted({topic for offset in offsets for topic in topics_of(offset)})
        found = [of_topic(self._source_brokers, topic) for topic in topics]
        return [InputDataset(each.namespace, each.name) for each in found]


def _run_id(batch: BatchCommitted) -> str:
    """Return the id of a batch's run: the same whenever the batch is reported, by whichever process."""
    return str(uuid5(NAMESPACE_URL, f"{PROJECT}{batch.owner}/{batch.log_id}/{batch.batch_id}"))


def _outputs(batch: BatchCommitted) -> list[OutputDataset]:
    """Return each dataset that the batch has written to once, even if several sinks write to it."""
    parts: dict[Dataset, list[BatchPart]] = defaultdict(list)
    for part in batch.parts:
        unnamed = (Dataset("twopc", f"{batch.owner}.{part.sink}"),)
        for dataset in unnamed if part.datasets is None else part.datasets:
            parts[dataset].append(part)
    return [_output(dataset, of_dataset) for dataset, of_dataset in parts.items()]


def _output(dataset: Dataset, parts: Sequence[BatchPart]) -> OutputDataset:
    """A count is left out if a sink has written to several datasets, and a schema if there are several or none."""
    of_output: dict[str, OutputDatasetFacet] = {}
    if all(part.datasets is None or len(part.datasets) == 1 for part in parts):
        of_output["outputStatistics"] = _Statistics(rowCount=sum(part.records for part in parts), producer=PRODUCER)
    of_dataset: dict[str, DatasetFacet] = {}
    schema = parts[0].schema
    if schema is not None and all(part.schema == schema for part in parts):
        of_dataset["schema"] = schema_dataset.SchemaDatasetFacet(fields=_fields(schema), producer=PRODUCER)
    return OutputDataset(dataset.namespace, dataset.name, facets=of_dataset, outputFacets=of_output)


def _fields(fields: Iterable[pa.Field]) -> list[_Field]:
    import pyarrow as pa  # the core does not install it

    return [
        _Field(field.name, "struct", fields=_fields(field.type))
        if pa.types.is_struct(field.type)
        else _Field(field.name, str(field.type))
        for field in fields
    ]


def _may_pass(error: Exception) -> bool:
    """Whether the receiver may take the same event later. An error of HTTP has the response, if there was one."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        return not isinstance(error, TypeError | ValueError)  # these are about the event, or the configuration
    return status >= _SERVER_ERROR or status in _LATER


def _is_of_another_thread(record: logging.LogRecord) -> bool:
    return record.threadName != THREAD
