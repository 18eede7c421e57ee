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

_PHASES = frozenset(phase.value for phase in Phase)

_LARGEST_COUNT = 2**63 - 1  # Spark counts its batches so, and a sum of such counts is still a float


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

    @property
    def owner(self) -> str:
        """The query of the batch."""
        return self.batch.owner


@dataclass(frozen=True, slots=True)
class FailedRun:
    """One failed run of a batch.

    Attributes:
        failed_at: in UTC, for people.
        error: the class of the exception that ended the run, and ``message`` its text.
        phases_ms: the time in each phase that the run entered, by the phase's name. The last one failed.
    """

    failed_at: str
    batch_id: int
    error: str
    message: str
    phases_ms: dict[str, float]
    owner: str


def read_lines(path: Path) -> Iterator[Line | FailedRun | None]:
    """Yield the finished batches and the failed runs of every query, oldest first, and None for a line that can't be
    read, such as a truncated one. Events of other kinds are left out."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            value = _parsed(text)
            if value is None:
                yield None
            elif "finished_at" in value:
                yield _line(value)
            elif "failed_at" in value:
                yield _failed_run(value)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _line(value: dict[str, Any]) -> Line | None:
    """Return the line only if every value is of its type: who can write the file must not be able to stop a reader."""
    try:
        finished_at = value.pop("finished_at")
        return Line(finished_at, BatchFinished(**value)) if _is_sound(finished_at, **value) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _failed_run(value: dict[str, Any]) -> FailedRun | None:
    try:
        run = FailedRun(**value)
        texts = (run.failed_at, run.error, run.message, run.owner)
        sound = all(isinstance(text, str) for text in texts) and _is_count(run.batch_id) and _are_times(run.phases_ms)
    except (TypeError, AttributeError):
        return None
    return run if sound else None


def _is_sound(finished_at: object, owner: object, phases_ms: dict[str, Any], **others: Any) -> bool:
    by_sink = [others[name] for name in ("records", "bytes", "transactions")]
    counts = [others.get(name, 0) for name in ("unrouted", "bad_records")]
    counts += [others[name] for name in ("batch_id", "retries", "recovered")]
    counts += [count for of_sink in by_sink for count in of_sink.values()]
    return (
        isinstance(finished_at, str)
        and isinstance(owner, str)
        and by_sink[0].keys() == by_sink[1].keys() == by_sink[2].keys()
        and all(map(_is_count, counts))
        and _are_times(phases_ms)
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_COUNT


def _are_times(phases_ms: dict[str, Any]) -> bool:
    return phases_ms.keys() <= _PHASES and all(
        isinstance(ms, (int, float)) and 0 <= ms < _A_CENTURY_MS for ms in phases_ms.values()
    )
