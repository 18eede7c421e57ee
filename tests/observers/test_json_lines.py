"""The file of one line per batch, and who reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twopc.errors import LogMismatch
from twopc.observers.json_lines import JsonLinesObserver, read_lines


def test_a_failed_run_is_a_line_of_its_own_which_readers_of_finished_batches_skip(
    run: Any, observe: Any, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    observer = JsonLinesObserver(path)
    observe(observer)
    run(0)
    with pytest.raises(LogMismatch) as refused:
        run(7)
    observer.close()
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    [failed] = [line for line in lines if "failed_at" in line]
    assert failed.pop("failed_at") > "2026"
    assert list(failed.pop("phases_ms")) == ["recovering"]
    assert failed == {"batch_id": 7, "error": "LogMismatch", "message": str(refused.value), "owner": "orders"}
    assert [line and line.batch.batch_id for line in read_lines(path, "orders")] == [0]
