"""Lineage for OpenLineage, through its client (extra ``openlineage``): one run per batch, with its inputs and outputs.
docs/openlineage.md describes the events.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, UUID, uuid5

import attr
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    OutputDatasetFacet,
    RunFacet,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
)

from twopc.checkpoint.offsets import by_source, is_entry, topics_of
from twopc.datasets import Dataset, of_topic
from twopc.errors import ConfigurationError
from twopc.events import BatchCommitted, BatchPart, Event, PhaseEntered
from twopc.hookspecs import hookimpl
from twopc.observers._outbox import THREAD, Outbox
from twopc.phases import Phase
from twopc.transaction import JsonValue

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

PROJECT = "https://pypi.org/project/twopc-core/"

_VERSION = version("twopc-core")

PRODUCER = f"{PROJECT}{_VERSION}/"

_BATCH_FACET = "twopc_batch"
_BATCH_FACET_SCHEMA = "urn:twopc:openlineage:1-0-0:TwopcBatchRunFacet"
"""The ``$id`` of docs/openlineage/TwopcBatchRunFacet.json."""

# DataHub rejects events of unknown producers, unless they name the engine or the type of job.
_ENGINE: RunFacet = processing_engine_run.ProcessingEngineRunFacet(_VERSION, "twopc", _VERSION, producer=PRODUCER)

# In OpenLineage's run cycle, only the runs of BATCH jobs end. A STREAMING job is one run as long as the query lives, so
# receivers must not rely on its end.
_JOB_TYPE = job_type_job.JobTypeJobFacet("BATCH", "TWOPC", "JOB", producer=PRODUCER)

_Field = schema_dataset.SchemaDatasetFacetFields
_Statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet

CAPACITY = 32 * 2**20
"""The most bytes that wait while the client retries a request. The offsets of 10,000 partitions take 180 kB of it."""

_BESIDE_OFFSETS = CAPACITY // 1_000
"""An upper bound for a batch without its offsets, in bytes. So at most a thousand batches wait."""

CLOSE_TIMEOUT_S = 10.0

_PARENT = "OPENLINEAGE_PARENT_ID"
"""The environment variable in which a scheduler, such as Airflow, passes a job the run that started it."""


@attr.define
class _TwopcBatchRunFacet(RunFacet):
    """The facet with the facts about a run's batch that only twopc knows."""

    owner: str
    logId: str  # noqa: N815  # the spelling of facets
    batchId: int  # noqa: N815
    recovered: bool
    records: dict[str, int]
    reads: JsonValue

    @staticmethod
    def _get_schema() -> str:
        return _BATCH_FACET_SCHEMA


@dataclass(frozen=True, slots=True)
class _Completed:
    """A completed batch that waits to be sent."""

    began: datetime  # when its phase one began; equal to ``at`` if another incarnation ran phase one
    at: datetime  # when it was completed
    batch: BatchCommitted  # without ``reads``, which takes six times the memory of its JSON text
    reads: str  # as JSON


