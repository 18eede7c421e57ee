"""The sink for a consumer group's offsets, which record how far a query has read. They are decided with its output.

A transaction of offsets is handled like any other: it is sealed, decided, ended by producer id and epoch, and found by
recovery. If offsets were committed without a transaction, an old driver that wakes up could set the group back.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twopc.checks import CheckResult
from twopc.datasets import Dataset
from twopc.errors import ConfigurationError, SchemaMismatch, TwoPhaseCommitError
from twopc.options import parse
from twopc.transaction import Committable
from twopc_kafka import checks
from twopc_kafka.answers import ProducerIdentity
from twopc_kafka.options import ARROW, PROGRESS_OPTIONS
from twopc_kafka.sink import KafkaSink
from twopc_kafka.writers.offsets import COLUMNS, OffsetsWriter

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MEMBERS_INTERVAL_S = 60.0
"""How often a running query checks whether its group has members."""

_OF_RECORDS = ("topic", "delivery", "writer", "batch.markers", "upsert_by")


class KafkaProgressSink(KafkaSink):
    """Commits offsets to a consumer group. The columns are ``topic``, ``partition`` and ``offset``, the next offset to
    read in the partition.

    Args:
        options: the options of a ``KafkaSink`` with the Arrow writer, except ``topic``, ``delivery``, ``writer``,
            ``batch.markers`` and ``upsert_by``; and ``group.id``, a group that only this query uses, on the cluster
            that the query reads from.

    Raises:
        ConfigurationError: an option is wrong. No connection was made.
    """

    commits_last = True
    if_lost = (
        "All other sinks have their part of the batch. The group stays at its earlier offsets until the next batch"
        " commits new ones. Give the transaction up with 'twopc abandon' and start the query again."
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        given = dict(options)
        self._group = parse("the kafka-offsets sink", PROGRESS_OPTIONS, given)["group.id"]
        del given["group.id"]
        for name in _OF_RECORDS:
            if name in given:
                raise ConfigurationError(
                    f"{name!r} can't be set on a kafka-offsets sink, which writes no records", option=name
                )
        super().__init__({**given, "writer": ARROW})
        self._looked_for_members_at = -math.inf
        self._has_members = False

    def _writer(self, name: str, was_used: bool, marker_topic: str | None) -> OffsetsWriter:  # noqa: ARG002
        return OffsetsWriter(self._options, name, self._group, was_used)

    def validate(self, schema: pa.Schema) -> None:
        if {field.name: str(field.type) for field in schema} != COLUMNS:
            raise SchemaMismatch(f"the kafka-offsets sink takes the columns {COLUMNS}, not {schema.names}")
        self._require_own_group()

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset]:  # noqa: ARG002
        return ()

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
        """Seal as ``KafkaSink`` does, and warn of members that have joined the group since the query started."""
        self._look_for_members()
        return super().seal(committables, age_s)

    def _look_for_members(self) -> None:
        now = time.monotonic()
        if now - self._looked_for_members_at < MEMBERS_INTERVAL_S:
            return
        self._looked_for_members_at = now
        try:
            has_members = bool(self._control.taken_by(self._group))
        except TwoPhaseCommitError as error:  # no reason to stop a batch
            logger.debug("could not check consumer group %s for members: %s", self._group, error)
            return
        if has_members and not self._has_members:
            logger.warning(
                "consumer group %r (the option 'group.id') has gained members since the query started. This query still"
                " commits its own offsets to the group, so these readers lose their position. Give the readers or this"
                " query another group.",
                self._group,
            )
        elif self._has_members and not has_members:
            logger.info("consumer group %r no longer has members", self._group)
        self._has_members = has_members

    def _require_grants(self) -> None:
        super()._require_grants()
        self._control.run(self._control.coordinator_of, self._group)  # raises unless a broker coordinates it

    def _require_own_group(self) -> None:
        if why := self._control.taken_by(self._group):
            raise ConfigurationError(
                f"consumer group {self._group!r} (the option 'group.id') can't take the query's offsets: {why}, so an"
                " application reads with it, and would lose its position. Nothing was written. Name a group that only"
                " this query uses.",
                option="group.id",
            )

    def _check_target(self) -> Iterator[CheckResult]:
        yield CheckResult.of(f"consumer group {self._group!r}: members", self._require_own_group)

    def _try_to_write(self, name: str, producer: ProducerIdentity) -> Iterator[CheckResult]:
        yield checks.clock(checks.try_to_progress(self._control, name, producer, self._group))

    @property
    def seals_within_s(self) -> None:  # type: ignore[override]
        return None

    def _refuse_too_old(self, age_s: float, records: int) -> None:
        """Accept any age: this sink's transaction begins only after those of the output are pre-committed."""
