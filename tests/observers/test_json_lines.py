"""The file of one line per batch, and who reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from twopc.errors import LogMismatch
from twopc.events import BatchFailed, BatchFinished
from twopc.observers.json_lines import EventReader, JsonLinesObserver

AT = "2026-11-27T12:00:00.000+00:00"


def test_a_failed_run_is_a_line_of_its_own(run: Any, observe: Any, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    observer = JsonLinesObserver(path)
    observe(observer)
    run(0)
    with pytest.raises(LogMismatch) as refused:
        run(7)
    observer.close()
    events = [each.event for each in EventReader(path).read()]
    runs = [(type(each), each.batch_id) for each in events if isinstance(each, BatchFinished | BatchFailed)]
    assert runs == [(BatchFinished, 0), (BatchFailed, 7)]
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    [failed] = [line for line in lines if "failed_at" in line]
    assert failed.pop("failed_at") > "2026"
    assert list(failed.pop("phases_ms")) == ["recovering"]
    error = {"kind": "LogMismatch", "message": str(refused.value)}
    assert failed == {"batch_id": 7, "error": error, "owner": "orders"}


def test_a_line_of_a_later_release_or_one_that_can_not_be_read_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    error = {"kind": "E", "message": "m"}
    failed: dict[str, Any] = {"failed_at": AT, "batch_id": 7, "error": error, "phases_ms": {}, "owner": "orders"}
    wrong = [failed | {"batch_id": True}, failed | {"error": error | {"message": None}}, failed | {"phases_ms": []}]
    lines = [{"forgotten_at": AT, "what": "a call"}, failed, *wrong, 7]
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"failed_at": "20\n', encoding="utf-8")
    [first] = EventReader(path).read()
    assert isinstance(first.event, BatchFailed)
    assert (type(first.event.error).__name__, str(first.event.error), first.event.batch_id) == ("E", "m", 7)
