"""A file with one line of JSON for each batch: the times of its phases, which the log does not keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from twopc.events import BatchFinished, Event
from twopc.hookspecs import hookimpl
from twopc.phases import Phase

_A_CENTURY_MS = 3.2e12
"""No phase takes as long, and what is larger may be too large to calculate with."""


class JsonLinesObserver:
    """Appends to the local file ``path``, about 500 bytes a batch. Several queries may share it."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    @hookimpl
    def twopc_event(self, event: Event) -> None:
        if isinstance(event, BatchFinished):
            finished_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            line = json.dumps({"finished_at": finished_at, **asdict(event)})
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


@dataclass(frozen=True, slots=True)
class Line:
    """One batch of the file. ``finished_at``: UTC, for people."""

    finished_at: str
    batch: BatchFinished


def read_lines(path: Path, owner: str) -> Iterator[Line | None]:
    """The batches of the query ``owner``, oldest first; None for a line that is not one, such as half of one."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            line = _line(text)
            if line is None or line.batch.owner == owner:
                yield line


def _line(text: str) -> Line | None:
    """Whoever can write the file must not stop the reader: what is shown is of its type, or the line is none."""
    try:
        value = json.loads(text)
        finished_at = value.pop("finished_at")
        return Line(finished_at, BatchFinished(**value)) if _is_sound(finished_at, **value) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _is_sound(finished_at: object, owner: object, phases_ms: dict[str, Any], **others: Any) -> bool:
    by_sink = [others[name] for name in ("records", "bytes", "transactions")]
    counts = [others[name] for name in ("batch_id", "retries", "recovered")]
    counts += [count for of_sink in by_sink for count in of_sink.values()]
    return (
        isinstance(finished_at, str)
        and isinstance(owner, str)
        and by_sink[0].keys() == by_sink[1].keys() == by_sink[2].keys()
        and all(type(count) is int and count >= 0 for count in counts)
        and phases_ms.keys() <= {phase.value for phase in Phase}
        and all(isinstance(ms, (int, float)) and 0 <= ms < _A_CENTURY_MS for ms in phases_ms.values())
    )
