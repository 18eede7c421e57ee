"""The file of one line per batch, and who reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twopc.errors import LogMismatch
from twopc.observers.json_lines import FailedRun, JsonLinesObserver, Line, read_lines

AT = "2026-11-27T12:00:00.000+00:00"


def test_a_failed_run_is_a_line_of_its_own(run: Any, observe: Any, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    observer = JsonLinesObserver(path)
    observe(observer)
    run(0)
    with pytest.raises(LogMismatch) as refused:
        run(7)
    observer.close()
    finished, failed_run = read_lines(path)
    assert isinstance(finished, Line)
    assert isinstance(failed_run, FailedRun)
    assert (finished.batch.batch_id, failed_run.batch_id) == (0, 7)
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    [failed] = [line for line in lines if "failed_at" in line]
    assert failed.pop("failed_at") > "2026"
    assert list(failed.pop("phases_ms")) == ["recovering"]
    assert failed == {"batch_id": 7, "error": "LogMismatch", "message": str(refused.value), "owner": "orders"}


def test_a_line_of_a_later_release_is_left_out_and_one_that_can_not_be_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    failed: dict[str, Any] = {"failed_at": AT, "batch_id": 7, "error": "E", "message": "m", "phases_ms": {}}
    failed["owner"] = "orders"
    wrong = [failed | {"batch_id": True}, failed | {"message": None}, failed | {"phases_ms": []}]
    lines = [{"forgotten_at": AT, "what": "a call"}, failed, *wrong, 7]
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"failed_at": "20\n', encoding="utf-8")
    assert list(read_lines(path)) == [FailedRun(**failed), *[None] * (len(wrong) + 2)]
