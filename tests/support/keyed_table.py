"""What the tests of tables with ``upsert_by`` share: rows of an id, a name and a day, and votes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tests.support.sink_place import ROUND, SinkPlace, from_log
from twopc import Committable, Participant, Round

COLUMNS = pa.schema([("id", pa.int64()), pa.field("name", pa.string(), nullable=False), ("day", pa.string())])

Rows = list[tuple[int | None, str, str | None]]


def records(rows: Rows) -> pa.RecordBatch:
    return pa.record_batch([list(column) for column in zip(*rows, strict=True)], schema=COLUMNS)


def vote(
    place: SinkPlace[Any],
    rows: Rows = [],  # noqa: B006  # only read
    deleted: Sequence[int | None] = (),
    round: Round = ROUND,
    partition: int = 0,
) -> Committable:
    """What a participant has pre-committed: these rows, and deletes of these ids."""
    with Participant({"orders": place.sink(upsert_by="id")}, round, partition=partition) as participant:
        if rows:
            participant.write("orders", records(rows))
        if deleted:
            participant.delete("orders", records([(each, "", "") for each in deleted]))
        return participant.pre_commit()["orders"]


def sealed(place: SinkPlace[Any], *votes: Committable) -> list[Committable]:
    return [from_log(each) for each in place.sink(upsert_by="id").seal(votes, 0.0)]