class OpenLineageObserver:
    """Sends the start and the end of a run for each batch, when all sinks have completed it.

    A separate thread sends them, and failures are logged once: no batch waits for a receiver or fails because of it.
    While the client retries a request, up to ``CAPACITY`` bytes wait; then the oldest batches are dropped.

    Args:
        namespace: the namespace of the jobs. None for the environment variable ``OPENLINEAGE_NAMESPACE``, else
            ``default``.
        job_name: None for the owner of each batch, which is Spark's query id with ``foreach_batch``. Give a name only
            if the process runs one query.
        source_brokers: ``kafka.bootstrap.servers`` of the query's Kafka sources, whose topics become inputs. None
            leaves the inputs out: Spark's offsets name the topics, but not the brokers.
        client: closed with the observer. None for a client that configures itself, from ``OPENLINEAGE_URL``,
            ``openlineage.yml`` and so on.

    Raises:
        ConfigurationError: the client can't be created from its configuration.
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
        self._client = _make_client() if client is None else client
        # The client would log a warning per retry, as long as the receiver is down.
        logging.getLogger("urllib3.connectionpool").addFilter(_is_of_another_thread)
        self._parent = _parent_of_environment()
        self._began: dict[str, tuple[int, datetime]] = {}  # owner → its current batch and when that began
        self._outbox = Outbox[_Completed](self._send, CAPACITY)
        atexit.register(self.close)

    @property
    def dropped(self) -> int:
        """The number of batches that were not sent and no longer wait."""
        return self._outbox.dropped

    @hookimpl
    def twopc_event(self, event: Event, at: datetime) -> None:
        if isinstance(event, PhaseEntered) and event.phase is Phase.PRE_COMMITTING and event.batch_id is not None:
            self._began[event.owner] = event.batch_id, at
        elif isinstance(event, BatchCommitted):
            batch_id, began = self._began.pop(event.owner, (None, at))
            began = began if batch_id == event.batch_id and not event.recovered else at
            completed = _Completed(min(began, at), at, replace(event, reads=None), json.dumps(event.reads))
            self._outbox.put(completed, len(completed.reads) + _BESIDE_OFFSETS)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send the waiting events, for at most ``timeout_s`` seconds. Also called when the process ends. Later events
        are dropped."""
        atexit.unregister(self.close)
        deadline = time.monotonic() + timeout_s
        self._outbox.close(timeout_s)
        self._client.close(max(0.0, deadline - time.monotonic()))  # some transports have queues of their own

    def _send(self, completed: _Completed) -> None:
        for event in self._run_events(completed):
            self._client.emit(event)

    def _run_events(self, completed: _Completed) -> Iterator[RunEvent]:
        """Yield the start and the end of a batch's run, with its datasets. Only the end has counts."""
        batch, reads = completed.batch, json.loads(completed.reads)
        sources = by_source(reads) if isinstance(reads, dict) and is_entry(reads) else {}
        run_facets = {"processing_engine": _ENGINE, **self._parent}
        # The same in every report of the batch, by any process.
        run_id = str(uuid5(NAMESPACE_URL, f"{PROJECT}{batch.owner}/{batch.log_id}/{batch.batch_id}"))
        end = RunEvent(
            eventType=RunState.COMPLETE,
            eventTime=completed.at.isoformat(timespec="milliseconds"),
            run=Run(run_id, facets={**run_facets, _BATCH_FACET: _batch_facet(batch, sources or reads)}),
            job=Job(self._namespace, self._job_name or batch.owner, facets={"jobType": _JOB_TYPE}),
            inputs=self._inputs([*sources.values()] or [reads]),
            outputs=_outputs(batch),
            producer=PRODUCER,
        )
        began = completed.began.isoformat(timespec="milliseconds")
        outputs = [attr.evolve(each, outputFacets={}) for each in end.outputs or ()]
        start = Run(run_id, facets=run_facets)
        yield attr.evolve(end, eventType=RunState.START, eventTime=began, run=start, outputs=outputs)
        yield end

    def _inputs(self, offsets: Iterable[JsonValue]) -> list[InputDataset]:
        if self._source_brokers is None:
            return []
        topics = sorted({topic for offset in offsets for topic in topics_of(offset)})
        found = [of_topic(self._source_brokers, topic) for topic in topics]
        return [InputDataset(each.namespace, each.name) for each in found]


def _make_client() -> OpenLineageClient:
    try:
        return OpenLineageClient()
    except Exception as error:  # noqa: BLE001  # transports may raise anything, and quote a URL with a secret
        text = "" if {"@", "?"} & {*str(error)} else f": {error}"
        raise ConfigurationError(
            f"OpenLineage's client can't be made from its configuration ({type(error).__name__}{text}). Correct the"
            " variables OPENLINEAGE_* or the file openlineage.yml; OPENLINEAGE_DISABLED=true sends nothing."
        ) from None


def _batch_facet(batch: BatchCommitted, reads: JsonValue) -> _TwopcBatchRunFacet:
    return _TwopcBatchRunFacet(
        owner=batch.owner,
        logId=batch.log_id,
        batchId=batch.batch_id,
        recovered=batch.recovered,
        records={part.sink: part.records for part in batch.parts},
        reads=reads,
        producer=PRODUCER,
    )


def _outputs(batch: BatchCommitted) -> list[OutputDataset]:
    """Return the datasets that the batch wrote to. A dataset of several sinks is returned once."""
    parts: dict[Dataset, list[BatchPart]] = defaultdict(list)
    for part in batch.parts:
        unnamed = (Dataset("twopc", f"{batch.owner}.{part.sink}"),)
        for dataset in unnamed if part.datasets is None else part.datasets:
            parts[dataset].append(part)
    return [_output(dataset, of_dataset) for dataset, of_dataset in parts.items()]


def _output(dataset: Dataset, parts: Sequence[BatchPart]) -> OutputDataset:
    """Return a dataset with the number of its records, unless a sink wrote to several datasets, and with its schema,
    unless a sink has no schema or the sinks' schemas differ."""
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


def _is_of_another_thread(record: logging.LogRecord) -> bool:
    return record.threadName != THREAD


def _parent_of_environment() -> dict[str, RunFacet]:
    """Return the facet of the run that ``OPENLINEAGE_PARENT_ID`` names as ``namespace/job/run``, or nothing."""
    given = os.environ.get(_PARENT, "")
    if not given:
        return {}
    job, _, run_id = given.rpartition("/")
    namespace, _, name = job.rpartition("/")
    try:
        run = parent_run.Run(str(UUID(run_id)))
        if not namespace or not name:
            raise ValueError("no job")
    except ValueError:
        logger.warning("%s is %r, not namespace/job/run with a UUID: runs have no parent", _PARENT, given)
        return {}
    return {"parent": parent_run.ParentRunFacet(run, parent_run.Job(namespace, name), producer=PRODUCER)}
