"""A query that is to be stopped first processes what its sources have.

Spark's ``processAllAvailable`` returns when a trigger finds nothing new. With a source that never pauses it never
returns: then the offsets that the source had at the call are the goal. They are in the progress that Spark reports
after each batch, for sources that tell how far they could be read, as Kafka does.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

_POLL_INTERVAL_S = 0.05
_TOLD_INTERVAL_S = 60.0


def until_drained(query: StreamingQuery) -> None:
    """Wait until a query has processed and committed what its sources have now. Then event-time windows that these
    records closed are emitted, too.

    Raises:
        StreamingQueryException: the query has failed before that.
    """
    goal = _Goal(query.lastProgress)
    paused = threading.Thread(target=_wait_for_a_pause, args=(query,), daemon=True)  # ends with the query at the latest
    paused.start()
    told_s = time.monotonic()
    while query.isActive and paused.is_alive() and not goal.is_reached(query.lastProgress):
        if time.monotonic() - told_s >= _TOLD_INTERVAL_S:
            told_s = time.monotonic()
            logger.warning("query %s is not drained yet: %s", query.id, goal)
        time.sleep(_POLL_INTERVAL_S)
    if (error := query.exception()) is not None:
        raise error


def _wait_for_a_pause(query: StreamingQuery) -> None:
    try:
        query.processAllAvailable()
    except (PySparkException, Py4JJavaError) as error:
        logger.debug("the query %s has failed while it was drained: %s", query.id, error)


class _Goal:
    """The offsets of the sources at the call, from the first batch that was certainly planned after it.

    Which batch that is follows from the batches' numbers. Spark's clock may differ from the caller's.

    Args:
        at_call: the progress at the call, or None if there is none yet.
    """

    def __init__(self, at_call: Mapping[str, Any] | None) -> None:
        # The batch after the newest one may be running.
        self._planned_before: int | None = None if at_call is None else at_call["batchId"] + 1
        self._newest: int | None = None
        self._offsets: list[Any] | None = None
        self._reached_by: int | None = None

    def __str__(self) -> str:
        goal = "are not known before a later batch ends" if self._offsets is None else f"are {self._offsets}"
        return f"the newest batch that has ended is {self._newest}, and the offsets to reach {goal}"

    def is_reached(self, progress: Mapping[str, Any] | None) -> bool:
        """Whether nothing is left to wait for, as far as a progress tells."""
        if progress is None:
            return False
        self._newest = progress["batchId"]
        if self._planned_before is None:
            self._planned_before = progress["batchId"]
        if progress["batchId"] <= self._planned_before:
            return False
        sources = progress["sources"]
        self._offsets = self._offsets or [_offset(source["latestOffset"]) for source in sources]
        ends = [_offset(source["endOffset"]) for source in sources]
        if self._reached_by is None and all(map(_has_reached, ends, self._offsets)):
            self._reached_by = progress["batchId"]
        if self._reached_by is None:
            return False
        # The watermark of a batch closes windows in the next one.
        return progress["batchId"] > self._reached_by or not progress["stateOperators"]


def _offset(given: Any) -> Any:
    """Return an offset as JSON has it. Spark's progress has it as JSON within JSON, or as text."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given


def _has_reached(end: Any, goal: Any) -> bool:
    """Whether an offset is at the goal or beyond. False if the source does not tell how far it could be read."""
    match end, goal:
        case dict(), dict():
            return all(_has_reached(end.get(name), goal[name]) for name in goal)
        case int(), int():
            return end >= goal
        case _:
            return goal is not None and bool(end == goal)
