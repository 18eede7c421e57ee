"""The job of a driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaigns.spark.plans import PLANS

FOREACH_BATCH, FORMAT_STREAM, FORMAT_BATCH, CONNECT = "foreach_batch", "format_stream", "format_batch", "connect"
TO_KAFKA = ["key", "to_json(struct(*)) AS value"]


@dataclass(frozen=True)
class Job:
    """The job of a driver, as JSON in its first argument.

    Attributes:
        api: by which the query writes: one of the four above.
        plan: the name of what it computes.
        source, target: topics. Where the source is files, they are in ``folder/source``.
        records: of the source, in all.
        parallelism: partitions of what is written, where the plan leaves it open.
        strikes: what happens, the step and the batch; of each step one at most.
        jars: of Kafka's source, as a class path.
        classes: archive of the JVM's loaded classes; it may be missing.
        backends: the folder with ``twopc_faulty``.
        settings: of the Spark session, in addition.
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
    parallelism: int = 2
    strikes: Sequence[tuple[str, str, int]] = ()
    master: str = "local[2]"
    settings: Mapping[str, str] = field(default_factory=dict)

    def begun(self, batch: int) -> Path:
        """Return the file that exists from the beginning of a batch on, and not during the previous batch."""
        return Path(self.folder) / (f"begun/{batch}" if self.api == FORMAT_BATCH else f"checkpoint/offsets/{batch}")

    @property
    def writes_files(self) -> bool:
        """Whether the result goes to files as well, which only ``foreach_batch`` can do on one decision."""
        return PLANS[self.plan].to_files and self.api == FOREACH_BATCH

    @property
    def faults(self) -> Path:
        return Path(self.folder) / "faults"

    @property
    def events(self) -> Path:
        """The folder of Spark's event logs, if they are enabled."""
        return Path(self.folder) / "events"

    @property
    def client(self) -> Path:
        """A file with the process group of the Connect client that runs."""
        return Path(self.folder) / "client"

    @property
    def outlived(self) -> Path:
        """A file that exists if a task reached its end although another attempt should have replaced it."""
        return Path(self.folder) / "outlived"
