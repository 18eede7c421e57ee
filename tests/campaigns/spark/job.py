"""A driver's job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaigns.spark.plans import PLANS

FOREACH_BATCH, FORMAT_STREAM, FORMAT_BATCH = "foreach_batch", "format_stream", "format_batch"
CONNECT, CONNECT_FOREACH_BATCH = "connect", "connect_foreach_batch"
PIPELINE = "pipeline"
UNPACKED = "environment"
"""The folder in which an executor unpacks its archive."""
FLOWS = ("first", "second")
"""The flows of the pipeline, into one sink."""

TO_KAFKA = ["key", "to_json(struct(*)) AS value"]


@dataclass(frozen=True)
class Job:
    """A driver's job, passed as JSON in its first argument.

    Attributes:
        api: the API with which the query writes: one of the six above.
        plan: the name of its computation.
        source, target: the topics. Source files are in ``folder/source``.
        records: the number of records in the source.
        conninfo: the connection string of a PostgreSQL server.
        parallelism: the number of partitions of the output, if the plan leaves it open.
        strikes: kind, step and batch of each strike; at most one per step.
        jars: the jars of the Kafka source, as a class path.
        classes: the path of an archive of the JVM's loaded classes, which may be missing.
        backends: the folder with ``twopc_faulty``.
        archive: an archive with the executors' Python packages, or empty if they have the driver's.
        settings: additional settings of the Spark session.
    """

    api: str
    plan: str
    folder: str
    servers: str
    source: str
    target: str
    records: int
    jars: str
    classes: str
    backends: str
    conninfo: str
    archive: str = ""
    parallelism: int = 2
    strikes: Sequence[tuple[str, str, int]] = ()
    master: str = "local[2]"
    settings: Mapping[str, str] = field(default_factory=dict)

    def begun(self, batch: int) -> Path:
        """Return a file that exists from the beginning of a batch on, but not during the previous batch."""
        if self.api == FORMAT_BATCH:
            return Path(self.folder) / f"begun/{batch}"
        checkpoint = f"storage/_checkpoints/orders/{FLOWS[0]}/0" if self.api == PIPELINE else "checkpoint"
        return Path(self.folder) / checkpoint / f"offsets/{batch}"

    @property
    def writes_files(self) -> bool:
        """Whether the result also goes to files, which only ``foreach_batch`` can do in one decision."""
        return PLANS[self.plan].to_files and self.is_foreach_batch

    @property
    def is_foreach_batch(self) -> bool:
        return self.api in (FOREACH_BATCH, CONNECT_FOREACH_BATCH)

    @property
    def faults(self) -> Path:
        return Path(self.folder) / "faults"

    @property
    def events(self) -> Path:
        """The folder of Spark's event logs, if they are enabled."""
        return Path(self.folder) / "events"

    @property
    def client(self) -> Path:
        """A file with the process group of the running Connect client."""
        return Path(self.folder) / "client"

    @property
    def outlived(self) -> Path:
        """A file that exists if a task completed although another attempt should have replaced it."""
        return Path(self.folder) / "outlived"
