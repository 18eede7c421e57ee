"""A file with one line of JSON per batch: the times of its phases, which the log does not keep, and failed runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from twopc.events import BatchFailed, BatchFinished, Event
from twopc.hookspecs import hookimpl
from twopc.phases import Phase

_A_CENTURY_MS = 3.2e12
"""No phase takes as long, and what is larger may be too large to calculate with."""


class JsonLinesObserver:
    """Appends to the local file ``path``, about 500 bytes per batch. Several queries may share it."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    @hookimpl
    def twopc_event(self, event: Event) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        match event:
            case BatchFinished():
                self._append({"finished_at": now, **asdict(event)})
            case BatchFailed(batch_id, error, phases_ms, owner):
                kind = type(error).__name__
                failed = {"batch_id": batch_id, "error": kind, "message": str(error), "phases_ms": phases_ms}
                self._append({"failed_at": now, **failed, "owner": owner})

    def _append(self, line: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@dataclass(frozen=True, slots=True)
class Line:
    """One finished batch of the file. ``finished_at``: UTC, for people."""

    finished_at: str
    batch: BatchFinished


def read_lines(path: Path, owner: str) -> Iterator[Line | None]:
    """Yield the finished batches of the query ``owner``, oldest first, and None for a line that can't be read, such as
    a truncated one."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            value = _parsed(text)
            if "failed_at" in value:
                continue
            line = _line(value)
            if line is None or line.batch.owner == owner:
                yield line


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _line(value: dict[str, Any]) -> Line | None:
    """Return the line only if every value is of its type: who can write the file must not be able to stop a reader."""
    try:
        finished_at = value.pop("finished_at")
        return Line(finished_at, BatchFinished(**value)) if _is_sound(finished_at, **value) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _is_sound(finished_at: object, owner: object, phases_ms: dict[str, Any], **others: Any) -> bool:
    by_sink = [others[name] for name in ("records", "bytes", "transactions")]
    counts = [others.get(name, 0) for name in ("unrouted", "bad_records")]
    counts += [others[name] for name in ("batch_id", "retries", "recovered")]
    counts += [count for of_sink in by_sink for count in of_sink.values()]
    return (
        isinstance(finished_at, str)
        and isinstance(owner, str)
        and by_sink[0].keys() == by_sink[1].keys() == by_sink[2].keys()
        and all(type(count) is int and count >= 0 for count in counts)
        and phases_ms.keys() <= {phase.value for phase in Phase}
        and all(isinstance(ms, (int, float)) and 0 <= ms < _A_CENTURY_MS for ms in phases_ms.values())
    )
