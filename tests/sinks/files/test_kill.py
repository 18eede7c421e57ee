"""A writer is killed, and another process settles what it left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.support.killed_writer import AFTER, BEFORE, VALUES, killed_writer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sinks.files.conftest import MakeSink


pytestmark = pytest.mark.crash


@pytest.mark.long
def test_what_a_writer_pre_committed_before_its_kill_is_committed_by_another_process(
    folder: Path, make_sink: MakeSink
) -> None:
    committable = killed_writer("files", {"path": str(folder)})
    assert committable is not None
    assert list(folder.rglob("*.parquet")) == []
    sink = make_sink()
    sink.seal([committable], age_s=0)
    sink.commit(committable)
    [file] = folder.rglob("*.parquet")
    assert pq.read_table(file)["value"].to_pylist() == VALUES
    assert list((folder / "_twopc").iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_what_a_killed_writer_left_undecided_is_found_and_removed(when: str, folder: Path, make_sink: MakeSink) -> None:
    killed_writer("files", {"path": str(folder)}, when)
    sink = make_sink()
    [found] = sink.recover()
    sink.abort(found)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
