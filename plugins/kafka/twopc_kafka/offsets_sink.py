"""How far a query has read its topics, as a consumer group's offsets, in the decision of what it made of them.

A transaction of offsets is one like any other: sealed, decided, ended by producer id and epoch, found by recovery. An
offset committed without one would have no such condition, and an old driver that wakes up could set the group back.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twopc.checks import CheckResult
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
"""How often a running query looks whether its group has got members."""

_OF_RECORDS = ("topic", "delivery", "writer")


class KafkaProgressSink(KafkaSink):
    """Commits offsets to a consumer group: of each partition the next one to read, in columns ``topic``, ``partition``
    and ``offset``.

    Args:
        options: those of a ``KafkaSink`` with the Arrow writer, but for ``topic``, ``delivery`` and ``writer``; and
            ``group.id``, a group of the query's own, on the cluster that it reads from.

    Raises:
        ConfigurationError: an option is wrong. Nothing was connected to.
    """

    commits_last = True
    if_lost = (
        "All other sinks have their part of the batch; the group stays where it was before, until the next batch takes"
        " it on. Give the transaction up with 'twopc abandon' and start the query again."
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        given = dict(options)
        self._group = parse("the kafka-offsets sink", PROGRESS_OPTIONS, given)["group.id"]
        del given["group.id"]
        for name in _OF_RECORDS:
            if name in given:
                raise ConfigurationError(f"{name!r} can't be set on a kafka-offsets sink, which writes no records")
        super().__init__({**given, "writer": ARROW})
        self._looked_for_members_at = -math.inf
        self._has_members = False

    def _writer(self, name: str, was_used: bool) -> OffsetsWriter:
        return OffsetsWriter(self._options, name, self._group, was_used)

    def validate(self, schema: pa.Schema) -> None:
        if {field.name: str(field.type) for field in schema} != COLUMNS:
            raise SchemaMismatch(f"the kafka-offsets sink takes the columns {COLUMNS}, not {schema.names}")
        self._require_own_group()

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
        """Like any other, and warn of members that have joined the group since the query started."""
        self._look_for_members()
        return super().seal(committables, age_s)

    def _look_for_members(self) -> None:
        now = time.monotonic()
        if now - self._looked_for_members_at < MEMBERS_INTERVAL_S:
            return
        self._looked_for_members_at = now
        try:
            has_members = self._control.has_members(self._group)
        except TwoPhaseCommitError as error:  # no reason to stop a batch
            logger.debug("consumer group %s could not be looked at: %s", self._group, error)
            return
        if has_members and not self._has_members:
            logger.warning(
                "consumer group %r (the option 'group.id') has got members since the query started. This query goes on"
                " to commit its own offsets to it, so that they lose their place. Give those readers, or this query, a"
                " group of their own.",
                self._group,
            )
        elif self._has_members and not has_members:
            logger.info("consumer group %r has no members any more", self._group)
        self._has_members = has_members

    def _require_own_group(self) -> None:
        if self._control.has_members(self._group):
            raise ConfigurationError(
                f"consumer group {self._group!r} (the option 'group.id') has members: it belongs to an application that"
                " reads by it, whose place would be lost. Nothing was written. Name a group of the query's own."
            )

    def _check_target(self) -> Iterator[CheckResult]:
        yield CheckResult.of(f"consumer group {self._group!r}: members", self._require_own_group)

    def _try_to_add(self, name: str, producer: ProducerIdentity) -> Iterator[CheckResult]:
        yield checks.clock(checks.try_to_progress(self._control, name, producer, self._group))

    def _refuse_too_old(self, age_s: float) -> None:
        """Its transaction is begun when those of the output are pre-committed, however long these took."""
