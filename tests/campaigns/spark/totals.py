"""A stateful processor: counts the records of each key, and emits each new total."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


class Totals(StatefulProcessor):
    """For ``transformWithState``."""

    OUTPUT = "key STRING, events LONG"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "events LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self._total.get()
        total = (before[0] if before else 0) + sum(1 for _ in rows)
        self._total.update((total,))
        yield Row(key=key[0], events=total)
